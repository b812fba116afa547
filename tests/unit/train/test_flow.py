"""From files of every kind to batches that a model takes, and what is learned on the way."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import InvalidInput, NotFound, PenstockError
from penstock.sources.tfrecord.write import encode_example, write_records
from penstock.train.config import Config
from penstock.train.flow import prepare, raw_batches, streams
from penstock.train.recipe import read_recipe, write_recipe

ROWS = 300
rng = np.random.default_rng(0)
TABLE = pa.table(
    {
        "a": rng.normal(5, 2, ROWS),
        "b": pa.array([None if i % 10 == 0 else float(i) for i in range(ROWS)]),
        "colour": [["red", "green", "blue"][i % 3] for i in range(ROWS)],
        "text": [f"the {'good' if i % 2 else 'bad'} day number {i} was long" for i in range(ROWS)],
        "label": [["no", "yes"][i % 2] for i in range(ROWS)],
    }
)


def picture(i: int) -> np.ndarray:
    return np.full((20, 24, 3), 10 * (i % 2) + i % 5, np.uint8)


def png(i: int) -> bytes:
    return cv2.imencode(".png", picture(i))[1].tobytes()


def write_csv(folder):
    pyarrow.csv.write_csv(TABLE, folder / "t.csv")
    return folder / "t.csv"


def write_parquet(folder):
    pq.write_table(TABLE, folder / "t.parquet")
    return folder / "t.parquet"


def write_jsonl(folder):
    (folder / "t.json").write_text("\n".join(json.dumps(row) for row in TABLE.to_pylist()))
    return folder / "t.json"


def write_sqlite(folder):
    with sqlite3.connect(folder / "t.db") as connection:
        connection.execute("create table things (id integer primary key, a real, b real, colour text, text, label)")
        for i, row in enumerate(TABLE.to_pylist()):
            connection.execute("insert into things values (?,?,?,?,?,?)", (i, *row.values()))
    return folder / "t.db"


@pytest.mark.parametrize("write", [write_csv, write_parquet, write_jsonl, write_sqlite])
def test_tables(write, tmp_path):
    config = Config(data=str(write(tmp_path)), batch=32, val=0.1)
    recipe = prepare(config)
    assert recipe.target.classes == ("no", "yes")
    assert [category.values for category in recipe.categories] == [("blue", "green", "red")]
    assert recipe.numbers is not None and recipe.text is not None
    assert "b" in recipe.numbers.columns and len(recipe.numbers.flags) == 1
    assert {"good", "bad", "day"} <= set(recipe.text.words)
    found = streams(config, recipe)
    batches = list(found.train)
    assert len(batches) == len(found.train)
    x, y = batches[0]
    inputs = recipe.inputs()
    assert {name: value.shape[1:] for name, value in x.items()} == {name: spec.shape for name, spec in inputs.items()}
    assert {name: str(value.dtype) for name, value in x.items()} == {n: spec.dtype for n, spec in inputs.items()}
    assert found.val is not None
    rows = sum(len(y) for _, y in batches) + sum(len(y) for _, y in found.val)
    assert rows == ROWS and set(np.unique(y)) == {0, 1}
    numbers = np.concatenate([x["numbers"] for x, _ in batches])
    assert abs(numbers[:, 0].mean()) < 1e-5 and numbers[:, 0].std() == pytest.approx(1, abs=1e-3)
    assert np.isfinite(numbers).all()
    write_recipe(tmp_path, recipe)
    assert read_recipe(tmp_path) == recipe


def test_words_carry_the_label(tmp_path):
    config = Config(data=str(write_csv(tmp_path)), batch=300, val=0)
    recipe = prepare(config)
    assert recipe.text is not None
    good = 2 + recipe.text.words.index("good")
    (x, y), *_ = streams(config, recipe).train
    assert ((x["text"] == good).any(axis=1) == (y == 1)).all()


def test_a_table_of_numbers_is_read_as_a_matrix(tmp_path):
    numbers = TABLE.select(["a", "b", "label"])
    pyarrow.csv.write_csv(numbers, tmp_path / "n.csv")
    config = Config(data=str(tmp_path / "n.csv"), batch=50)
    recipe = prepare(config)
    assert recipe.reading.matrix
    x, y = next(iter(streams(config, recipe).train))
    assert x.shape == (50, 3) and x.dtype == np.float32 and set(y) == {0, 1}
    raw = list(raw_batches(config.data, recipe, query=None, batch=100))
    assert [len(x) for x in raw] == [100, 100, 100]


def test_predicting_needs_no_target_and_may_be_another_format(tmp_path):
    config = Config(data=str(write_csv(tmp_path)), batch=32)
    recipe = prepare(config)
    pq.write_table(TABLE.drop_columns(["label"]), tmp_path / "new.parquet")
    found = list(raw_batches(str(tmp_path / "new.parquet"), recipe, query=None, batch=200))
    assert [len(x["numbers"]) for x in found] == [200, 100]


def test_predicting_refuses_data_of_another_kind_by_its_columns(tmp_path):
    recipe = prepare(Config(data=str(write_csv(tmp_path)), batch=32))
    (tmp_path / "photos").mkdir()
    photos = str(image_folder(tmp_path / "photos"))
    with pytest.raises(InvalidInput, match="The model was trained on .*, which .*photos has not"):
        raw_batches(photos, recipe, query=None, batch=10)
    numbers = [name for name in TABLE.column_names if name in recipe.numbers.columns]
    words = TABLE.set_column(TABLE.column_names.index(numbers[0]), numbers[0], [["oops"] * len(TABLE)])
    pq.write_table(words, tmp_path / "words.parquet")
    with pytest.raises(PenstockError, match=f"column '{numbers[0]}' has to be numbers, as in training"):
        list(raw_batches(str(tmp_path / "words.parquet"), recipe, query=None, batch=10))


def image_folder(folder):
    for name, rest in (("cat", 0), ("dog", 1)):
        (folder / name).mkdir()
        for i in range(rest, 60, 2):
            (folder / name / f"{i}.png").write_bytes(png(i))
    return folder


def test_class_folders(tmp_path):
    config = Config(data=str(image_folder(tmp_path)), batch=16, val=0.2)
    recipe = prepare(config)
    assert recipe.picture is not None and recipe.picture.shape == (20, 24, 3)
    assert recipe.target.shown == ("cat", "dog")
    found = streams(config, recipe)
    x, y = next(iter(found.train))
    assert x.shape == (16, 20, 24, 3) and x.dtype == np.uint8
    assert (x.reshape(16, -1).max(axis=1) >= 10).tolist() == (y == 1).tolist()
    assert sum(len(y) for _, y in found.train) + sum(len(y) for _, y in found.val) == 60
    assert recipe.rows["train"] == 48


def tar_of_pictures(folder):
    with tarfile.open(folder / "p.tar", "w") as tar:
        for i in range(40):
            for ending, data in (("png", png(i)), ("cls", str(i % 2).encode())):
                entry = tarfile.TarInfo(f"{i:03}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return folder / "p.tar"


def records_of_pictures(folder):
    write_records(str(folder / "p.tfrecord"), (encode_example({"jpg": png(i), "label": i % 2}) for i in range(40)))
    return folder / "p.tfrecord"


def hdf5_of_pictures(folder):
    import h5py

    with h5py.File(folder / "p.h5", "w") as file:
        file["images"] = np.stack([picture(i) for i in range(40)])
        file["labels"] = np.arange(40) % 2
    return folder / "p.h5"


def parquet_of_pictures(folder):
    pq.write_table(
        pa.table({"image": [png(i) for i in range(40)], "label": [i % 2 for i in range(40)]}), folder / "p.parquet"
    )
    return folder / "p.parquet"


@pytest.mark.parametrize("write", [tar_of_pictures, records_of_pictures, hdf5_of_pictures, parquet_of_pictures])
def test_pictures_in_files(write, tmp_path):
    config = Config(data=str(write(tmp_path)), batch=8, image_size=16)
    recipe = prepare(config)
    assert recipe.target.classes == ("0", "1")
    found = streams(config, recipe)
    x, y = next(iter(found.train))
    side = (20, 24, 3) if write is hdf5_of_pictures else (16, 16, 3)
    assert x.shape == (8, *side) and x.dtype == np.uint8
    assert (x.reshape(8, -1).max(axis=1) >= 10).tolist() == (y == 1).tolist()


def test_a_number_as_target(tmp_path):
    values = rng.normal(100, 7, ROWS)
    pyarrow.csv.write_csv(pa.table({"x": values * 2, "price": values}), tmp_path / "p.csv")
    config = Config(data=str(tmp_path / "p.csv"), target="price", batch=64, val=0)
    recipe = prepare(config)
    assert recipe.target.task == "number" and recipe.target.mean == pytest.approx(values.mean())
    x, y = next(iter(streams(config, recipe).train))
    assert y.dtype == np.float32 and np.allclose(x[:, 0], y, atol=1e-4)


def test_rows_without_a_target_are_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("x,label\n" + "\n".join(f"{i},{['a', 'b', ''][i % 3]}" for i in range(300)))
    config = Config(data=str(tmp_path / "t.csv"), batch=64, val=0)
    recipe = prepare(config)
    assert recipe.rows == {"train": 200, "without_target": 100}
    assert sum(len(y) for _, y in streams(config, recipe).train) == 200


def test_identifiers_are_left_out_and_it_is_said(tmp_path):
    lines = [f"user-{i},{i % 7},{'ab'[i % 2]}" for i in range(400)]
    (tmp_path / "t.csv").write_text("who,x,label\n" + "\n".join(lines))
    assert "identifier" in prepare(Config(data=str(tmp_path / "t.csv"))).ignored["who"]


def test_too_many_categories_share_buckets(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.train.learn.MOST_CATEGORIES", 20)
    lines = [f"k{i % 90},{'ab'[i % 2]}" for i in range(900)]
    (tmp_path / "t.csv").write_text("kind,label\n" + "\n".join(lines))
    config = Config(data=str(tmp_path / "t.csv"), batch=900, val=0)
    recipe = prepare(config)
    category = recipe.categories[0]
    assert len(category.values) == 20 and category.buckets > 0
    x, _ = next(iter(streams(config, recipe).train))
    assert x.min() >= 1 and x.max() < category.size and len(np.unique(x)) > 80


@pytest.mark.parametrize(
    ("text", "target", "error", "match"),
    [
        ("x,z\n1,2\n", None, InvalidInput, "which column is to be learned.*x, z"),
        ("x,label,class\n1,2,3\n", None, InvalidInput, "several columns could be the target.*label, class"),
        ("x,z\n1,2\n", "q", NotFound, "no column 'q'.*x, z"),
        ("label\n1\n2\n", None, InvalidInput, "nothing to learn from"),
        ("x,label\n1,a\n2,a\n", None, InvalidInput, "only one value"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(text, target, error, match, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(error, match=match):
        prepare(Config(data=str(tmp_path / "t.csv"), target=target))


def test_pictures_without_classes(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    with pytest.raises(InvalidInput, match="one folder for each class"):
        prepare(Config(data=str(tmp_path)))


def test_pictures_of_a_single_class(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(png(0))
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    with pytest.raises(InvalidInput, match="only one class folder with pictures; training needs at least two"):
        prepare(Config(data=str(tmp_path)))


def test_arrays_of_numbers_and_text_as_bytes(tmp_path):
    import h5py

    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["spectra"] = rng.normal(0, 3, (80, 6, 5))
        file["more"] = rng.normal(9, 3, (80, 4))
        file["label"] = np.arange(80) % 3
    config = Config(data=str(tmp_path / "s.h5"), batch=16, val=0)
    recipe = prepare(config)
    x, y = next(iter(streams(config, recipe).train))
    assert x["image"].shape == (16, 6, 5, 1) and x["image"].dtype == np.float32
    assert x["numbers"].shape == (16, 4) and set(y) <= {0, 1, 2}
    names = [b"left", b"right"]
    rows = (encode_example({"way": names[i % 2], "n": float(i), "label": [b"a", b"b"][i % 2]}) for i in range(60))
    write_records(str(tmp_path / "t.tfrecord"), rows)
    recipe = prepare(Config(data=str(tmp_path / "t.tfrecord")))
    assert recipe.categories[0].values == ("left", "right") and recipe.target.classes == ("a", "b")
