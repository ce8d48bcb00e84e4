# Measures libmesa against plain PyTorch and compares with the goals: memory, gradients, time.
#
# The one idea: everything is a ratio of two workers that run at the same time and step in turns, so
# that a busy machine disturbs both alike. Absolute figures of a shared machine mean little.
#
# usage: driver.py [--only TEXT] [--steps N] [--json FILE]
# MESA_LIB names the library, build/libmesa.so otherwise. Ends with 0 whether or not goals are met.
#
# SPDX-License-Identifier: MIT
import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
LIBRARY = pathlib.Path(os.environ.get("MESA_LIB", ROOT / "build" / "libmesa.so")).resolve()
KERNELCHECK = ROOT / "build" / "tests" / "unit" / "kernels" / "kernelcheck"

# Goals: (measure, at most). Ratios unless the measure has a unit.
HELD = {"deit_tiny": 0.26, "llama": 0.26, "gpt2": 0.24, "bert": 0.24, "t5": 0.24, "resnet18": 0.20}
HELD_BF16 = {"deit_tiny": 0.52, "llama": 0.52, "gpt2": 0.45, "bert": 0.45}
HELD_LOSSLESS = {"resnet18": 0.62, "bert": 0.85}
GRADIENT = {"deit_tiny": 0.006, "swin_tiny": 0.006, "gpt2": 0.006, "bert": 0.006, "llama": 0.006,
            "resnet18": 0.008, "t5": 0.008, "relu_net": 0.008, "llama_lora": 0.001}
RESIDENT = 0.42
STEP_MEDIAN, STEP_WORST = 1.03, 1.08
NOT_TAKEN_NS, PACK_4_KIB_NS = 100, 2000
ENCODE, DECODE = 0.85, 0.75


def say(text):
    print(f"[{time.monotonic() - STARTED:4.0f} s] {text}", file=sys.stderr, flush=True)


STARTED = time.monotonic()


class Worker:
    """A process that trains one model (worker.py), plainly or with libmesa under a policy."""

    def __init__(self, model, *options, policy=None):
        environment = {name: value for name, value in os.environ.items()
                       if name != "LD_PRELOAD" and not name.startswith("MESA_")}
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        if policy:
            environment |= {"LD_PRELOAD": str(LIBRARY), "MESA_POLICY": policy,
                            "MESA_REPORT": "none", "MESA_STRICT": "1"}
        self.name = f"{model} {' '.join(options)} {policy or 'plain'}"
        self.process = subprocess.Popen([sys.executable, "-B", HERE / "worker.py", model, *options],
                                        env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self):
        self._answer()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: the worker '{self.name}' ended early; what it said is above")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextlib.contextmanager
def workers(model, *variants):
    """Workers for one model. A variant is (options, policy)."""
    started = []
    try:
        for options, policy in variants:
            started.append(Worker(model, *options, policy=policy))
            started[-1].wait_until_ready()  # one after the other: building is not measured
        yield started
    finally:
        for worker in started:
            worker.end()


def step_in_turns(runners, steps):
    """Seconds of each step, a list for each worker; who is first changes from round to round."""
    seconds = [[] for _ in runners]
    for number in range(steps):
        order = range(len(runners))
        for index in order if number % 2 else reversed(order):
            time.sleep(0.005)  # lets the other's threads stop spinning for work
            seconds[index].append(runners[index].ask("step")["seconds"])
    return seconds


def time_ratio(seconds, base_seconds):
    """Median of the ratios of neighbours in time."""
    return statistics.median(a / b for a, b in zip(seconds, base_seconds))


def gradient_error(folder, plain, other):
    """|g - g0| / |g0| of the gradients of the workers' last step."""
    vectors = []
    for name, worker in (("plain", plain), ("other", other)):
        path = folder / f"{name}.npy"
        worker.ask("gradient", path)
        vectors.append(numpy.load(path).astype(numpy.float64))
    return float(numpy.linalg.norm(vectors[1] - vectors[0]) / numpy.linalg.norm(vectors[0]))


