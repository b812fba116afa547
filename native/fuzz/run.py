"""Runs the libFuzzer targets of the kernels: `python native/fuzz/run.py --seconds 600 [target ...]` (needs clang).

Covers: compiling each target with AddressSanitizer and UndefinedBehaviorSanitizer at the best level, seeds, one target
after the other on one core, the executions of each. A finding ends with an error; the input is kept and named.
Does not cover: what a target checks (the other files of this folder).
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[1] / "build" / "fuzz"
MARCH = {"x86_64": ["-march=x86-64-v3", "-mpclmul"], "aarch64": ["-march=armv8-a+crc"]}
FLAGS = ["-std=c11", "-O2", "-g", "-fwrapv", "-ffp-contract=off", "-fsanitize=fuzzer,address,undefined"]
FLAGS += ["-fno-sanitize-recover=all", "-Wall", "-Wno-unused-function", "-Werror", "-DPS_LEVEL=fuzz"]


def compiled(target: str) -> Path:
    """The target as a program."""
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / target
    source = HERE / f"{target}.c"
    subprocess.run(["clang", *FLAGS, *MARCH.get(platform.machine(), []), str(source), "-o", str(program)], check=True)
    return program


def run(target: str, seconds: int) -> bool:
    """Fuzz one target for so long; whether nothing was found."""
    corpus, seeds, found = WORK / "corpus" / target, HERE / "seeds" / target, WORK / "findings" / target
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-max_len=4096", "-rss_limit_mb=1500", "-timeout=20"]
    options += ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={found}/"]
    program = compiled(target)
    done = subprocess.run(
        [str(program), *options, str(corpus), *([str(seeds)] if seeds.is_dir() else [])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    units = int(executed[1]) if executed else 0
    print(f"{target}: {units:,} executions in {seconds} s, {'no finding' if not done.returncode else 'A FINDING'}")
    if done.returncode:
        print(done.stderr[-4000:], f"\nThe input is kept in {found}.", sep="")
    return not done.returncode


def main() -> int:
    """The command line."""
    targets = sorted(path.stem for path in HERE.glob("*.c"))
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(targets)}; all unless named")
    words.add_argument("--seconds", type=int, default=600, help="for each target")
    asked = words.parse_args()
    if shutil.which("clang") is None:
        print("libFuzzer comes with clang: apt-get install clang libclang-rt-14-dev", file=sys.stderr)
        return 1
    findings = [target for target in asked.targets or targets if not run(target, asked.seconds)]
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
