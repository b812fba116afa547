from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.compress.child.spill import Spilled
from penstock.compress.data import Head, first, labels, pairs, row_keys, task_of
from penstock.compress.leases import budget, held
from penstock.compress.teacher.logits import Logits
from penstock.core.errors import BadData, DataError, InvalidInput, TooLarge
from penstock.memory import limit
from penstock.memory.meter import Meter

X = np.arange(60, dtype=np.float32).reshape(10, 6)
Y = np.arange(10) % 3


def test_an_iterator_is_refused_because_it_ends_after_one_pass() -> None:
    with pytest.raises(InvalidInput, match="used up after one pass"):
        list(pairs(iter([(X, Y)])))


@pytest.mark.parametrize("batch", [X, (X, Y, Y), {"a": X}])
def test_batches_that_are_not_pairs_are_refused(batch: object) -> None:
    with pytest.raises(InvalidInput, match="pairs"):
        list(pairs([batch]))  # type: ignore[list-item]


def test_rows_and_labels_must_agree() -> None:
    with pytest.raises(InvalidInput, match="10 inputs but 9 labels"):
        first([(X, Y[:9])])


def test_task_and_labels() -> None:
    assert task_of(Y) == "classify"
    assert task_of(np.eye(3)[Y]) == "classify"
    assert task_of(X[:, 0]) == "regress"
    assert labels(np.eye(3)[Y], "classify").tolist() == Y.tolist()


@pytest.mark.parametrize("x", [X, (X, X + 1), {"a": X, "b": X[:, :2]}], ids=["array", "tuple", "dict"])
def test_spilled_batches_come_back_as_they_were(tmp_path: Path, x: object) -> None:
    stored = Spilled.write([(x, Y), (x, Y)], tmp_path, max_rows=13)  # type: ignore[list-item]
    back = list(stored)
    assert [len(y) for _, y in back] == [10, 3]
    assert len(list(stored)) == 2  # a second pass
    np.testing.assert_equal(back[0][0], x)


def test_a_damaged_stored_batch_is_named(tmp_path: Path) -> None:
    Spilled.write([(X, Y)], tmp_path)
    next(tmp_path.glob("*.npz")).write_bytes(b"not a zip file")
    with pytest.raises(BadData, match=r"00000000\.npz"):
        list(Spilled(tmp_path))


def test_row_keys_know_rows_by_their_bytes() -> None:
    keys = row_keys(X)
    assert len(set(keys.tolist())) == 10
    assert row_keys(X[::-1]).tolist() == keys[::-1].tolist()
    assert row_keys((X, X)).tolist() != keys.tolist()


def test_logits_are_found_again_in_any_order(tmp_path: Path) -> None:
    stored = Logits.write(lambda x: np.asarray(x)[:, :2] * 2, [(X[:4], Y[:4]), (X[4:], Y[4:])], tmp_path, "t")
    order = np.random.default_rng(0).permutation(10)
    assert np.array_equal(stored(X[order]), X[order][:, :2] * 2)
    assert len(Logits(tmp_path)) == 10


def test_rows_that_the_teacher_never_saw_are_refused(tmp_path: Path) -> None:
    stored = Logits.write(lambda x: np.asarray(x)[:, :2], [(X, Y)], tmp_path, "t")
    with pytest.raises(InvalidInput, match="1 of 10 rows"):
        stored(np.concatenate([X[:9], X[9:] + 0.5]))


def test_a_store_that_was_cut_short_is_not_used(tmp_path: Path) -> None:
    def failing(x: object) -> np.ndarray:
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        Logits.write(failing, [(X, Y)], tmp_path, "t")
    with pytest.raises(BadData, match="not a finished store"):
        Logits(tmp_path)


def test_a_pass_that_was_cut_short_is_taken_up_in_any_order(tmp_path: Path) -> None:
    seen: list[int] = []

    def teacher(x: object) -> dict[str, np.ndarray]:
        seen.append(len(np.asarray(x)))
        if len(seen) == 4:  # two rows to learn the shapes, two batches, then the end
            raise RuntimeError("power cut")
        return {"a": np.asarray(x)[:, :2], "b": np.asarray(x)[:, 2:3] * 3}

    batches = [(X[i : i + 2], Y[i : i + 2]) for i in range(0, 10, 2)]
    with pytest.raises(RuntimeError):
        Logits.write(teacher, batches, tmp_path, "t")
    with (tmp_path / "keys.u64").open("ab") as file:
        file.write(b"torn")  # half a key, and outputs of a row without a key
    with (tmp_path / "outputs0.f32").open("ab") as file:
        file.write(b"12345678")
    before, turned = sum(seen), batches[::-1]
    stored = Logits.write(teacher, turned, tmp_path, "t")
    assert sum(seen) - before == 6  # four rows were there already
    made = stored(X)
    assert isinstance(made, dict)
    np.testing.assert_array_equal(made["a"], X[:, :2])
    np.testing.assert_array_equal(made["b"], X[:, 2:3] * 3)
    stored.close()
    with pytest.raises(InvalidInput, match="another teacher"):
        Logits.write(teacher, batches, tmp_path, "somebody else")


def test_the_index_of_a_store_is_leased_and_given_back(tmp_path: Path) -> None:
    stored = Logits.write(lambda x: np.asarray(x)[:, :2], [(X, Y)], tmp_path, "t")
    assert budget().holders()["the index of a teacher's outputs"] == 160
    stored.close()
    assert "the index of a teacher's outputs" not in budget().holders()


def test_a_full_disk_is_said_with_what_to_do(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    Logits.write(lambda x: np.asarray(x)[:, :2], [(X[:2], Y[:2])], tmp_path, "t").close()
    for name in ("about.json", "outputs0.f32", "keys.u64"):
        (tmp_path / name).unlink()
    (tmp_path / "outputs0.f32").symlink_to("/dev/full")
    (tmp_path / "begun.json").write_text('{"teacher": "t", "outputs": [["", [2]]]}')
    with pytest.raises(DataError, match="is full after the outputs of 0 rows"):
        Logits.write(lambda x: np.asarray(x)[:, :2], [(X, Y)], tmp_path, "t")


def test_what_does_not_fit_the_limit_is_refused_with_its_numbers(tmp_path: Path) -> None:
    Spilled.write([(np.zeros((64, 1000), np.float32), np.zeros(64))], tmp_path)
    with limit(Meter().read().nbytes + 40_000_000):
        with pytest.raises(TooLarge, match=r"pruning masks needs 10 GB"):
            held(10_000_000_000, "pruning masks")
        assert sum(len(y) for _, y in Spilled(tmp_path)) == 64
    assert budget().holders() == {}


def test_the_first_rows_come_again_and_again() -> None:
    head = Head([(X[:4], Y[:4]), (X[4:], Y[4:])], 6)
    for _ in range(2):
        assert [len(y) for _, y in head] == [4, 2]
