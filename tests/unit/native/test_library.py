"""The loader: levels, versions, and clear words when the library is not there."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import PenstockError
from penstock.native import library as loader
from penstock.native.library import INT64, Kernel, KernelsMissing, Library, forced, library
from tests.unit.native.levels import LEVELS

ROOT = Path(loader.__file__).parents[2]


def test_one_library_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_library", None)
    found: list[Library] = []
    threads = [threading.Thread(target=lambda: found.append(library())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_can_be_forced_and_ends(level: str) -> None:
    best = library().level
    with forced(level):
        assert library().level == level
    assert library().level == best == LEVELS[-1] or os.environ.get("PENSTOCK_KERNELS")


def test_a_level_that_the_processor_lacks_is_refused_by_name() -> None:
    with pytest.raises(KernelsMissing, match="warp9.*baseline"), forced("warp9"):
        pass


def test_the_environment_forces_a_level() -> None:
    code = "from penstock.native.library import library; print(library().level)"
    environment = {**os.environ, "PENSTOCK_KERNELS": "baseline", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "baseline"


def test_a_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="make native"):
        Library(tmp_path / "_kernels.so")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_kernels.so").write_bytes(b"not a library")
    with pytest.raises(KernelsMissing, match="cannot be loaded"):
        Library(tmp_path / "_kernels.so")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "ABI", loader.ABI + 1)
    with pytest.raises(KernelsMissing, match=f"version {loader.ABI - 1}, this penstock needs {loader.ABI}"):
        Library(library().path)


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(KernelsMissing, match="no_such_kernel"):
        Kernel("no_such_kernel", INT64)()


def test_guard_pages_kill_whoever_reads_past_the_end() -> None:
    code = (
        "import ctypes, sys\n"
        "from tests.unit.native.guarded import guarded\n"
        "room = guarded(b'abc')\n"
        "print(bytes(room), flush=True)\n"
        "ctypes.string_at(room.ctypes.data, 4)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ASAN_OPTIONS": "handle_segv=0:detect_leaks=0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "b'abc'" and done.returncode == -signal.SIGSEGV


def test_the_library_names_its_compiler() -> None:
    assert library().compiler.startswith("GCC ") or "Clang" in library().compiler


def test_calls_release_the_gil() -> None:
    found = library()._file["ps_gather_copy_baseline"]
    assert isinstance(found, ctypes._CFuncPtr) and not found._flags_ & ctypes._FUNCFLAG_PYTHONAPI  # type: ignore[attr-defined]


def test_addresses_are_those_of_the_arrays() -> None:
    array = np.arange(10)
    assert loader.address(array[3:]) == array.ctypes.data + 3 * array.itemsize
