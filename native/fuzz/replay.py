"""Runs the fuzz targets' inputs through kernels of several processors and levels, and compares what they give.

Covers: `python native/fuzz/replay.py [target ...]`: each target compiled by Zig for this machine's levels and for those
of aarch64, static; the other processor's programs run under qemu-user-static. Inputs are seeds and what fuzzing kept.
Does not cover: finding inputs (run.py), Python and the loader around the kernels (tests/unit/native).
"""

from __future__ import annotations

import argparse
import importlib
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
build = importlib.import_module("build")
WORK = HERE.parents[1] / "build" / "fuzz"
QEMU = "qemu-{}-static"


def compiled(target: str, machine: str, level: str) -> Path:
    """The target as a program that reads names of files and prints a sum of all results for each."""
    program = WORK / f"{target}-{machine}-{level}"
    program.parent.mkdir(parents=True, exist_ok=True)
    zig = build.find_compiler(f"{machine}-linux-musl")
    flags = [*build.FLAGS, "-static", "-DPS_REPLAY", "-DPS_LEVEL=fuzz", "-Wno-unused-function", "-fno-sanitize=all"]
    flags += [*zig.level_flags(build.LEVELS[machine][level]), *build.EXTRA.get(level, [])]
    subprocess.run([*zig.command, *flags, str(HERE / f"{target}.c"), "-o", str(program)], check=True)
    return program


def sums(program: Path, machine: str, names: str) -> list[str]:
    """What a program prints for all inputs."""
    command = [str(program)] if machine == platform.machine() else [QEMU.format(machine), str(program)]
    return subprocess.run(command, input=names, capture_output=True, text=True, check=True).stdout.splitlines()


def compare(target: str, levels: list[tuple[str, str]], most: int) -> bool:
    """Whether all levels give the same; says how many inputs there were, and names the first that differs."""
    folders = (HERE / "seeds" / target, WORK / "corpus" / target)
    inputs = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())][:most]
    names = "".join(f"{path}\n" for path in inputs)
    first, wanted = levels[0], sums(compiled(target, *levels[0]), levels[0][0], names)
    good = len(wanted) == len(inputs)
    for machine, level in levels[1:]:
        found = sums(compiled(target, machine, level), machine, names)
        differing = [a.split(" ", 1)[1] for a, b in zip(wanted, found, strict=True) if a != b]
        if differing:
            print(f"{target}: {machine} {level} differs from {' '.join(first)} in {len(differing)}: {differing[0]}")
            good = False
    if good:
        print(f"{target}: {len(inputs):,} inputs, the same at {', '.join(' '.join(one) for one in levels)}", flush=True)
    return good


def main() -> int:
    """The command line."""
    targets = sorted(path.stem for path in HERE.glob("*.c"))
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(targets)}; all unless named")
    words.add_argument("--most", type=int, default=3000, help="inputs of each target")
    asked = words.parse_args()
    here = platform.machine()
    levels = [(here, level) for level in importlib.import_module("penstock.native.library").library().levels]
    levels += [("aarch64", level) for level in build.LEVELS["aarch64"] if here != "aarch64"]
    differing = [target for target in asked.targets or targets if not compare(target, levels, asked.most)]
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
