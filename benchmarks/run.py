"""python -m benchmarks.run [NAME ...] [--quick] [--full] [--rounds N]

Covers: choosing benchmarks and running them one after the other; one that fails does not stop the rest.
Does not cover: the benchmarks themselves (one module each).
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback

from benchmarks import report
from benchmarks.harness import Options

NAMES = (
    "images", "jpeg_decoders", "tables_csv", "tables_parquet", "tfrecord", "hdf5", "jsonl", "tar_images", "sql",
    "kernels", "first_pass", "first_minute", "answers", "s3_latency", "idle_device", "memory_growth", "million_files",
    "recording_cost", "train_accuracy", "installed_size",
)  # fmt: skip


def main() -> int:
    """Run what was asked for, then write and print the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Speed and memory against peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: only to see that it works")
    parser.add_argument("--full", action="store_true", help="8 GB in memory_growth, 1,000,000 names in million_files")
    parser.add_argument("--rounds", type=int, help="rounds of every race")
    told = parser.parse_args()
    if wrong := set(told.names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(wrong))}")
    options, failed = Options(told.quick, told.full, told.rounds), []
    for name in told.names or NAMES:
        began = time.monotonic()
        print(f"{name}:", flush=True)
        try:
            importlib.import_module(f"benchmarks.{name}").run(options)
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    print("\n" + report.write_summary(options.quick))
    if failed:
        print("failed:", ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
