"""Users' mistakes and damaged data: one clear sentence each."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import DataError, InvalidInput, NotFound, RaggedBatch, SchemaChanged, TooLarge, TooManyErrors
from tests.contract.chains import double, rows, units


def test_ragged_rows_name_column_shapes_and_remedy():
    ds = rows(8).map(lambda n: {"tokens": np.arange(int(n) + 1)}).batch(4)
    with pytest.raises(RaggedBatch, match=r"'tokens' has rows of shape \(1,\) and \(2,\).*pad"):
        list(ds)


def test_padding_makes_them_one_array():
    ds = rows(3).map(lambda n: {"tokens": np.arange(int(n) + 1), "n": n}).batch(3, pad=-1)
    (batch,) = ds
    assert batch["tokens"].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert batch["n"].tolist() == [0, 1, 2]


def test_skipping_failing_samples_is_counted_and_bounded():
    def faulty(n):
        if n % 10 == 3:
            raise ValueError("three")
        return n

    kept = [int(n) for n in rows(100).map(faulty, on_error="skip")]
    assert kept == [n for n in range(100) if n % 10 != 3]
    with pytest.raises(TooManyErrors, match="max_errors allows 2"):
        list(rows(100).map(faulty, on_error="skip", max_errors=2))


def test_a_function_must_keep_its_columns():
    with pytest.raises(DataError, match="returned"):
        list(rows(9).map(lambda n: {"a": n} if n < 5 else {"b": n}))


def test_interleaving_datasets_that_differ():
    with pytest.raises(SchemaChanged, match="columns"):
        list(rows(9).map(lambda n: {"a": n}).interleave(rows(9).map(lambda n: {"b": n})))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rows().batch(0), "batch size must be a whole number of at least 1, not 0"),
        (lambda: rows().batch(2.5), "not 2.5"),
        (lambda: rows().map(3), "map needs a function, not int"),
        (lambda: rows().shard(3, 3), "rank 3 is not one of 0..2"),
        (lambda: rows().shuffle(seed=1, window="many"), "is not a size"),
        (lambda: rows().take(-1), "at least 0"),
        (lambda: rows().interleave([]), "at least one other"),
        (lambda: rows().interleave(rows(), weights=[1]), "2 weights"),
        (lambda: rows().zip(3), "zip needs datasets, not int"),
        (lambda: rows().map(double, workers="gpu"), "workers must be"),
        (lambda: rows().shuffle(1, wrong=2), "no argument 'wrong'"),
        (lambda: ps.limit("a lot"), "is not a size"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


def test_missing_paths(tmp_path):
    with pytest.raises(NotFound, match="nothing"):
        ps.read_csv(str(tmp_path / "nothing*.csv"))
    with pytest.raises(NotFound, match="absent"):
        ps.read_images(str(tmp_path / "absent"))


def test_a_limit_that_leaves_nothing_is_told_before_the_first_step():
    with ps.limit("1MB"), pytest.raises(TooLarge, match="budget|limit"):
        next(iter(rows().batch(2)))


def test_unknown_length_says_so():
    ds = units().filter(lambda x: x > 3)
    assert ds.cardinality is None
    with pytest.raises(TypeError, match="not known"):
        len(ds)


def test_schema_shows_dtypes_and_shapes():
    ds = rows(5).map(lambda n: ({"a": np.float32(n), "t": "x"}, np.zeros((2, 3), np.uint8))).batch(2)
    schema = ds.schema
    assert schema["0.a"].dtype == np.float32
    assert schema["1"].shape == (2, 2, 3)
    assert schema["0.t"].text