class Results:
    """Rows of (measure, measured, at most), printed at the end and written as JSON."""

    def __init__(self):
        self.rows = []
        self.notes = {}

    def add(self, measure, measured, at_most=None, unit=""):
        self.rows.append({"measure": measure, "measured": measured, "at_most": at_most,
                          "unit": unit})
        say(f"{measure}: {figure(measured, unit)}")

    def print_table(self):
        print(f"\n{'measure':<58} {'measured':>10} {'at most':>10}")
        short = 0
        for row in self.rows:
            goal = row["at_most"]
            misses = goal is not None and not row["measured"] <= goal
            short += misses
            print(f"{row['measure']:<58} {figure(row['measured'], row['unit']):>10} "
                  f"{'' if goal is None else figure(goal, row['unit']):>10}"
                  f"{'  falls short' if misses else ''}")
        print(f"\n{short} of {sum(r['at_most'] is not None for r in self.rows)} goals fall short")


def figure(value, unit):
    if unit == "%":
        return f"{100 * value:.3f} %"
    return f"{value:.0f}{unit}" if unit else f"{value:.3f}"


# ---- the measurements --------------------------------------------------------------------------


def measure_model(results, folder, model, steps):
    """Held bytes, gradient error and step time of one model, fp32, batch 8, default policy."""
    policies = ["default"] + (["lossless"] if model in HELD_LOSSLESS else [])
    variants = [((), None)] + [((), policy) for policy in policies]
    with workers(model, *variants) as (plain, mesa, *lossless):
        step_in_turns([plain, mesa, *lossless], 1)
        error = gradient_error(folder, plain, mesa)
        exact_error = gradient_error(folder, plain, lossless[0]) if lossless else None
        step_in_turns([plain, mesa], 2)  # warm
        plain_seconds, mesa_seconds = step_in_turns([plain, mesa], steps)
        totals = mesa.ask("memory")
        results.add(f"held / would-be, {model}", held_ratio(totals), HELD.get(model))
        results.add(f"gradient error, {model}", error, GRADIENT.get(model), "%")
        ratio = time_ratio(mesa_seconds, plain_seconds)
        results.add(f"step time, {model}", ratio)
        results.notes[model] = {"plain_seconds": plain_seconds, "mesa_seconds": mesa_seconds,
                                "totals": totals}
        if lossless:
            results.add(f"lossless: held / would-be, {model}",
                        held_ratio(lossless[0].ask("memory")), HELD_LOSSLESS[model])
            results.add(f"lossless: gradient error, {model}", exact_error, 0, "%")
    return ratio


def held_ratio(totals):
    return totals["held_bytes_peak"] / totals["would_bytes_peak"]


def measure_bf16(results, folder, model):
    with workers(model, (["--bf16"], None), (["--bf16"], "default")) as (plain, mesa):
        step_in_turns([plain, mesa], 1)
        error = gradient_error(folder, plain, mesa)
        step_in_turns([plain, mesa], 1)
        results.add(f"bf16 autocast: held / would-be, {model}", held_ratio(mesa.ask("memory")),
                    HELD_BF16[model])
        results.add(f"bf16 autocast: gradient error, {model}", error, None, "%")


def measure_resident(results, steps):
    """Resident memory and step time of deit_tiny, batch 16, beside checkpointing every block."""
    batch = ["--batch", "16"]
    with workers("deit_tiny", (batch, None), (batch, "default"),
                 ([*batch, "--checkpoint"], None)) as runners:
        step_in_turns(runners, 2)
        seconds = step_in_turns(runners, steps)
        plain, mesa, checkpoint = (worker.ask("memory")["peak_bytes"] for worker in runners)
    results.add("peak RSS above base / plain, deit_tiny B=16", mesa / plain, RESIDENT)
    results.add("  the same with torch.utils.checkpoint on every block", checkpoint / plain)
    results.add("  peak RSS above base / checkpoint's", mesa / checkpoint)
    results.add("  step time / plain, libmesa", time_ratio(seconds[1], seconds[0]))
    results.add("  step time / plain, checkpoint", time_ratio(seconds[2], seconds[0]))
    results.add("  step time / checkpoint's", time_ratio(seconds[1], seconds[2]), 1)
    results.notes["resident"] = {"plain_bytes": plain, "mesa_bytes": mesa,
                                 "checkpoint_bytes": checkpoint}


