"""How large the data will be in memory, from a look at the files that a script names.

Covers: CSV (a sample of its lines), JSON (by rule of thumb), .npy and .npz (headers), pickles (their size), Parquet
(footer), pictures and folders of them (headers of some).
Does not cover: files named only when the script runs; databases and URLs.
"""

from __future__ import annotations

import csv
import glob
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLE_NBYTES = 1 << 20
TEXT_CELL = 49 + 8
"""A Python string's header and the pointer to it; pandas before 3 keeps text that way."""
JSON_OBJECTS = 6
"""Text of JSON grows about so many times as dictionaries, strings and lists of Python."""
PICTURES = {".jpg", ".jpeg", ".png"}
MOST_HEADERS = 64


@dataclass(frozen=True)
class Weight:
    """Bytes on disk and bytes in memory."""

    disk: int
    memory: int


def weigh_data(name: object, beside: Path) -> Weight | None:
    """What a named file, glob or folder takes; None if it cannot be known. Relative names count from here."""
    if not isinstance(name, str) or "://" in name or not name.strip("./"):
        return None
    if name.startswith("*"):  # a pattern below a folder that is named elsewhere
        return None
    for base in (Path.cwd(), beside):
        paths = [Path(found) for found in sorted(glob.glob(str(base / name)))]
        if paths:
            weights = [found for path in paths[:1000] if (found := _weigh(path)) is not None]
            return Weight(sum(w.disk for w in weights), sum(w.memory for w in weights)) if weights else None
    return None


def _weigh(path: Path) -> Weight | None:
    if path.is_dir():
        return _folder(path)
    suffix = path.suffix.lower()
    disk = path.stat().st_size
    if suffix in (".csv", ".tsv", ".txt"):
        return Weight(disk, _csv(path, disk))
    if suffix in (".json", ".jsonl", ".ndjson"):
        return Weight(disk, disk * JSON_OBJECTS)
    if suffix in (".npy", ".pkl", ".pickle", ".joblib"):
        return Weight(disk, disk)
    if suffix == ".npz":
        return Weight(disk, _npz(path, disk))
    if suffix in PICTURES:
        width, height = picture_size(path)
        return Weight(disk, width * height * 3)
    if suffix in (".parquet", ".pq"):
        return Weight(disk, _parquet(path, disk))
    return None


def _csv(path: Path, disk: int) -> int:
    """Numbers take 8 bytes a cell; text takes its length and a Python object's header."""
    with open(path, "rb") as file:
        sample = file.read(SAMPLE_NBYTES)
    lines = sample.decode("utf-8", errors="replace").splitlines()
    if len(sample) == SAMPLE_NBYTES:
        lines = lines[:-1]
    if len(lines) < 2:
        return disk
    rows = list(csv.reader(lines[1:], delimiter="\t" if path.suffix == ".tsv" else ","))
    per_row = sum(8 if _is_number(cell) else TEXT_CELL + len(cell) for row in rows for cell in row) / len(rows)
    line_nbytes = sum(len(line.encode()) + 1 for line in lines[1:]) / len(rows)
    return int(disk / line_nbytes * per_row)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell
    return True


def _parquet(path: Path, disk: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError):
        return disk
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


def _npz(path: Path, disk: int) -> int:
    """The arrays of an archive, by the headers of its members: they may be compressed."""
    total = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    version = np.lib.format.read_magic(member)
                    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
                    shape, _, dtype = (read or np.lib.format.read_array_header_2_0)(member)
                    total += int(np.prod(shape)) * dtype.itemsize
    except (zipfile.BadZipFile, ValueError, OSError):
        return disk
    return total


def weigh_named(values: Iterable[object], beside: Path) -> Weight | None:
    """The heaviest of some named things; None if none of them is there."""
    weights = [weight for value in values if (weight := weigh_data(value, beside)) is not None]
    return max(weights, key=lambda weight: weight.memory, default=None)


def _folder(path: Path) -> Weight | None:
    """Pictures in a folder: the mean of some headers times their number, three bytes a pixel."""
    pictures = [found for found in path.rglob("*") if found.suffix.lower() in PICTURES]
    if not pictures:
        return None
    step = max(1, len(pictures) // MOST_HEADERS)
    sizes = [width * height * 3 for found in pictures[::step] for width, height in [picture_size(found)] if width]
    mean = float(np.mean(sizes)) if sizes else 0.0
    return Weight(sum(found.stat().st_size for found in pictures), int(mean * len(pictures)))


def picture_size(path: Path) -> tuple[int, int]:
    """Width and height from a PNG's or JPEG's header; zeros if it is neither."""
    with open(path, "rb") as file:
        head = file.read(65536)
    if head.startswith(b"\x89PNG") and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return int(width), int(height)
    place = 2
    while head.startswith(b"\xff\xd8") and place + 9 < len(head) and head[place] == 0xFF:
        marker, length = head[place + 1], int.from_bytes(head[place + 2 : place + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[place + 5 : place + 9])
            return int(width), int(height)
        place += 2 + length
    return 0, 0
