from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys
for framework in ("torch", "tensorflow", "jax", "keras"):
    sys.modules[framework] = None
from penstock.core.errors import MissingExtra
from penstock.dataset import Dataset
from tests.stand_ins import NumberRows
ds = Dataset.of(NumberRows(4)).batch(2)
for framework in ("torch", "tensorflow", "jax", "keras"):
    try:
        getattr(ds, framework)()
    except MissingExtra as error:
        assert error.extra == framework
        print(error)
"""


def test_an_absent_framework_is_named():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split("'")[1] for line in done.stdout.splitlines()] == [
        f"penstock[{framework}]" for framework in ("torch", "tensorflow", "jax", "keras")
    ]
