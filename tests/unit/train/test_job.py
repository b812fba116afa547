"""How a run ends: metrics.json is strict JSON, whatever a model came to; errors say what to do."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.train.inspect import ReaderSettings
from penstock.train.keras.job import metrics_of, save_model, told
from penstock.train.recipe import DataRecipe, Target

LOGS = {"loss": [2.0, float("nan")], "val_loss": [float("inf"), float("-inf")], "mae": [0.4, 0.25]}


def test_numbers_that_json_does_not_know_are_none():
    recipe = DataRecipe(ReaderSettings("csv", target="price"), Target("price", "number", mean=10.0, std=200.0))
    found = metrics_of(SimpleNamespace(history=LOGS), recipe, 1.5)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["final"] == {"loss": None, "val_loss": None, "mae": 0.25}
    assert found["history"]["loss"] == [2.0, None]
    assert found["in_units_of_the_target"] == {"mae": 50.0}


def test_a_full_disk_is_told_with_the_way_to_go_on():
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x/checkpoints/1")
    assert told(full, Path("runs/x")) == (
        "no space is left for runs/x/checkpoints/1. Make room, then go on with: penstock train --resume --out runs/x"
    )
    assert "no space is left for runs/x." in told(OSError(errno.ENOSPC, "No space"), Path("runs/x"))
    assert told(ValueError("odd"), Path("runs/x")) == "ValueError: odd"


class TooLargeForTheDisk:
    """Writes half of itself, then fails as Keras does when the disk is full."""

    def save(self, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_half_a_model_is_not_left_behind(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        save_model(TooLargeForTheDisk(), tmp_path / "model.keras")
    assert list(tmp_path.iterdir()) == []
