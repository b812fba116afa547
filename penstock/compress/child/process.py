"""Running one of our modules in a process of its own.

Covers: its environment, its answer, and an error that shows what it said last.
Does not cover: what the child does (convert.py, measure.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.errors import PenstockError

# Fixed thresholds send large blocks back to the system at once: peaks then follow the tensors (measured within 3 %
# of a straight line over batch sizes, against 10-96 % with glibc's moving thresholds).
STEADY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "TF_CPP_MIN_LOG_LEVEL": "3"}


class ChildFailed(PenstockError):
    """A child process ended without its answer. `code` is None where it was stopped for taking too long."""

    def __init__(self, module: str, code: int | None, said: str, timeout_s: float = 0.0) -> None:
        self.module, self.code, self.said = module, code, said
        if code is None:
            ended = f"was stopped after {timeout_s:.0f} s without an answer"
        else:
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        super().__init__(f"python -m {module} {ended}. It said last: {said or 'nothing'}")


def run_child(module: str, spec: Mapping[str, Any], *, env: Mapping[str, str] | None = None, timeout_s: float) -> Any:
    """Run `python -m module SPEC` and return the JSON it leaves in `spec['answer']`, if any."""
    with tempfile.TemporaryDirectory(prefix="penstock-child-") as folder:
        answer, place = Path(folder, "answer.json"), Path(folder, "spec.json")
        place.write_text(json.dumps({**spec, "answer": str(answer)}))
        paths = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-W", "ignore", "-m", module, str(place)]
        surroundings = {**os.environ, **STEADY, **(env or {}), "PYTHONPATH": paths}
        try:
            done = subprocess.run(
                command, env=surroundings, capture_output=True, text=True, timeout=timeout_s, errors="replace"
            )
        except subprocess.TimeoutExpired as error:
            raise ChildFailed(module, None, "", timeout_s) from error
        if done.returncode:
            last = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()][-3:]
            raise ChildFailed(module, done.returncode, " | ".join(last)[-600:])
        return json.loads(answer.read_text()) if answer.exists() else None
