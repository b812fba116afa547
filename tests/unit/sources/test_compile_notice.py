"""The word when a parser is compiled, in processes of their own: what is compiled stays in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import numpy as np
from penstock.sources import tfrecord_kernel
from penstock.sources.crc32c import byte_array
offsets = np.empty(4, np.int64)
for _ in range(2):
    tfrecord_kernel.walk(byte_array(b""), 0, 0, True, 1000, offsets, offsets.copy())
"""


def said(folder: Path) -> str:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_compiling_is_told_once_and_loading_is_not(tmp_path: Path) -> None:
    assert said(tmp_path).count("Compiling the TFRecord parser for this processor: once") == 1
    assert "Compiling" not in said(tmp_path)
