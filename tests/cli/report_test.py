"""Reports as programs and people get them: JSON against its schema, names, errors, printed again.

Arguments: the sample program, the launcher, docs/report.schema.json. Needs the Python package jsonschema
for the tests of the schema (MESA_TEST_PYTHON may name a Python that has it).

SPDX-License-Identifier: MIT
"""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

if os.environ.get("MESA_TEST_PYTHON", sys.executable) != sys.executable:
    python = os.environ.pop("MESA_TEST_PYTHON")
    os.execv(python, [python, "-B"] + sys.argv)

try:
    import jsonschema
except ImportError:
    jsonschema = None

SAMPLE, LAUNCHER, SCHEMA = map(os.path.abspath, sys.argv[1:4])
SKIP = 77


def make_german_locale(directory):
    """True if a locale with a decimal comma could be made."""
    if shutil.which("localedef") is None:
        return False
    path = os.path.join(directory, "de_DE.UTF-8")
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return made.returncode in (0, 1) and os.path.isdir(path)  # 1: warnings


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="mesa-report-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def train(self, report, records=12, seed=1, verify=False, **options):
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "LC_ALL")}
        environment["MESA_REPORT"] = report
        environment.update(options.pop("environment", {}))
        words = [SAMPLE, str(records), str(seed)] + (["verify"] if verify else [])
        result = subprocess.run(
            words, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=60, **options
        )
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("trained", result.stdout)
        return result

    def files(self):
        return sorted(os.listdir(self.directory))

    def load(self, name):
        with open(os.path.join(self.directory, name), encoding="utf-8") as file:
            return json.load(file)

    def print_again(self, name):
        return subprocess.run(
            [LAUNCHER, "report", name], cwd=self.directory, capture_output=True, text=True, timeout=60
        )

    @unittest.skipIf(jsonschema is None, "no jsonschema")
    def test_json_is_as_the_schema_says(self):
        with open(SCHEMA, encoding="utf-8") as file:
            schema = json.load(file)
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
        for seed, (records, verify) in enumerate([(1, False), (7, True), (30, False), (300, True), (2100, False)]):
            self.train("a.json", records, seed, verify)
            report = self.load("a.json")
            validator(schema).validate(report)
            self.assertEqual(len(report["records"]), records)
            self.assertEqual(any(r["errors"] for r in report["records"]), verify)
            self.assertLessEqual(len(report["series"]["points"]), 1024)
        report["records"][0]["tensors"] = -1
        with self.assertRaises(jsonschema.ValidationError):
            validator(schema).validate(report)

    def test_every_name_is_escaped(self):
        self.train("a.json", records=200)
        ops = " ".join(record["op"] for record in self.load("a.json")["records"])
        for text in ('a"b\\c', "tab\there\n", "grüß", "\ufffd", "\x01\x7f"):
            self.assertIn(text, ops)

    def test_text_printed_again_is_the_text(self):
        for seed, records in enumerate([1, 5, 24, 300]):
            for verify in (False, True):
                text = self.train("text,a.json", records, seed, verify).stderr
                again = self.print_again("a.json")
                self.assertEqual(again.stdout, text)
                self.assertEqual(again.returncode, 0)
                self.assertLessEqual(text.count("\n"), 40)

    def test_text_goes_into_a_file_too(self):
        text = self.train("text,a.txt").stderr
        with open(os.path.join(self.directory, "a.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), text)

    def test_names_have_process_rank_and_host(self):
        self.train("%r-%h-%%.json", environment={"RANK": "3", "LOCAL_RANK": "1"})
        self.assertEqual(self.files(), [f"3-{socket.gethostname()}-%.json"])
        self.train("p%p.json")
        (name,) = [name for name in self.files() if name.startswith("p")]
        self.assertEqual(name, f"p{self.load(name)['run']['pid']}.json")

    def test_nothing_trained_is_nothing_said(self):
        result = self.train("text,a.json", records=0)
        self.assertEqual(result.stderr, "")
        self.assertEqual(self.files(), [])

    def test_none_is_silent(self):
        self.assertEqual(self.train("none").stderr, "")
        self.assertEqual(self.files(), [])

    def test_a_path_that_cannot_be_written_is_one_line(self):
        result = self.train("nowhere/a.json,b.json")
        self.assertRegex(result.stderr, r"\Amesa: cannot write report .*nowhere/a\.json: No such file or directory\n\Z")
        self.assertEqual(self.files(), ["b.json"])

    def test_a_full_disk_is_one_line(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        result = self.train("a.json", preexec_fn=limit)
        self.assertRegex(result.stderr, r"\Amesa: cannot write report .*a\.json: File too large\n\Z")
        self.assertEqual(self.files(), [])

    def test_a_full_standard_error_is_no_failure(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [SAMPLE, "5", "1"], stderr=full, stdout=subprocess.PIPE, env={"MESA_REPORT": "text"}, timeout=60
            )
        self.assertEqual(result.returncode, 0)

    def test_a_closed_standard_error_is_no_failure(self):
        for close in (lambda: os.close(2), None):
            reading, writing = os.pipe()
            os.close(reading)
            result = subprocess.run(
                [SAMPLE, "5", "1"],
                stderr=writing,
                stdout=subprocess.PIPE,
                preexec_fn=close,
                restore_signals=True,
                timeout=60,
                env={"MESA_REPORT": "text"},
            )
            os.close(writing)
            self.assertEqual(result.returncode, 0)

    def test_numbers_do_not_follow_the_locale(self):
        if not make_german_locale(self.directory):
            self.skipTest("no localedef, or no sources of locales")
        result = self.train(
            "text,a.json", verify=True, environment={"LOCPATH": self.directory, "LC_ALL": "de_DE.UTF-8"}
        )
        self.assertIn("the decimal point is ,", result.stdout)
        self.assertEqual(self.load("a.json")["run"]["seconds"], 1234.5678)
        self.assertEqual(self.print_again("a.json").stdout, result.stderr)

    def test_what_is_no_report_is_refused(self):
        cases = {
            "broken.json": ('{"format": ', r"broken\.json:1:\d+: "),
            "list.json": ("[]", "not a report of libmesa"),
            "other.json": ('{"format": "else"}', "not a report of libmesa"),
            "newer.json": ('{"format": "libmesa report", "format_version": 2}', "of another version"),
        }
        for name, (text, message) in cases.items():
            with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                file.write(text)
            result = self.print_again(name)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertRegex(result.stderr, message)
        self.assertRegex(self.print_again("missing.json").stderr, r"missing\.json: No such file")

    def test_fields_may_be_missing_or_odd(self):
        odd = {
            "format": "libmesa report",
            "format_version": 1,
            "run": {"seconds": "x", "tensors": -5, "would_bytes_peak": 2**62, "rank": None},
            "records": [{}, 7, {"op": "gelu", "kept": "no such reason", "dtype": "float7", "errors": []}],
            "kept": {"reason": "policy"},
        }
        with open(os.path.join(self.directory, "odd.json"), "w", encoding="utf-8") as file:
            json.dump(odd, file)
        result = self.print_again("odd.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("gelu", result.stdout)

    def test_standard_input_and_many_files(self):
        text = self.train("text,a.json").stderr
        with open(os.path.join(self.directory, "a.json"), encoding="utf-8") as file:
            result = subprocess.run([LAUNCHER, "report", "-"], stdin=file, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.stdout, text)
        result = subprocess.run(
            [LAUNCHER, "report", "missing.json", "a.json"],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((result.returncode, result.stdout), (1, text))


if __name__ == "__main__":
    program = unittest.main(argv=sys.argv[:1], exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIP if jsonschema is None else 0)
