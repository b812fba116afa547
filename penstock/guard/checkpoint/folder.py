"""Checkpoints that are whole or not there.

Covers: the file (streamed, checked), the folder (atomic writes, the last good one, a few kept), random generators.
Does not cover: what a framework's state is (guard/{keras,torch,jax}/), when to save (guard/fit.py).

A file is: magic, arrays one after the other, a JSON footer with each array's place and CRC-32, the footer's length and
CRC-32, magic. It is written beside its name and renamed when it is on disk, so a name never stands for half a file;
damage that came later is found by the checksums. Arrays are taken one at a time: saving holds one variable, not all.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.durable import private_folder, replace_durably, sync_folder
from penstock.core.errors import CheckpointError
from penstock.core.events import events

MAGIC = b"penstock checkpoint 1\n"
_TAIL = struct.Struct("<QI")
_NAME = re.compile(r"step-(\d{10})\.ckpt")
_CHUNK = 1 << 24

Named = tuple[str, np.ndarray]


def write(path: Path, arrays: Iterable[Named], meta: dict[str, Any]) -> None:
    """Write a checkpoint; `path` appears only once everything is on disk."""
    private_folder(path.parent)
    unfinished = path.with_suffix(".unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(MAGIC)
            entries = [_write_array(file, name, array) for name, array in arrays]
            footer = json.dumps({"arrays": entries, "meta": meta}).encode()
            file.write(footer + _TAIL.pack(len(footer), zlib.crc32(footer)) + MAGIC)
        replace_durably(unfinished, path)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path) -> Checkpoint:
    """Open a checkpoint and check every byte of it."""
    found = _read_footer(path)
    for entry in found.entries.values():
        if _crc_of(path, entry) != entry["crc"]:
            raise CheckpointError(f"{path}: {entry['name']} is damaged (its checksum does not match).")
    return found


@dataclass
class Checkpoint:
    """A checkpoint on disk: small values at hand, arrays read when asked for."""

    path: Path
    meta: dict[str, Any]
    entries: dict[str, dict[str, Any]] = field(repr=False)

    def array(self, name: str) -> np.ndarray:
        """One array, read from disk."""
        entry = self.entries[name]
        with open(self.path, "rb") as file:
            file.seek(entry["offset"])
            out = np.frombuffer(file.read(entry["nbytes"]), _dtype(entry["dtype"]))
        return out.reshape(entry["shape"])


class CheckpointFolder:
    """The checkpoints of one run, newest last."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2) -> None:
        self.path, self.keep = Path(folder), keep

    def save(self, step: int, arrays: Iterable[Named], meta: dict[str, Any]) -> Path:
        """Write the checkpoint of a step, then remove what is older than the ones to keep."""
        path = self.path / f"step-{step:010d}.ckpt"
        write(path, arrays, meta)
        for old in self.list()[: -self.keep]:
            old.unlink(missing_ok=True)
        events.emit("guard.saved", str(path), step=step, nbytes=path.stat().st_size)
        return path

    def list(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(path for path in self.path.iterdir() if _NAME.fullmatch(path.name))

    def set_aside(self) -> int:
        """Take an earlier run's checkpoints out of the way of a new one, as `*.ckpt.old`; tells how many."""
        found = self.list()
        if found:
            for old in self.path.glob("step-*.ckpt.old"):
                old.unlink(missing_ok=True)
            for path in found:
                os.replace(path, path.with_name(f"{path.name}.old"))
            sync_folder(self.path)
            events.emit("guard.set_aside", str(self.path), checkpoints=len(found))
        return len(found)

    def last_good(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; damaged ones are passed over and said so."""
        for path in reversed(self.list()):
            try:
                return read(path)
            except (CheckpointError, OSError) as error:
                events.emit("guard.checkpoint_bad", str(path), reason=str(error))
        return None


def generators() -> Iterator[Named]:
    """The state of Python's, NumPy's and torch's global random generators."""
    version, numbers, gauss = random.getstate()
    yield "rng/python", np.array([version, *numbers], np.uint64)
    yield "rng/python-gauss", np.array([] if gauss is None else [gauss], np.float64)
    name, keys, pos, has_gauss, cached = np.random.get_state(legacy=True)
    if name == "MT19937":
        yield "rng/numpy", np.array([*keys, pos, has_gauss], np.uint64)
        yield "rng/numpy-gauss", np.array([cached], np.float64)
    if "torch" in sys.modules:
        yield "rng/torch", sys.modules["torch"].get_rng_state().numpy()


def restore_generators(saved: Mapping[str, np.ndarray]) -> None:
    """Put the global random generators back to where `generators` found them."""
    if "rng/python" in saved:
        version, *numbers = (int(n) for n in saved["rng/python"])
        gauss = saved["rng/python-gauss"]
        random.setstate((version, tuple(numbers), float(gauss[0]) if len(gauss) else None))
    if "rng/numpy" in saved:
        *keys, pos, has_gauss = (int(n) for n in saved["rng/numpy"])
        cached = float(saved["rng/numpy-gauss"][0])
        np.random.set_state(("MT19937", np.array(keys, np.uint32), pos, has_gauss, cached))
    if "rng/torch" in saved and "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(saved["rng/torch"].copy()))


def _write_array(file: Any, name: str, array: np.ndarray) -> dict[str, Any]:
    file.write(b"\0" * (-file.tell() % 64))
    offset, crc = file.tell(), 0
    # reshape, because ascontiguousarray makes a row of a scalar
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(flat), _CHUNK):
        piece = flat[start : start + _CHUNK].data
        crc = zlib.crc32(piece, crc)
        file.write(piece)
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "offset": offset,
        "nbytes": len(flat),
        "crc": crc,
    }


def _read_footer(path: Path) -> Checkpoint:
    ending = _TAIL.size + len(MAGIC)
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        total = file.tell()
        file.seek(0)
        if total < len(MAGIC) + ending or file.read(len(MAGIC)) != MAGIC:
            raise CheckpointError(f"{path} is not a checkpoint of this version.")
        file.seek(total - ending)
        length, crc = _TAIL.unpack(file.read(_TAIL.size))
        if file.read() != MAGIC or length > total - ending:
            raise CheckpointError(f"{path} is torn: its end is missing.")
        file.seek(total - ending - length)
        footer = file.read(length)
    if zlib.crc32(footer) != crc:
        raise CheckpointError(f"{path} is damaged: the checksum of its footer does not match.")
    content = json.loads(footer)
    return Checkpoint(path, content["meta"], {entry["name"]: entry for entry in content["arrays"]})


def _crc_of(path: Path, entry: dict[str, Any]) -> int:
    crc, left = 0, entry["nbytes"]
    with open(path, "rb") as file:
        file.seek(entry["offset"])
        while left:
            piece = file.read(min(left, _CHUNK))
            if not piece:
                break
            crc, left = zlib.crc32(piece, crc), left - len(piece)
    return crc


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes  # comes with every framework that has such arrays

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)


def _not_written(path: Path, error: OSError) -> CheckpointError:
    """Why, in a sentence, and what there is to go on from."""
    before = [name for name in CheckpointFolder(path.parent).list() if name != path]
    kept = f"the one before, {before[-1].name}, is whole" if before else "there is none before it"
    reason = error.strerror or str(error)
    full = " Free some space, or save to another disk." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return CheckpointError(f"The checkpoint {path} could not be written: {reason}; {kept}.{full}")
