"""Scalars for TensorBoard: which, at which step, and that exporting again replaces."""

from __future__ import annotations

from penstock.sources.tfrecord.write import frame
from penstock.watch.export.tensorboard import encode, export_scalars, scalars
from tests.unit.watch.runs import START_T, event, progress, sample, training, write_run


def test_memory_is_told_by_the_step_it_was_measured_in():
    found = list(scalars([sample(START_T), progress(START_T + 1, 7), sample(START_T + 2)]))
    assert [(step, "memory/used" in values) for _, step, values in found] == [(0, True), (7, False), (7, True)]


def test_names():
    (_, _, values), (_, _, epoch) = scalars(
        [progress(START_T, 1), event(START_T, "train.epoch", epoch=0, logs={"loss": 1.0, "val_loss": "nan"})]
    )
    assert {"train/loss", "train/accuracy", "run/samples_per_s", "run/waited_share", "run/micro"} == set(values)
    assert epoch["epoch/train/loss"] == 1.0 and epoch["epoch/validation/loss"] != epoch["epoch/validation/loss"]


def test_events_without_numbers_are_left_out():
    empty = progress(START_T, 1, logs=None, samples_per_s=None, waited_share=None, micro=None)
    assert list(scalars([event(START_T, "run.start"), event(START_T, "x.y"), empty])) == []


def test_a_number_too_large_for_32_bits():
    assert encode(1.0, 1, {"x": 1e300}).endswith(b"\x15\x00\x00\x80\x7f")
    assert encode(1.0, 1, {"x": -1e300}).endswith(b"\x15\x00\x00\x80\xff")


def test_exporting_again_replaces(tmp_path):
    run = write_run(tmp_path / "run", training(30))
    path, count = export_scalars(run, tmp_path / "tb", frame)
    again, recount = export_scalars(run, tmp_path / "tb", frame)
    assert path == again and count == recount > 30 and list((tmp_path / "tb").iterdir()) == [path]


def test_an_empty_run(tmp_path):
    path, count = export_scalars(tmp_path / "none", tmp_path / "tb", frame)
    assert count == 0 and path.stat().st_size > 0
