"""Blocks of scattered pieces: every piece once, a piece of every part in every block, and what a batch then shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.dataset import Dataset
from penstock.engine.arrange import arrange
from penstock.engine.mixing import uniform_stretches
from penstock.engine.streams.scattered import ScatteredBlocks
from penstock.engine.streams.window_shuffle import Width
from penstock.order.stripe import Stripe
from penstock.plan.steps import Shuffle
from penstock.sources.csv import plan as csv_plan
from penstock.sources.text import lines as text_lines
from tests.stand_ins import NumberPieces, NumberUnits


@pytest.mark.parametrize(("count", "per_block"), [(1, 4), (7, 4), (100, 8), (1000, 64), (1001, 63), (64, 64)])
def test_every_piece_is_in_one_block_and_blocks_are_even(count, per_block):
    blocks = ScatteredBlocks(NumberPieces(count, piece_rows=1, per_block=per_block), key=5)
    found = [blocks.pieces(unit) for unit in range(blocks.num_units())]
    assert sorted(np.concatenate(found).tolist()) == list(range(count))
    sizes = {len(pieces) for pieces in found}
    assert max(sizes) - min(sizes) <= 1
    for pieces in found:  # one of each stratum
        assert (np.diff(pieces // blocks.num_units()) == 1).all()


def test_strata_have_orders_of_their_own_and_keys_others():
    source = NumberPieces(4000, piece_rows=1, per_block=40)
    first, other = ScatteredBlocks(source, key=1), ScatteredBlocks(source, key=2)
    inside = np.stack([first.pieces(unit) % first.num_units() for unit in range(first.num_units())])
    assert not (inside == inside[:, :1]).all(axis=1).any()
    assert (first.pieces(0) != other.pieces(0)).any()
    correlations = np.corrcoef(inside.T)
    assert np.abs(correlations[~np.eye(len(correlations), dtype=bool)]).mean() < 0.15


@pytest.mark.parametrize(("count", "blocks"), [(1, 1), (5, 5), (6, 6), (7, 4), (12, 6), (13, 5)])
def test_windows_are_even_and_as_few_as_they_would_be_otherwise(count, blocks):
    """Of blocks of 75 bytes the sixth fills a window of 400: seven make windows of four and three, not six and one."""
    assert Width(nbytes=400).even(count, 75).blocks == blocks


def test_ranks_that_have_a_little_more_than_a_window_mix_all_of_it():
    """Six blocks of 16 KB: five and a half fit. In two windows of three, batches showed 0.93 of the stretches."""
    source = NumberPieces(24_000, piece_rows=40, per_block=50)
    arranged = arrange(source, Shuffle(seed=1, window="88KB"), Stripe(0, 2), False, (0,))
    assert arranged.order.count == 6
    assert arranged.width is not None and arranged.width.blocks == 6


def coverage(rows: np.ndarray, batch: int = 256) -> list[float]:
    whole = [rows[at : at + batch] for at in range(0, len(rows) - batch + 1, batch)]
    uniform = uniform_stretches(len(rows), batch)
    return [len(np.unique(b * 100 // len(rows))) / uniform for b in whole]


FORMATS = ["csv", "many csv", "jsonl", "text"]


def written(folder: Path, kind: str, rows: int) -> Dataset:
    numbers = range(rows)
    if kind == "text":
        (folder / "t.txt").write_text("".join(f"{i:07d} of the text\n" for i in numbers))
        return ps.read_text(folder / "t.txt")
    if kind == "jsonl":
        (folder / "t.jsonl").write_text("".join(json.dumps({"row": i, "x": i / 7}) + "\n" for i in numbers))
        return ps.read_json(folder / "t.jsonl", columns=["row"])
    files = 20 if kind == "many csv" else 1
    for file in range(files):
        mine = numbers[rows * file // files : rows * (file + 1) // files]
        (folder / f"{file:02d}.csv").write_text("row,x\n" + "".join(f"{i},{i / 7:.4f}\n" for i in mine))
    return ps.read_csv(folder, columns=["row"])


def rows_of(ds: Dataset) -> np.ndarray:
    batches = [batch["row"] if "row" in batch else [int(t[:7]) for t in batch["text"]] for batch in ds.batch(1000)]
    return np.concatenate(batches).astype(np.int64)


@pytest.mark.parametrize("kind", FORMATS)
def test_batches_of_a_sorted_file_look_like_the_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(csv_plan, "RANGE_NBYTES", 64_000)
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", 64_000)
    rows = rows_of(written(tmp_path, kind, 60_000).shuffle(seed=1, window=30_000))
    assert sorted(rows.tolist()) == list(range(60_000))
    found = coverage(rows)
    tenth = len(found) // 10
    assert np.mean(found) >= 0.95
    assert min(np.mean(found[at : at + tenth]) for at in range(0, len(found) - tenth + 1, tenth)) >= 0.85


def test_lines_that_are_much_longer_than_pieces_come_once(tmp_path, monkeypatch):
    """A text of pieces is laid into a buffer of about its size, which long lines outgrow; and files end anyhow."""
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", 4_000)
    lines = [f"{i} " * (1 + i % 1500) for i in range(400)]
    for number, end in enumerate(("\n", "")):
        (tmp_path / f"{number}.txt").write_text("\n".join(lines[number::2]) + end)
    ds = ps.read_text(tmp_path).shuffle(seed=1, window=50)
    assert sorted(text for batch in ds.batch(64) for text in batch["text"]) == sorted(lines)


def test_quality_foretells_what_the_stream_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_plan, "RANGE_NBYTES", 64_000)
    ds = written(tmp_path, "csv", 30_000)
    for window in (1_000, 9_000):
        shuffled = ds.shuffle(seed=1, window=window)
        seen = float(np.mean(coverage(rows_of(shuffled))))
        assert shuffled.shuffle_quality().coverage == pytest.approx(seen, abs=0.07)


def test_a_weak_shuffle_is_told_once(caplog):
    ds = Dataset.of(NumberUnits((5_000,) * 40)).shuffle(seed=1, window=10_000).batch(1000)
    for _ in range(2):
        list(ds)
    told = [record.getMessage() for record in caplog.records if "shuffle of" in record.getMessage()]
    assert len(told) == 1
    assert "coverage 0.0" in told[0] and "window=" in told[0]
    assert "coverage" in ds.explain()


def test_three_neighbourhoods_are_called_bad():
    three = Dataset.of(NumberUnits((100_000,) * 40)).shuffle(seed=1, window=300_000).shuffle_quality()
    assert three.coverage < 0.15
    assert three.worst_tenth <= three.coverage
    assert three.classes < 4 and three.least_classes <= 3
    assert not three.exact
    assert "would see" in str(three)


def test_an_exact_order_is_called_uniform():
    exact = Dataset.of(NumberUnits((1000,) * 30)).shuffle(seed=1).shuffle_quality()
    assert exact.exact
    assert exact.coverage == pytest.approx(1, abs=0.03)
    assert exact.neighbours == pytest.approx(exact.uniform_neighbours, abs=0.02)
    rows = ps.from_tensor_slices(np.arange(50_000)).shuffle(seed=1).shuffle_quality()
    assert rows.exact and rows.coverage == pytest.approx(1, abs=0.03)
    assert rows.classes == pytest.approx(10, abs=0.1)
