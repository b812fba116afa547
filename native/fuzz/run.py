"""Runs the libFuzzer targets of the kernels: `python native/fuzz/run.py --seconds 600 [target ...]` (needs clang).

Covers: compiling each target with AddressSanitizer and UndefinedBehaviorSanitizer at the best level, seeds, one target
after the other on one core, each for so many seconds of processor time (a busy machine makes a run longer, not weaker),
the executions of each. A finding ends with an error; the input is kept and named.
Does not cover: what a target checks (the other files of this folder).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[1] / "build" / "fuzz"
MARCH = {"x86_64": ["-march=x86-64-v3", "-mpclmul"], "aarch64": ["-march=armv8-a+crc"]}
FLAGS = ["-std=c11", "-O2", "-g", "-fwrapv", "-ffp-contract=off", "-fsanitize=fuzzer,address,undefined"]
FLAGS += ["-fno-sanitize-recover=all", "-Wall", "-Wno-unused-function", "-Werror", "-DPS_LEVEL=fuzz"]
HANG_S = 30
"""Processor seconds after which a target that was asked to end is killed."""


def compiled(target: str) -> Path:
    """The target as a program."""
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / target
    source = HERE / f"{target}.c"
    subprocess.run(["clang", *FLAGS, *MARCH.get(platform.machine(), []), str(source), "-o", str(program)], check=True)
    return program


def processor_seconds(pid: int) -> float:
    """What a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(fuzzer: subprocess.Popen[bytes], seconds: float) -> float:
    """End the fuzzer after so much processor time; what it used. One that does not end is killed: an input hangs it."""
    used, asked = 0.0, False
    while fuzzer.poll() is None:
        with contextlib.suppress(OSError, IndexError):  # it ended between the two lines
            used = max(used, processor_seconds(fuzzer.pid))
        if used > seconds + HANG_S:
            fuzzer.kill()
        elif used > seconds and not asked:
            fuzzer.send_signal(signal.SIGUSR1)  # libFuzzer finishes its input, prints its statistics and exits with 0
            asked = True
        time.sleep(0.2)
    return used


def run(target: str, seconds: int, stall: int) -> bool:
    """Fuzz one target for so long; whether nothing was found."""
    corpus, seeds, found = WORK / "corpus" / target, HERE / "seeds" / target, WORK / "findings" / target
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    options = ["-max_len=4096", "-rss_limit_mb=1500", f"-timeout={stall}", "-handle_usr1=1"]
    options += ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={found}/"]
    program, log = compiled(target), WORK / f"{target}.log"
    began = time.monotonic()
    with log.open("wb") as kept:
        command = [str(program), *options, str(corpus), *([str(seeds)] if seeds.is_dir() else [])]
        fuzzer = subprocess.Popen(command, stdout=kept, stderr=subprocess.STDOUT)
        used = watch(fuzzer, seconds)
    told = log.read_text(errors="replace")
    executed = re.search(r"number_of_executed_units: (\d+)", told)
    clean = fuzzer.returncode == 0 and executed is not None
    print(
        f"{target}: {int(executed[1]) if executed else 0:,} executions in {used:.0f} s of processor time "
        f"({time.monotonic() - began:.0f} s), {'no finding' if clean else 'A FINDING'}",
        flush=True,
    )
    if not clean:
        print(told[-4000:], f"\nThe input is kept in {found}.", sep="")
    return clean


def main() -> int:
    """The command line."""
    targets = sorted(path.stem for path in HERE.glob("*.c"))
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(targets)}; all unless named")
    words.add_argument("--seconds", type=int, default=600, help="of processor time for each target")
    words.add_argument("--stall", type=int, default=20, help="seconds by the clock that one input may take")
    asked = words.parse_args()
    if shutil.which("clang") is None:
        print("libFuzzer comes with clang: apt-get install clang libclang-rt-14-dev", file=sys.stderr)
        return 1
    findings = [target for target in asked.targets or targets if not run(target, asked.seconds, asked.stall)]
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
