"""Cases that need a process of their own for each Keras backend, as tests that can be chosen one by one.

All chosen cases of a backend run in one process: importing a framework takes longer than most of them.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Outcome = Callable[[str], str | None]
"""What went wrong in a case, by its name; None if nothing did."""


def case_names(path: Path) -> list[str]:
    """The cases of a file, found without importing it: that would import Keras."""
    found = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [name for name in found if name.startswith("case_")]


def run_cases(request: pytest.FixtureRequest, path: Path, backend: str, folder: Path) -> Outcome:
    """Run those cases of the backend that pytest was asked for."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.module is request.module]
    chosen = [call.params["case"] for call in calls if call is not None and call.params.get("backend") == backend]
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    env |= {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    env |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(path), str(folder), *chosen]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1900, check=False)
    passed = set(re.findall(r"^passed (\w+)", done.stdout, re.MULTILINE))

    def outcome(name: str) -> str | None:
        return None if name in passed else done.stdout[-6000:] + done.stderr[-3000:]

    return outcome
