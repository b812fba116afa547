"""The framework that a command uses by default.

Covers: the environment's choice, then what is installed; nothing is imported for it.
Does not cover: loading a framework.
"""

from __future__ import annotations

import importlib.util
import os

from penstock.train.config import BACKENDS


def default_backend() -> str:
    """KERAS_BACKEND, or the first framework that is installed."""
    asked = os.environ.get("KERAS_BACKEND")
    if asked in BACKENDS:
        return asked
    return next((name for name in BACKENDS if importlib.util.find_spec(name) is not None), "tensorflow")