def measure_saves(results, chain, measure, goal_ns, rounds=200):
    """Nanoseconds that one save costs more than plainly."""
    with workers(chain, ((), None), ((), "default")) as runners:
        step_in_turns(runners, 20)
        plain, mesa = step_in_turns(runners, rounds)
        totals = runners[1].ask("memory")
    more = statistics.median(a - b for a, b in zip(mesa, plain))
    results.add(measure, 1e9 * more, goal_ns, " ns")
    results.notes[chain] = {"plain_ns": 1e9 * statistics.median(plain),
                            "mesa_ns": 1e9 * statistics.median(mesa), "totals": totals}


def measure_kernels(results):
    if not KERNELCHECK.exists():
        say(f"no {KERNELCHECK.relative_to(ROOT)}: the kernels are not measured")
        return
    with open("/proc/cpuinfo") as cpuinfo:
        isa = "avx512" if "avx512bw" in cpuinfo.read() else "avx2"
    command = [str(KERNELCHECK), isa, "--bench", "256"]
    for kernel, goal in (("affine_encode f32 8 bits", ENCODE),
                         ("affine_decode f32 8 bits, stream", DECODE)):
        # Decoding is fed by the encoding before it, which the program runs unasked.
        run = subprocess.run([*command, "--only", kernel], capture_output=True, text=True)
        found = re.search(re.escape(kernel) + r" +([\d.]+) of memcpy", run.stdout)
        if run.returncode or not found:
            say(f"'{' '.join(command)} --only {kernel}' failed: {run.stderr.strip()}")
            continue
        results.add(f"{kernel} / memcpy, {isa}, one thread", float(found[1]),
                    goal if isa == "avx512" else None)


def main():
    parser = argparse.ArgumentParser(description="Measures libmesa against plain PyTorch.")
    parser.add_argument("--only", default="", help="measure what has this text in its name")
    parser.add_argument("--steps", type=int, default=24, help="timed steps of each model")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()
    if not LIBRARY.exists():
        sys.exit(f"bench: no {LIBRARY}: build first, or name the library in MESA_LIB")

    results, ratios = Results(), []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        measurements = {
            "kernels": lambda: measure_kernels(results),
            "saves_not_taken": lambda: measure_saves(
                results, "saves_not_taken", "a saved tensor that is not taken", NOT_TAKEN_NS),
            "saves_4_kib": lambda: measure_saves(
                results, "saves_4_kib", "packing a saved tensor of 4 KiB", PACK_4_KIB_NS),
        }
        for model in GRADIENT:
            measurements[model] = lambda model=model: ratios.append(
                measure_model(results, folder, model, options.steps))
        for model in HELD_BF16:
            measurements[f"{model} bf16"] = lambda model=model: measure_bf16(results, folder, model)
        measurements["resident"] = lambda: measure_resident(results, options.steps // 2)
        for name, measure in measurements.items():
            if options.only in name:
                say(f"measuring {name}")
                measure()
    if ratios:
        results.add("step time, median over the zoo", statistics.median(ratios), STEP_MEDIAN)
        results.add("step time, worst of the zoo", max(ratios), STEP_WORST)
    results.print_table()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({
        "machine": {"processor": platform.processor() or platform.machine(),
                    "cores": os.cpu_count(), "python": platform.python_version()},
        "seconds": time.monotonic() - STARTED, "rows": results.rows, "notes": results.notes,
    }, indent=1))
    say(f"written to {options.json}")


if __name__ == "__main__":
    main()
