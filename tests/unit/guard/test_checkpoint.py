"""A checkpoint is whole or it is passed over."""

from __future__ import annotations

import os
import random
import subprocess

import numpy as np
import pytest

from penstock.core.errors import CheckpointError
from penstock.core.events import events
from penstock.guard.checkpoint.folder import CheckpointFolder, generators, read, restore_generators, write

ARRAYS = {
    "a": np.arange(7, dtype=np.int64),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 3)),
    "strided": np.arange(24.0).reshape(4, 6)[:, ::2],
    "flag": np.array([True, False]),
}


def test_arrays_and_values_come_back(tmp_path):
    write(tmp_path / "x.ckpt", ARRAYS.items(), {"epoch": 3, "place": None})
    found = read(tmp_path / "x.ckpt")
    assert found.meta == {"epoch": 3, "place": None}
    for name, array in ARRAYS.items():
        back = found.array(name)
        assert back.dtype == array.dtype and back.shape == array.shape and np.array_equal(back, array)


def test_every_cut_and_every_flipped_byte_of_data_is_found(tmp_path):
    path = tmp_path / "x.ckpt"
    write(path, ARRAYS.items(), {"epoch": 3})
    good = path.read_bytes()
    entries = read(path).entries.values()
    for cut in range(0, len(good), 37):
        path.write_bytes(good[:cut])
        with pytest.raises(CheckpointError):
            read(path)
    places = [e["offset"] + i for e in entries for i in range(e["nbytes"])] + list(range(len(good) - 80, len(good)))
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(CheckpointError):
            read(path)


def test_last_good_passes_over_the_damaged_and_says_so(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2, 3):
        folder.save(step, ARRAYS.items(), {"step": step})
    newest = folder.list()[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    found = folder.last_good()
    assert found is not None and found.meta["step"] == 2
    assert events.recent[-1].kind == "guard.checkpoint_bad" and events.recent[-1].who == str(newest)


def test_only_some_are_kept_and_nothing_unfinished_is_left(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in range(5):
        folder.save(step, ARRAYS.items(), {})

    def failing():
        yield from ARRAYS.items()
        raise MemoryError

    with pytest.raises(MemoryError):
        folder.save(9, failing(), {})
    assert sorted(os.listdir(tmp_path)) == ["step-0000000003.ckpt", "step-0000000004.ckpt"]


def test_random_generators_go_on_where_they_were():
    import torch

    random.gauss(0, 1)
    np.random.normal()
    saved = dict(generators())
    expected = [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal(), torch.rand(3).tolist()]
    restore_generators(saved)
    assert [
        random.random(),
        random.gauss(0, 1),
        np.random.random(),
        np.random.normal(),
        torch.rand(3).tolist(),
    ] == expected


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert CheckpointFolder(tmp_path / "none").last_good() is None


def test_a_new_run_in_an_old_folder_sets_the_old_checkpoints_aside(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (10, 20):
        folder.save(step, ARRAYS.items(), {"step": step})
    assert folder.set_aside() == 2
    assert folder.last_good() is None
    folder.save(1, ARRAYS.items(), {"step": 1})
    found = folder.last_good()
    assert found is not None and found.meta["step"] == 1
    assert sorted(path.name for path in tmp_path.glob("*.old")) == [
        "step-0000000010.ckpt.old",
        "step-0000000020.ckpt.old",
    ]
    folder.set_aside()
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.ckpt.old"]


def test_a_full_disk_is_told_in_a_sentence_and_the_one_before_stays(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if made.returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        folder = CheckpointFolder(disk / "run")
        folder.save(1, [("w", np.zeros(1000))], {"n": 1})
        with pytest.raises(
            CheckpointError, match=r"could not be written: No space left.*step-0000000001.ckpt, is whole"
        ):
            folder.save(2, [("w", np.zeros(10**6))], {"n": 2})
        assert folder.last_good().meta["n"] == 1 and [path.name for path in folder.path.iterdir()] == [
            "step-0000000001.ckpt"
        ]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
