"""fit() on every Keras backend: the mathematics of the whole batch, whatever the split and whatever fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BACKENDS = ["torch", "tensorflow", "jax"]
CASES = Path(__file__).parent / "guard_keras_cases.py"


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_cases(backend, tmp_path):
    """Each backend needs its own process; one process runs all cases and names those that failed."""
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    env |= {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    env |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(CASES), str(tmp_path)], env=env, capture_output=True, text=True, timeout=1400, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "all cases passed" in done.stdout
