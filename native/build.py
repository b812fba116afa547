"""Compiles native/*.c into the one library that penstock loads: `python native/build.py`.

Covers: finding a compiler ($CC, cc, gcc, clang, else the ziglang package), one object per file and level of
instructions, only what changed, other targets (`--target aarch64-linux-gnu`), a sanitizer build (`--sanitize`).
Does not cover: loading (penstock/native/library.py). Nothing here is needed at run time, and nothing but the standard
library is imported, so that it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parent
LIBRARY = ROOT / "penstock" / "native" / "_kernels.so"
OBJECTS = ROOT / "build" / "native"

ONCE = {"array_memory.c", "library.c"}
"""Files that are compiled once; every other one is compiled for each level."""

LEVELS = {
    "x86_64": {"baseline": "x86-64", "avx2": "x86-64-v3", "avx512": "x86-64-v4"},
    "aarch64": {"baseline": "armv8-a", "crc": "armv8-a+crc"},
}
"""Levels of instructions by processor, and what compilers call them. NEON is part of armv8-a."""

EXTRA = {"avx2": ["-mpclmul"], "avx512": ["-mpclmul"]}

FLAGS = ["-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fwrapv", "-fno-math-errno"]
"""The same bits at every level: no fused multiply-add, integers that wrap."""

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]

TRIAL = """typedef short v __attribute__((vector_size(16)));
v f(v a, v b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
"""
"""What a compiler must know: vectors that are not bound to a processor (GCC 12, clang 5)."""


ZIG = "ziglang==0.17.0"
"""A compiler from PyPI, for machines that have none and for wheels of other machines."""


class BuildError(Exception):
    """The library could not be built; the message says why and what to do."""


@dataclass(frozen=True)
class Compiler:
    """A command, and for which machine it compiles."""

    command: tuple[str, ...]
    machine: str
    zig: bool = False

    def level_flags(self, march: str) -> list[str]:
        if not self.zig:
            return [f"-march={march}"]
        return [f"-mcpu={march.replace('armv8-a', 'generic').replace('-', '_')}"]


def _zig() -> tuple[str, ...] | None:
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    return ("zig", "cc") if shutil.which("zig") else None


def _works(command: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "trial.c")
        source.write_text(TRIAL)
        tried = [*command, "-std=c11", "-fPIC", "-shared", str(source), "-o", str(Path(folder, "trial.so"))]
        with contextlib.suppress(OSError):
            return subprocess.run(tried, capture_output=True).returncode == 0
    return False


def _present() -> tuple[str, ...] | None:
    """$CC, or the first compiler of this machine that knows enough; clang's vectors are faster than GCC's."""
    asked = os.environ.get("CC")
    for words in [shlex.split(asked)] if asked else [["clang"], ["cc"], ["gcc"]]:
        if shutil.which(words[0]) and _works(words):
            return tuple(words)
    return None


def has_compiler() -> bool:
    """Whether nothing must be installed to build for this machine."""
    return _present() is not None


def find_compiler(target: str | None = None) -> Compiler:
    """The compiler that is there; for another machine, and where there is none, the one of the ziglang package."""
    machine = (target or platform.machine()).split("-")[0].replace("arm64", "aarch64").replace("AMD64", "x86_64")
    present = _present() if target is None else None
    if present is not None:
        return Compiler(present, machine, zig=any("zig" in word for word in present))
    zig = _zig()
    if zig is None:
        raise BuildError(
            "No C compiler was found (looked for $CC, cc, gcc >= 12, clang, ziglang). "
            f"Install one, or run: pip install {ZIG}"
        )
    return Compiler((*zig, "-target", target) if target else zig, machine, zig=True)


def digest(parts: Sequence[str] = ()) -> str:
    """A name for the sources as they are, with all that is in `parts`."""
    found = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _headers() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.h")))


def _compile(compiler: Compiler, source: Path, level: str, march: str, flags: Sequence[str]) -> Path:
    """One object; it is named for all that it is made of, so that it is made once."""
    command = [*compiler.command, *FLAGS, *WARNINGS, *compiler.level_flags(march), *EXTRA.get(level, ()), *flags]
    command += [f"-DPS_LEVEL={level}", "-c", str(source)]
    name = hashlib.sha256(" ".join(command).encode() + _headers() + source.read_bytes()).hexdigest()[:16]
    made = OBJECTS / f"{source.stem}_{level}_{name}.o"
    if not made.exists():
        for old in OBJECTS.glob(f"{source.stem}_{level}_*.o"):
            if len(list(OBJECTS.glob(f"{source.stem}_{level}_*.o"))) > 4:
                old.unlink(missing_ok=True)
        part = made.with_suffix(f".{os.getpid()}.part.o")
        _run([*command, "-o", str(part)])
        part.replace(made)
    return made


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr.strip()}")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One build at a time in this folder."""
    import fcntl

    OBJECTS.mkdir(parents=True, exist_ok=True)
    with open(OBJECTS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(library: Path = LIBRARY, target: str | None = None, sanitize: bool = False) -> Path:
    """Compile what changed and link; nothing is done when nothing changed."""
    flags = SANITIZERS if sanitize else []
    stamp = library.with_suffix(".built")
    state = digest([Path(__file__).read_text(), str(target), *flags, os.environ.get("CC", "")])
    if library.exists() and stamp.exists() and stamp.read_text() == state:
        return library
    with _alone():
        compiler = find_compiler(target)
        jobs = []
        for source in sorted(SOURCES.glob("*.c")):
            levels = LEVELS.get(compiler.machine)
            if levels is None:
                raise BuildError(f"There are no kernels for {compiler.machine}; there are for {', '.join(LEVELS)}.")
            for level, march in list(levels.items())[: 1 if source.name in ONCE else None]:
                jobs.append((compiler, source, level, march, flags))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: _compile(*job), jobs))
        library.parent.mkdir(parents=True, exist_ok=True)
        part = library.with_name(f"{library.name}.{os.getpid()}.part")
        strip = [] if sanitize else ["-Wl,-s"]
        _run([*compiler.command, *flags, "-shared", *strip, *map(str, objects), "-o", str(part)])
        part.replace(library)  # a process that has the old one loaded keeps it
        stamp.write_text(state)
    return library


def main() -> int:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--target", help="another machine, for example aarch64-linux-gnu.2.17 (needs ziglang)")
    words.add_argument("--out", type=Path, default=LIBRARY)
    words.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    asked = words.parse_args()
    try:
        print(build(asked.out, asked.target, asked.sanitize))
    except BuildError as error:
        print(f"The kernels were not built.\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
