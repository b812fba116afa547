"""The examples run and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_resume():
    assert "nothing lost, nothing twice: True" in run("resume.py")


def test_torch_table():
    accuracy = float(run("torch_table.py").split("accuracy ")[1].split()[0])
    assert accuracy > 0.75
