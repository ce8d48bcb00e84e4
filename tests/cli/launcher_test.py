"""The launcher: exit codes, signals, LD_PRELOAD, help, and what it says about mistakes.

Arguments: the launcher, a library that stands for libmesa.so.

SPDX-License-Identifier: MIT
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

LAUNCHER, LIBRARY = map(os.path.abspath, sys.argv[1:3])
COMMANDS = ("run", "explain", "policies", "check", "report")


class LauncherTest(unittest.TestCase):
    """Each test has an installation of its own: bin/mesa and lib/libmesa.so."""

    def setUp(self):
        self.directory = os.path.realpath(tempfile.mkdtemp(prefix="mesa-launcher-"))
        self.addCleanup(shutil.rmtree, self.directory)
        os.makedirs(self.path("bin"))
        os.makedirs(self.path("lib"))
        self.mesa = shutil.copy(LAUNCHER, self.path("bin", "mesa"))
        self.library = shutil.copy(LIBRARY, self.path("lib", "libmesa.so"))

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def environment(self, **changes):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MESA_") and k != "LD_PRELOAD"}
        return {**kept, **changes}

    def start(self, *words, **changes):
        return subprocess.run(
            [self.mesa, *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.directory,
            env=self.environment(**changes),
        )

    def variable(self, name, *options, **changes):
        """What the program sees."""
        result = self.start("run", *options, "--", "sh", "-c", f'printf "%s" "${{{name}-unset}}"', **changes)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def assert_mistake(self, result, *texts):
        self.assertEqual((result.returncode, result.stdout), (2, ""), result)
        for text in texts:
            self.assertIn(text, result.stderr)

    # ---- the program is what it is without us

    def test_exit_codes_pass_through(self):
        for code in (0, 1, 2, 42, 255):
            self.assertEqual(self.start("run", "sh", "-c", f"exit {code}").returncode, code)

    def test_output_and_words_pass_through(self):
        result = self.start("run", "--", "printf", "%s|", "--policy", "a b", "", "--")
        self.assertEqual((result.stdout, result.stderr), ("--policy|a b||--|", ""))
        result = self.start("run", "printf", "%s|", "--verify", "--help")
        self.assertEqual(result.stdout, "--verify|--help|")

    def test_signals_reach_the_program(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self.assertEqual(self.start("run", "sh", "-c", f"kill -{int(number)} $$").returncode, -number)
        program = subprocess.Popen(
            [self.mesa, "run", "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"],
            stdout=subprocess.PIPE,
            env=self.environment(),
        )
        self.assertEqual(program.stdout.readline(), b"ready\n")
        program.send_signal(signal.SIGTERM)
        self.assertEqual(program.wait(60), 7)
        program.stdout.close()

    def test_a_program_that_is_not_there(self):
        result = self.start("run", "no-such-program")
        self.assertEqual(result.returncode, 127)
        self.assertEqual(result.stderr, "mesa: no-such-program: No such file or directory\n")
        self.write("plain", "text")
        self.assertEqual(self.start("run", "./plain").returncode, 126)

    # ---- what it sets

    def test_the_library_is_preloaded(self):
        self.assertEqual(self.variable("LD_PRELOAD"), self.library)
        script = "import ctypes; print(ctypes.CDLL(None).mesa_version.__name__)"
        result = self.start("run", sys.executable, "-c", script)
        self.assertEqual(result.stdout, "mesa_version\n", result.stderr)

    def test_an_existing_preload_stays_first(self):
        other = shutil.copy(LIBRARY, self.path("other.so"))
        self.assertEqual(self.variable("LD_PRELOAD", LD_PRELOAD=other), f"{other}:{self.library}")
        two = f"{other} {other}"
        self.assertEqual(self.variable("LD_PRELOAD", LD_PRELOAD=two), f"{two}:{self.library}")
        self.assertEqual(self.variable("LD_PRELOAD", LD_PRELOAD=""), self.library)

    def test_the_library_is_preloaded_once(self):
        for there in (self.library, f"{self.library}:", f":{self.library}"):
            self.assertEqual(self.variable("LD_PRELOAD", LD_PRELOAD=there), there)
        longer = shutil.copy(LIBRARY, self.library + ".1")
        self.assertEqual(self.variable("LD_PRELOAD", LD_PRELOAD=longer), f"{longer}:{self.library}")

    def test_the_library_may_stand_beside(self):
        beside = shutil.move(self.library, self.path("bin", "libmesa.so"))
        self.assertEqual(self.variable("LD_PRELOAD"), beside)

    def test_links_to_the_launcher_do_not_matter(self):
        os.symlink(self.mesa, self.path("link"))
        self.mesa = self.path("link")
        self.assertEqual(self.variable("LD_PRELOAD"), self.library)

    def test_no_library(self):
        os.remove(self.library)
        result = self.start("run", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn("libmesa.so", result.stderr)

    def test_a_path_that_cannot_be_preloaded(self):
        os.makedirs(self.path("my programs", "bin"))
        self.mesa = shutil.copy(self.mesa, self.path("my programs", "bin", "mesa"))
        shutil.copy(self.library, self.path("my programs", "bin", "libmesa.so"))
        result = self.start("run", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn("blank", result.stderr)

    def test_options_become_variables(self):
        for option in (["--policy", "lossless"], ["--policy=lossless"]):
            self.assertEqual(self.variable("MESA_POLICY", *option), "lossless")
        self.assertEqual(self.variable("MESA_POLICY", "--policy", "off", MESA_POLICY="default"), "off")
        self.assertEqual(self.variable("MESA_POLICY", MESA_POLICY="off"), "off")
        self.assertEqual(self.variable("MESA_POLICY"), "unset")
        self.assertEqual(self.variable("MESA_REPORT", "--report", "text,a.json"), "text,a.json")
        self.assertEqual(self.variable("MESA_VERIFY", "--verify"), "1")
        self.assertEqual(self.variable("MESA_VERIFY"), "unset")
        self.assertEqual(self.variable("MESA_EXPLAIN"), "unset")

    def test_explain(self):
        result = self.start("explain", "--policy", "4bit", "--", "sh", "-c", 'echo "$MESA_EXPLAIN $MESA_POLICY"')
        self.assertEqual(result.stdout, "1 4bit\n")

    # ---- mistakes end it before the program starts

    def test_mistakes_in_policies(self):
        marker = self.path("started")
        policy = self.write("my.policy", "* keep\nsoftmax.result affine bit=8\n")
        for result in (
            self.start("run", "--policy", policy, "touch", marker),
            self.start("run", "touch", marker, MESA_POLICY=policy),
            self.start("explain", "--policy", "./my.policy", "touch", marker),
        ):
            self.assert_mistake(result, "my.policy:2:", "'bit='", "did you mean")
        self.assert_mistake(self.start("run", "--policy", "lossles", "touch", marker), "'lossless'")
        self.assert_mistake(self.start("run", "--policy", "* keepp", "touch", marker), ":1:3:", "'keep'")
        self.assertFalse(os.path.exists(marker))

    def test_mistakes_in_reports(self):
        self.assert_mistake(self.start("run", "--report", "jsn", "true"), "unknown report 'jsn'")
        self.assert_mistake(self.start("run", "true", MESA_REPORT="a%q.json"), "'%q'")

    def test_mistakes_in_options(self):
        self.assert_mistake(self.start("run", "--polcy", "off", "true"), "did you mean '--policy'?")
        self.assert_mistake(self.start("run", "--policy"), "--policy needs")
        self.assert_mistake(self.start("run", "--report"), "--report needs")
        self.assert_mistake(self.start("run"), "no program to run")
        self.assert_mistake(self.start("run", "--verify", "--"), "no program to run")
        self.assert_mistake(self.start("check", "--pyton", "x"), "did you mean '--python'?")
        self.assert_mistake(self.start("check", "--python"), "--python needs")
        self.assert_mistake(self.start("report"), "needs the name")

    def test_mistakes_in_commands(self):
        self.assert_mistake(self.start("rnu", "true"), "did you mean 'run'?")
        self.assert_mistake(self.start("polices"), "did you mean 'policies'?")
        self.assert_mistake(self.start("--verison"), "did you mean '--version'?")
        self.assert_mistake(self.start("python", "train.py"), "`mesa run python`")
        self.assert_mistake(self.start("policies", "shwo", "off"), "did you mean 'show'?")
        self.assert_mistake(self.start(), "usage: mesa")

    # ---- policies

    def test_policies_are_listed_and_shown(self):
        listed = self.start("policies")
        self.assertEqual(listed.returncode, 0)
        names = [line.split()[0] for line in listed.stdout.splitlines()]
        for name in ("default", "mesa", "lossless", "4bit", "observe", "off"):
            self.assertIn(name, names)
        for name in names:
            shown = self.start("policies", "show", name)
            self.assertEqual(shown.returncode, 0)
            copy = self.write(f"{name}.policy", shown.stdout)
            checked = self.start("policies", "check", copy)
            self.assertEqual((checked.returncode, checked.stdout), (0, f"{copy}: no mistakes\n"))
        self.assert_mistake(self.start("policies", "show", "defualt"), "did you mean 'default'?")
        self.assert_mistake(self.start("policies", "show"), "takes one name")

    def test_policies_check_names_the_place(self):
        policy = self.write("my.policy", "# mine\n*  keep\nsoftmax.result  afine bits=8\n")
        result = self.start("policies", "check", policy)
        self.assert_mistake(result, "did you mean 'affine'?")
        self.assertTrue(result.stderr.startswith(f"{policy}:3:17: "), result.stderr)
        self.assert_mistake(self.start("policies", "check", "missing.policy"), "missing.policy: No such file")
        self.assert_mistake(self.start("policies", "check"), "takes one file")

    # ---- help

    def test_help(self):
        overview = self.start("--help")
        self.assertEqual((overview.returncode, overview.stderr), (0, ""))
        self.assertIn("examples:", overview.stdout)
        self.assertEqual(self.start("help").stdout, overview.stdout)
        self.assertEqual(self.start("-h").stdout, overview.stdout)
        for command in COMMANDS:
            self.assertIn(f"mesa {command}", overview.stdout)
            text = self.start(command, "--help")
            self.assertEqual((text.returncode, text.stderr), (0, ""))
            self.assertIn(f"usage: mesa {command}", text.stdout)
            self.assertIn("example", text.stdout)
            self.assertEqual(self.start("help", command).stdout, text.stdout)
            self.assertLessEqual(max(map(len, text.stdout.splitlines())), 100)

    def test_policies_in_examples_are_right(self):
        for command in COMMANDS:
            text = self.start(command, "--help").stdout
            for policy in re.findall(r"--policy[= ]'([^']+)'", text):
                result = self.start("run", "--policy", policy, "true")
                self.assertEqual((result.returncode, result.stderr), (0, ""), policy)

    def test_version(self):
        self.assertRegex(self.start("--version").stdout, r"\Amesa \d+\.\d+\.\d+\n\Z")

    def test_a_full_standard_output_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([self.mesa, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(result.returncode, 1)

    # ---- check

    def test_check_says_what_does_not_work(self):
        python = self.write("python", "#!/bin/sh\nprintf '%s|' \"$MESA_POLICY\" \"$MESA_REPORT\" \"$1\" \"$LD_PRELOAD\"\nexit 1\n")
        os.chmod(python, 0o755)
        result = self.start("check", "--python", python, MESA_POLICY="off", MESA_REPORT="text")
        self.assertEqual((result.returncode, result.stdout), (1, f"default|none|-c|{self.library}|"))
        self.assertEqual(self.start("check", "--python=no-such-python").returncode, 127)

    def test_check_runs_without_torch(self):
        result = self.start("check", "--python", sys.executable, PYTHONPATH=self.fake_torch())
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertRegex(result.stdout, r"ok +python ")
        self.assertRegex(result.stdout, r"FAIL +libmesa +.*but the launcher is")
        self.assertRegex(result.stdout, r"FAIL +torch +cannot be imported: not today")

    def fake_torch(self):
        self.write("torch.py", "raise ImportError('not today')\n")
        return self.directory


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
