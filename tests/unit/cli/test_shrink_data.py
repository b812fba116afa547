"""What `penstock shrink --data` names: arrays, functions, pictures, tables of a run, and rows that are kept back."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock.cli.shrink.data import open_sides
from penstock.compress.leases import budget
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.train.config import Config, write_config
from penstock.train.flow import prepare, streams
from penstock.train.recipe import keep_recipe, recipe_of_model, write_recipe

X = np.arange(230, dtype=np.float32).reshape(115, 2)
Y = np.arange(115) % 3


def firsts(batches: object) -> list[float]:
    """The first value of every row, by which rows are told apart."""
    return [float(row) for x, _ in batches for row in np.asarray(x).reshape(len(x), -1)[:, 0]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_a_share_of_arrays_is_kept_back_and_never_trained_on(tmp_path: Path, form: str) -> None:
    (tmp_path / "rows").mkdir()
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    np.save(tmp_path / "rows" / "x.npy", X)
    np.save(tmp_path / "rows" / "y.npy", Y)
    data = str(tmp_path / ("rows.npz" if form == "npz" else "rows"))
    sides = open_sides("model.keras", data, None, batch=8, val=0.2)
    trained, judged = firsts(sides.data), firsts(sides.held_out)
    assert sorted(trained + judged) == X[:, 0].tolist()
    assert len(judged) == 23
    assert firsts(sides.held_out) == judged  # a second pass gives the same
    assert "20% of" in sides.kept
    for x, y in sides.data or ():
        np.testing.assert_array_equal(y, (x[:, 0] / 2) % 3)
    assert "a batch of rows" not in budget().holders()


def test_named_inputs_are_kept_back_together(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", **{"x.a": X, "x.b": X + 1, "y.#0": Y, "y.#1": Y + 1})
    sides = open_sides("model.keras", str(tmp_path / "two.npz"), None, batch=16, val=0.1)
    for x, y in sides.held_out or ():
        np.testing.assert_array_equal(x["b"], x["a"] + 1)
        np.testing.assert_array_equal(y[1], y[0] + 1)


def test_nothing_is_kept_back_where_that_was_not_asked_or_cannot_be(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    np.savez(tmp_path / "few.npz", x=X[:1], y=Y[:1])
    (tmp_path / "mine.py").write_text("import numpy as np\ndef rows():\n    return [(np.zeros((2, 2)), np.zeros(2))]\n")
    data = str(tmp_path / "rows.npz")
    assert open_sides("m.keras", data, None, batch=8, val=0).held_out is None
    assert open_sides("m.keras", f"{tmp_path}/mine.py:rows", None, batch=8, val=0.1).held_out is None
    both = open_sides("m.keras", data, data, batch=8, val=0.1)
    assert firsts(both.data) == firsts(both.held_out) == X[:, 0].tolist()
    with pytest.raises(InvalidInput, match=r"Too few rows \(1\)"):
        open_sides("m.keras", str(tmp_path / "few.npz"), None, batch=8, val=0.1)
    with pytest.raises(InvalidInput, match="0 to 0.9, not 2"):
        open_sides("m.keras", data, None, batch=8, val=2)


def test_what_is_wrong_with_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"not a zip file")
    np.savez(tmp_path / "half.npz", x=X)
    (tmp_path / "fails.py").write_text("def rows():\n    raise ValueError('no disk')\n")
    for data, kind, said in (
        ("bad.npz", BadData, "not an .npz file"), ("half.npz", BadData, "but no y"), ("none.npz", NotFound, "no data"),
        ("fails.py:rows", InvalidInput, "no disk"),
    ):  # fmt: skip
        with pytest.raises(kind, match=said):
            open_sides("m.keras", f"{tmp_path}/{data}", None, batch=8, val=0.1)


def keras_file(path: Path, shape: list[int | None]) -> str:
    """A .keras file as far as its input shape is read from it."""
    layers = [{"class_name": "InputLayer", "config": {"batch_shape": shape}}]
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {"layers": layers}}))
    return str(path)


def pictures(folder: Path) -> str:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(20):
            value = 10 * i + (label == "dog")
            cv2.imwrite(str(folder / label / f"{i}.png"), np.full((12, 12, 3), value, np.uint8))
    return str(folder)


def test_pictures_come_in_the_size_that_the_model_takes(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    sides = open_sides(keras_file(tmp_path / "m.keras", [None, 8, 8, 3]), photos, None, batch=7, val=0.25)
    trained, judged = firsts(sides.data), firsts(sides.held_out)
    assert len(judged) == 10
    assert len(set(trained) | set(judged)) == 40
    for x, y in sides.data or ():
        assert x.shape[1:] == (8, 8, 3)
        np.testing.assert_array_equal(y, x[:, 0, 0, 0] % 10)
    wide = open_sides(keras_file(tmp_path / "wide.keras", [None, 8, 16, 3]), photos, None, batch=7, val=0.25)
    assert {x.shape[1:] for x, _ in wide.data or ()} == {(8, 16, 3)}


def test_the_preparation_goes_with_the_smaller_model(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    sides = open_sides(keras_file(tmp_path / "m.keras", [None, 8, 16, 3]), photos, None, batch=7, val=0.25)
    (tmp_path / "elsewhere").mkdir()
    small = Path(keras_file(tmp_path / "elsewhere" / "small.keras", [None, 8, 16, 3]))
    assert keep_recipe(sides.recipe, small) == small.with_name("small.prepare.json")
    again = open_sides(str(small), photos, None, batch=7, val=0.25)
    assert again.recipe == sides.recipe
    assert recipe_of_model(small).target.names == ("cat", "dog")
    keep_recipe(None, small)  # another model is written there, of which nothing is known
    with pytest.raises(NotFound, match=r"small\.prepare\.json or prepare\.json"):
        recipe_of_model(small)


def test_a_models_own_preparation_comes_before_that_of_the_folder(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,label\n" + "".join(f"{i},{'yes' if i % 3 else 'no'}\n" for i in range(50)))
    recipe = prepare(Config(str(table)))
    write_recipe(tmp_path, recipe)
    named = dataclasses.replace(recipe, target=dataclasses.replace(recipe.target, classes=("1", "2")))
    keep_recipe(named, tmp_path / "small.keras")
    assert recipe_of_model(tmp_path / "small.keras") == named
    assert recipe_of_model(tmp_path / "model.keras") == recipe


def test_tables_are_prepared_as_the_models_run_has_prepared_them(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = [f"{i},{i * 2},{'yes' if i % 3 else 'no'}" for i in range(400)]
    table.write_text("\n".join(["a,b,label", *lines]))
    with pytest.raises(InvalidInput, match=r"prepare\.json, which `penstock train` leaves beside a model"):
        open_sides(str(tmp_path / "m.keras"), str(table), None, batch=50, val=0.1)
    config = Config(str(table), val=0.2, seed=5, batch=64)
    recipe = prepare(config)
    run = tmp_path / "run"
    write_config(run, config)
    write_recipe(run, recipe)
    sides = open_sides(str(run / "model.keras"), str(table), None, batch=50, val=0.1)
    own = streams(config, recipe)
    assert sorted(firsts(sides.held_out)) == sorted(firsts(own.val))  # the run's rows and scale, not --val's
    assert sorted(firsts(sides.data)) == sorted(firsts(own.train))
    assert "as in the model's own run" in sides.kept
    whole = open_sides(str(run / "model.keras"), str(table), str(table), batch=50, val=0.1)
    assert len(firsts(whole.held_out)) == 400
