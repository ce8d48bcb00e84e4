# The process in which programs run: `worker.py RESULTS PROGRAM...`, plain or under LD_PRELOAD.
#
# Starting torch takes seconds, so one worker runs many programs. Each result is appended to the
# file RESULTS as soon as it is there: when a program takes the process down, the harness knows
# which one it was and starts another worker for the rest.
#
# SPDX-License-Identifier: MIT
import faulthandler
import gc
import importlib
import os
import pickle
import sys
import time
import traceback
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
faulthandler.enable()
warnings.filterwarnings("ignore")

import torch

import programs


def run(name):
    """Runs one program and returns what the harness compares."""
    program = programs.PROGRAMS[name]
    record = programs.Record()
    error = None
    gc.collect()
    gc.freeze()  # or every collection walks through all modules that were ever imported
    held_before = programs.held_bytes()
    begin = time.monotonic()
    torch.manual_seed(0)
    try:
        program.run(record)
    except Exception:
        error = traceback.format_exc()
    gc.collect()
    torch.set_num_threads(1)
    left = programs.held_bytes() - held_before
    if left > 0 and not program.leaks and error is None:
        record.check(False, f"{left} bytes are still held after the program has ended")
    return {"name": name, "error": error, "values": record.values, "gradients": record.gradients,
            "scales": record.scales, "models": record.models, "facts": record.facts,
            "failed": record.failed, "seconds": time.monotonic() - begin}


def main():
    results, names = sys.argv[1], sys.argv[2:]
    for module in {name.partition(".")[0] for name in names}:
        importlib.import_module("programs." + module)
    torch.set_num_threads(1)
    for name in names:
        with open(results, "ab") as file:
            pickle.dump({"name": name, "begins": True}, file)
        result = run(name)
        active = programs.mesa("mesa_active")
        result["active"] = active() if active else None
        with open(results, "ab") as file:
            pickle.dump(result, file)


if __name__ == "__main__":
    main()
