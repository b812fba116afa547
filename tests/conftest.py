"""Kernels as they are written now, how property tests draw, what a test has leased, processors and shells that differ.

Property tests draw the same examples each time, so that a run can be repeated. `PENSTOCK_HYPOTHESIS=explore` draws new
ones and many more, for a search of minutes or hours.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from penstock.engine.pipe import pipe

ROOT = Path(__file__).parents[1]

BFLOAT16 = "import torch; x = torch.ones(64, 64).bfloat16(); torch.nn.functional.linear(x, x)"


def _keep_to_instructions_that_work() -> None:
    """On some virtual machines oneDNN's AMX kernels for bfloat16 die of an illegal instruction: do without them."""
    cpus = Path("/proc/cpuinfo")
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not cpus.exists() or "amx_bf16" not in cpus.read_text():
        return
    if subprocess.run([sys.executable, "-c", BFLOAT16], check=False).returncode == -signal.SIGILL:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"


def _take_ctrl_c() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_take_ctrl_c()
_keep_to_instructions_that_work()  # before workers and children are started, which inherit it

if (ROOT / "native" / "build.py").exists():  # tests run against the kernels as they are written now
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py")], check=True, stdout=subprocess.DEVNULL)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=10_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "repeatable"))


def pytest_runtest_teardown() -> None:
    """A stream that a test left behind ends here, not in the middle of another test: its watchdog would speak there.

    A collection takes up to a second once a framework is loaded, so it is made only where such a thread is alive.
    """
    if any(thread.name in {"penstock-watchdog", "penstock-driver"} for thread in threading.enumerate()):
        gc.collect()


@pytest.fixture
def newly_held() -> Callable[[], dict[str, int]]:
    """Asks who holds more of the process's data budget than when the test began, and how many bytes more."""

    def holders() -> dict[str, int]:
        gc.collect()
        budget = pipe().budget
        return {} if budget is None else budget.holders()

    before = holders()
    return lambda: {who: n - before.get(who, 0) for who, n in holders().items() if n > before.get(who, 0)}
