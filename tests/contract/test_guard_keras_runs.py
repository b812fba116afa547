"""Whole runs of fit() on every Keras backend: recomputation, rehearsal, faults in every phase, crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "guard_keras_run_cases.py"


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "backend",
    ["torch", pytest.param("tensorflow", marks=pytest.mark.slow), pytest.param("jax", marks=pytest.mark.slow)],
)
def test_keras_run_cases(backend, tmp_path):
    """Each backend needs its own process; one process runs all cases and names those that failed."""
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    env |= {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    env |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(CASES), str(tmp_path)], env=env, capture_output=True, text=True, timeout=1900, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "all cases passed" in done.stdout
