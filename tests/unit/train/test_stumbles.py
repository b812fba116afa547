"""What newcomers stumbled over, each mended once."""

from __future__ import annotations

import csv
import json

import cv2
import numpy as np
import pytest

from penstock.bench.verdict import _bottleneck
from penstock.cli import predict as predict_command
from penstock.cli.arguments.backend import default_backend
from penstock.cli.train import _failed_early, _refuse_used
from penstock.core.errors import InvalidInput, TooManyErrors
from penstock.core.events import events
from penstock.core.schema import Field
from penstock.guard.write_predictions import ENDINGS, write_predictions
from penstock.train.config import Config, check
from penstock.train.flow import prepare, streams
from penstock.train.inspect import check_data
from penstock.train.roles import judge


@pytest.mark.parametrize(
    ("memory", "told"), [("2", "would be 2 bytes. Write a unit: --memory 2GB"), ("20MB", "alone takes about")]
)
def test_a_limit_that_cannot_be_meant_is_refused_before_anything_starts(memory, told):
    with pytest.raises(InvalidInput, match=told):
        check(Config(data="x.csv", memory=memory, backend="jax"))
    assert check(Config(data="x.csv", memory="1GB", backend="jax"))


@pytest.mark.parametrize(
    ("name", "values", "ignored"),
    [
        ("id", np.random.default_rng(0).permutation(1000)[:64], True),
        ("customer_id", np.arange(64) * 7, True),
        ("count", np.arange(64), True),
        ("age", np.arange(64) % 50, False),
        ("width", np.random.default_rng(0).permutation(1000)[:64], False),
        ("id", np.arange(8), False),
        ("paid", np.random.default_rng(0).permutation(1000)[:64], False),
    ],
)
def test_a_key_is_no_feature(name, values, ignored):
    role = judge(Field(name, np.dtype(np.int64), ()), list(values))
    assert (role.kind == "ignored") == ignored, role
    assert not ignored or "key" in role.why


def folder_of_pictures(path, damaged):
    for index in range(24):
        folder = path / ("cat" if index % 2 else "dog")
        folder.mkdir(exist_ok=True, parents=True)
        file = folder / f"{index:02d}.jpg"
        assert cv2.imwrite(str(file), np.full((20, 20, 3), index * 9, np.uint8))
        if index in damaged:
            file.write_bytes(file.read_bytes()[:40])
    return path


def test_damaged_pictures_are_left_out_and_named_once(tmp_path):
    data = str(folder_of_pictures(tmp_path / "p", damaged={5, 8}))
    heard = []
    remove = events.listen(lambda e: heard.append(e.values["text"]) if e.kind == "data.skipped" else None)
    try:
        config = check(Config(data=data, on_error="skip", batch=4, val=0.0, backend="jax"))
        found = streams(config, prepare(config))
        for _ in range(2):
            assert sum(len(y) for _, y in found.train) == 22
    finally:
        remove()
    assert len(heard) == len(set(heard)) == 2
    assert "05.jpg" in "".join(heard) and "08.jpg" in "".join(heard)
    config = check(Config(data=data, on_error="skip", max_errors=1, batch=4, val=0.0, backend="jax"))
    with pytest.raises(TooManyErrors):
        list(streams(config, prepare(config)).train)


def test_max_errors_goes_with_skip():
    with pytest.raises(InvalidInput, match="goes with --on-error skip"):
        check(Config(data="x.csv", max_errors=3))
    with pytest.raises(InvalidInput, match="must be raise or skip"):
        check(Config(data="x.csv", on_error="ignore"))


def test_a_target_for_pictures_in_folders_is_refused(tmp_path):
    data = str(folder_of_pictures(tmp_path / "p", damaged=set()))
    check_data(data, query=None, target=None)
    with pytest.raises(InvalidInput, match="Leave --target out"):
        check_data(data, query=None, target="foo")


def test_a_run_that_failed_while_preparing_does_not_block_its_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="holds a run already"):
        _refuse_used(tmp_path)
    line = {"t": 1.0, "kind": "run.end", "who": "train", "status": "failed", "error": "no"}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    assert _failed_early(tmp_path)
    _refuse_used(tmp_path)
    (tmp_path / "prepare.json").write_text("{}")
    with pytest.raises(InvalidInput, match="holds a run already"):
        _refuse_used(tmp_path)


BATCHES = [
    {"prediction": np.array(["a", "b, c"], object), "probabilities": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)},
    {"prediction": np.array(["ä"], object), "probabilities": np.array([[np.nan, 0.5]], np.float32)},
]


def test_predictions_as_csv(tmp_path):
    assert write_predictions(iter(BATCHES), tmp_path / "p.csv") == 3
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == ["a", "b, c", "ä"]
    assert [float(row["probabilities_1"]) for row in rows] == [0.75, 0.0, 0.5]


def test_predictions_as_json_lines(tmp_path):
    assert write_predictions(iter(BATCHES), tmp_path / "p.jsonl") == 3
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[1] == {"prediction": "b, c", "probabilities": [1.0, 0.0]}
    assert rows[2] == {"prediction": "ä", "probabilities": [None, 0.5]}


def test_the_command_knows_the_endings():
    assert predict_command.ENDINGS == ENDINGS


def test_the_backend_is_one_that_is_installed(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "torch" else None)
    assert default_backend() == "torch"


def test_storage_is_not_blamed_where_decoding_is_slower():
    class Waiting:
        waited = 0.9

    caps = {"storage": 270_000.0, "decode": 10_000.0, "prepare": 10_000.0}
    assert _bottleneck(Waiting(), 500.0, 100.0, caps) == "decode"
    assert _bottleneck(Waiting(), 500.0, 100.0, {**caps, "storage": 2_000.0}) == "storage"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"batch": 0}, "--batch must be at least 1, not 0."),
        ({"epochs": -1}, "--epochs must be at least 1, not -1."),
        ({"workers": 0}, "--workers must be at least 1, not 0."),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0, not 0."),
        ({"checkpoint_minutes": -2.0}, "--checkpoint-minutes must not be below 0, but is -2."),
    ],
)
def test_a_refusal_names_only_what_is_wrong(wrong, told):
    with pytest.raises(InvalidInput) as refused:
        check(Config(data="x.csv", **wrong))
    assert str(refused.value) == told
