"""Device settings are made before frameworks start, and said to be too late afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.core.errors import InvalidInput
from penstock.guard.devices import setup_devices

CHILD = """
import json, os, sys
from penstock.guard.devices import setup_devices
early = setup_devices()
seen = {name: name in sys.modules for name in ("tensorflow", "jax", "torch")}
import jax
jax.devices()
late = setup_devices(frameworks=("jax",))
keys = ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE", "PYTORCH_CUDA_ALLOC_CONF")
print(json.dumps([early.done, early.too_late, seen, late.too_late, [os.environ.get(k) for k in keys], str(late)]))
"""


def test_before_and_after_a_framework_starts():
    env = {**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, timeout=280, check=True
    )
    early, too_late, imported, late, variables, text = json.loads(done.stdout)
    assert set(early) == {"tensorflow", "jax", "torch"} and not too_late
    assert not any(imported.values())
    assert "in use already" in late["jax"] and "too late" in text
    assert variables == ["true", "false", "expandable_segments:True"]


def test_unknown_framework():
    with pytest.raises(InvalidInput, match="mxnet"):
        setup_devices(frameworks=("mxnet",))


def test_a_limit_that_cannot_be_set_is_not_called_too_late(monkeypatch):
    """Nothing is late before a framework is imported; the reason is another, and is said."""
    for name in ("tensorflow", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "")
    told = str(setup_devices("2GB", frameworks=("tensorflow", "torch")))
    assert "tensorflow: not set, its limit can be set only once it is imported" in told
    assert "torch: not set, its limit needs torch imported" in told and "too late" not in told
