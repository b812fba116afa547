"""The canary: what the guard uses of Keras beyond its public interface is there, in one file only."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
HERE = {"guard/keras/private.py", "feed/keras.py"}
"""The feed is one of Keras' data adapters, a private class: the second and last place."""

CANARY = """
import keras, numpy as np
from penstock.guard.keras import private

inputs = keras.Input((3,))
model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
model.compile("adam", "mse", metrics=["mae"])
private.build(model, (np.zeros((2, 3), "f"), np.zeros((2, 2), "f"), None))
assert private.missing(model) == [], private.missing(model)
assert private.has_loss(model) and len(private.given_losses(model)) == 1
assert private.given_metrics(model) == ["mae"] and private.takes_training(model)
assert private.compile_settings(model)["loss"] == "mse"
assert [layer.name for layer in private.all_layers(model, include_self=False)] == [l.name for l in model.layers]
assert len(private.loss_terms(private.compiled_loss(model))) == 1
kernel = model.layers[-1].kernel
private.point([kernel], private.values_of([kernel]))
inputs, outputs = private.structures(model)
assert outputs.shape == (None, 2)
del model._loss_tracker
try:
    private.check_names(model)
except Exception as error:
    assert "_loss_tracker" in str(error) and "known to work with Keras" in str(error), error
else:
    raise AssertionError("a missing name is not noticed")
for version in ("3.7.0", "4.0.0"):
    try:
        private.check_version(version)
    except Exception as error:
        assert "does not work with Keras" in str(error)
    else:
        raise AssertionError(version)
private.check_version("3.8.0")
print("sings")
"""


def test_the_private_names_are_there():
    pytest.importorskip("keras")
    found = subprocess.run([sys.executable, "-c", CANARY], capture_output=True, text=True, check=False)
    assert found.stdout.strip().endswith("sings"), found.stderr[-3000:]


def test_the_installed_keras_is_one_that_is_known():
    version = importlib.metadata.version("keras")
    source = (PACKAGE / "guard/keras/private.py").read_text()
    bounds = next(
        n for n in ast.parse(source).body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple)
    )
    first, last = ast.literal_eval(bounds.value)
    assert first <= tuple(int(part) for part in version.split(".")[:2]) <= last, (
        "run the contract tests, then raise LAST"
    )


def test_private_names_stand_in_one_file():
    names = {
        "_flatten_layers",
        "_compile_loss",
        "_compile_metrics",
        "_symbolic_build",
        "_direct_assign",
        "_flat_losses",
    }
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            private = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src")
            if place not in HERE and (private or (isinstance(node, ast.Attribute) and node.attr in names)):
                wrong.append(f"{place}:{node.lineno}")
    assert wrong == []
