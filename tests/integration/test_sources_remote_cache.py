"""`.cache(folder)` behind a reader of remote files keeps their bytes: the second epoch asks the store for nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zarr

sys.path.insert(0, str(Path(__file__).parent))
from s3_gate import Gate, gated

import penstock as ps
from penstock.core.byte_cache import CachedUrl
from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.engine.cache import pages as cache_pages
from penstock.engine.cache.folder import STALE_S
from penstock.engine.cache.pages import Pages
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote
from penstock.sources.tfrecord.write import frame

DATA = np.random.default_rng(0).integers(0, 256, 3_500_000, dtype=np.uint8).tobytes()
URL = "s3://kept/data.bin"
ROWS = 24


@pytest.fixture(scope="module")
def gate(tmp_path_factory: Any) -> Iterator[Gate]:
    with gated() as gate:
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.mkdir("kept")
        fs.pipe("kept/data.bin", DATA)
        fill(tmp_path_factory.mktemp("files"))
        for path in sorted(FILES.rglob("*")):
            if path.is_file():
                fs.pipe(f"kept/{path.relative_to(FILES)}", path.read_bytes())
        yield gate


def fill(folder: Path) -> None:
    """The numbers 0 to 23 in every format."""
    global FILES
    FILES = folder
    numbers = np.arange(ROWS)
    with tarfile.open(folder / "shard.tar", mode="w") as tar:
        for i in numbers:
            png = cv2.imencode(".png", np.full((8, 8, 3), i, np.uint8))[1].tobytes()
            photo = folder / f"photos/{'ab'[i % 2]}/{i:02}.png"
            photo.parent.mkdir(parents=True, exist_ok=True)
            photo.write_bytes(png)
            for name, value in ((f"{i:02}.png", png), (f"{i:02}.cls", b"%d" % i)):
                entry = tarfile.TarInfo(name)
                entry.size = len(value)
                tar.addfile(entry, io.BytesIO(value))
    (folder / "table.csv").write_text("x\n" + "".join(f"{i}\n" for i in numbers))
    (folder / "table.jsonl").write_text("".join(json.dumps({"x": int(i)}) + "\n" for i in numbers))
    (folder / "lines.txt").write_text("".join(f"{i}\n" for i in numbers))
    pa.parquet.write_table(pa.table({"x": numbers}), folder / "table.parquet", row_group_size=5)
    np.save(folder / "array.npy", numbers)
    (folder / "raw.tfrecord").write_bytes(b"".join(bytes(frame(b"%d" % i)) for i in numbers))
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=numbers, chunks=(5,))
    zarr.create_array(str(folder / "data.zarr"), data=numbers, chunks=(5,))


def photos() -> Any:
    return ps.read_images("s3://kept/photos/", size=(8, 8))


READERS: dict[str, Callable[[], Any]] = {
    "images": lambda: photos(),
    "tar": lambda: ps.read_webdataset("s3://kept/shard.tar", sample=("png", "cls"), size=(8, 8)),
    "tar by rows": lambda: ps.read_webdataset("s3://kept/shard.tar", sample="cls", access="rows"),
    "csv": lambda: ps.read_csv("s3://kept/table.csv"),
    "json": lambda: ps.read_json("s3://kept/table.jsonl"),
    "text": lambda: ps.read_text("s3://kept/lines.txt"),
    "documents": lambda: ps.read_text("s3://kept/lines.txt", by="document"),
    "parquet": lambda: ps.read_parquet("s3://kept/table.parquet"),
    "numpy": lambda: ps.read_numpy("s3://kept/array.npy"),
    "tfrecord": lambda: ps.read_tfrecords("s3://kept/raw.tfrecord", parse=None),
    "tfrecord by rows": lambda: ps.read_tfrecords("s3://kept/raw.tfrecord", parse=None, access="rows"),
    "hdf5": lambda: ps.read_hdf5("s3://kept/data.h5"),
    "zarr": lambda: ps.read_zarr("s3://kept/data.zarr"),
}


def numbers(ds: Any) -> list[int]:
    """Whatever the format, the numbers in it."""
    found: list[int] = []
    for batch in ds:
        value = (
            next(iter(batch.values())) if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple) else batch
        )
        array = np.asarray(value)
        found += [int(word) for v in array for word in ([v.flat[0]] if isinstance(v, np.ndarray) else _words(v))]
    return sorted(found)


def _words(value: Any) -> list[Any]:
    return value.split() if isinstance(value, (str, bytes)) else [value]


def requests_of(gate: Gate, call: Callable[[], Any]) -> list[str]:
    before = len(gate.seen)
    call()
    return gate.seen[before:]


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", READERS)
def test_the_second_epoch_touches_no_network(gate: Gate, tmp_path: Path, name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "indexes"))
    ds = READERS[name]().cache(tmp_path / "kept", limit="50MB").shuffle(seed=1).batch(5)
    assert "kept bytes of" in ds.explain()
    found: list[list[int]] = []
    found.append(numbers(ds))
    for _ in range(2):
        assert requests_of(gate, lambda: found.append(numbers(ds))) == []
    assert found == [list(range(ROWS))] * 3
    assert list((tmp_path / "kept").glob("bytes-*/unit-*"))


@pytest.mark.parametrize("name", ["images", "tar by rows", "numpy"])
def test_what_is_kept_is_read_as_local_files_are_without_threads_for_requests(
    gate: Gate, tmp_path: Path, name: str, monkeypatch: Any
) -> None:
    ds = READERS[name]().cache(tmp_path).shuffle(seed=1).batch(8)
    assert numbers(ds) == list(range(ROWS))
    parallel: list[int] = []
    monkeypatch.setattr(remote, "in_parallel", lambda read, items: parallel.append(1) or list(map(read, items)))
    assert numbers(ds) == list(range(ROWS)) and not parallel


def test_datasets_of_one_process_have_caches_of_their_own(gate: Gate, tmp_path: Path) -> None:
    table = ps.read_parquet("s3://kept/table.parquet")  # one source for three chains
    one, two = table.cache(tmp_path / "one").batch(5), table.cache(tmp_path / "two").batch(7)
    for ds in (one, two, one, two):
        assert numbers(ds) == list(range(ROWS))
    for folder in ("one", "two"):
        assert list((tmp_path / folder).glob("bytes-*/unit-*"))
    assert requests_of(gate, lambda: [list(pair) for pair in zip(one, two, strict=False)]) == []
    assert requests_of(gate, lambda: numbers(table.batch(5)))


def test_behind_maps_and_where_asked_for_samples_are_kept(gate: Gate, tmp_path: Path) -> None:
    calls: list[int] = []

    def count(image: Any, label: Any) -> Any:
        calls.append(1)
        return image, label

    for what, ds in {
        "mapped": photos().map(count, workers="thread").cache(tmp_path / "mapped"),
        "asked": photos().cache(tmp_path / "asked", what="samples"),
        "both": photos().cache(tmp_path / "both").map(count, workers="thread").cache(tmp_path / "both"),
    }.items():
        ds = ds.batch(5)
        first = numbers(ds)
        calls.clear()
        assert requests_of(gate, lambda ds=ds: numbers(ds)) == [] and numbers(ds) == first == list(range(ROWS))
        assert not calls
        assert list((tmp_path / what).glob("*/rows"))
        assert bool(list((tmp_path / what).glob("bytes-*/unit-*"))) == (what == "both")


def test_what_cannot_be_kept_is_told_in_a_sentence(gate: Gate, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs a folder"):
        photos().cache(what="bytes")
    with pytest.raises(InvalidInput, match="not 'pages'"):
        photos().cache(tmp_path, what="pages")
    with pytest.raises(InvalidInput, match="belongs before map"):
        numbers(photos().map(lambda x, y: (x, y)).cache(tmp_path, what="bytes"))
    with pytest.raises(InvalidInput, match="reads no remote files"):
        numbers(ps.from_tensor_slices([1]).cache(tmp_path, what="bytes").batch(1))


PROGRAM = """
    import sys
    import numpy as np
    import penstock as ps
    found = []
    for x, _ in ps.read_images("s3://kept/photos/", size=(8, 8)).cache(sys.argv[1], limit="20MB").batch(4):
        found += x[:, 0, 0, 0].tolist()
    print(sorted(found) == list(range(24)))
"""


def started(folder: Path, program: str = PROGRAM) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(folder)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def fetched(requests: list[str]) -> list[str]:
    return [request for request in requests if request.startswith("GET") and ".png" in request]


def test_other_processes_use_what_one_has_kept_and_share_the_work(gate: Gate, tmp_path: Path) -> None:
    def together() -> None:
        pair = [started(tmp_path), started(tmp_path)]
        assert [process.communicate()[0].strip() for process in pair] == ["True", "True"]

    assert len(fetched(requests_of(gate, together))) >= ROWS
    assert len(list(tmp_path.glob("bytes-*/unit-*"))) == ROWS and not list(tmp_path.glob("bytes-*/partial-*"))
    assert fetched(requests_of(gate, together)) == []
    noted = int.from_bytes((tmp_path / "used").read_bytes(), "little")
    assert noted == used(tmp_path) - (tmp_path / "used").stat().st_size


def test_a_killed_process_leaves_what_it_had_and_nothing_half(gate: Gate, tmp_path: Path) -> None:
    gate.latency_s = 0.05
    try:
        process = started(tmp_path)
        while len(list(tmp_path.glob("bytes-*/unit-*"))) < 3:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    finally:
        gate.latency_s = 0.0
    there = len(list(tmp_path.glob("bytes-*/unit-*")))
    next_process = started(tmp_path)
    asked = requests_of(gate, lambda: next_process.wait())
    assert next_process.communicate()[0].strip() == "True"
    assert len(fetched(asked)) == ROWS - there
    assert len(list(tmp_path.glob("bytes-*/unit-*"))) == ROWS and not list(tmp_path.glob("bytes-*/partial-*"))


def test_a_full_disk_is_told_once_and_reading_goes_on(gate: Gate, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    events.recent.clear()
    pages = Pages(str(disk / "kept"), None)
    try:
        for _ in range(2):
            assert storage.read_range(CachedUrl(URL, pages), 0, len(DATA)) == DATA
        assert requests_of(gate, lambda: storage.read_range(CachedUrl(URL, pages), 0, 1_000_000)) == []
        assert storage.read_file(CachedUrl("s3://kept/photos/a/00.png", pages)).startswith(b"\x89PNG")
        assert [e.values["reason"] for e in events.recent if e.kind == "cache.full"] == ["No space left on device"]
    finally:
        pages.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_folder_that_cannot_be_used_is_told_once(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    events.recent.clear()
    assert numbers(photos().cache(tmp_path / "file" / "kept").batch(5)) == list(range(ROWS))
    assert len([e for e in events.recent if e.kind == "cache.unusable"]) == 1


def test_every_range_is_right_whatever_is_kept_already(gate: Gate, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cache_pages, "PAGE_NBYTES", 100_000)
    draw = np.random.default_rng(1)
    pages = Pages(str(tmp_path), 10_000_000)
    for _ in range(60):
        start, length = int(draw.integers(0, len(DATA) + 1000)), int(draw.integers(0, 1_500_000))
        assert storage.read_range(CachedUrl(URL, pages), start, length) == DATA[start : start + length]
    with storage.open_file(CachedUrl(URL, pages)) as file:
        assert file.read() == DATA
    assert (
        storage.read_file(CachedUrl(URL, pages)) == DATA
        and requests_of(gate, lambda: storage.read_file(CachedUrl(URL, pages))) == []
    )
    assert requests_of(gate, lambda: storage.read_ranges(CachedUrl(URL, pages), [(0, 10), (3_000_000, 99)])) == []
    assert requests_of(gate, lambda: storage.read_range(CachedUrl(URL, pages), len(DATA) - 10, 200_000)) == []
    pages.close()


def test_the_limit_holds_and_reading_goes_on_without_room(gate: Gate, tmp_path: Path) -> None:
    events.recent.clear()
    pages = Pages(str(tmp_path), 2_500_000)
    for _ in range(2):
        assert storage.read_range(CachedUrl(URL, pages), 0, len(DATA)) == DATA
    assert 2_000_000 < used(tmp_path) <= 2_500_000
    assert requests_of(gate, lambda: storage.read_range(CachedUrl(URL, pages), 0, 1_000_000)) == []
    assert len(requests_of(gate, lambda: storage.read_range(CachedUrl(URL, pages), 3_300_000, 1000))) == 1
    pages.close()
    assert [e.kind for e in events.recent].count("cache.full") == 1


def test_pages_that_nobody_has_read_for_long_make_room_and_no_others(gate: Gate, tmp_path: Path) -> None:
    old, new = Pages(str(tmp_path), 2_500_000), Pages(str(tmp_path), 2_500_000)
    storage.read_range(CachedUrl(URL, old), 0, 2_000_000)
    (one, two) = sorted(tmp_path.glob("bytes-*/unit-*"))
    os.utime(one, (time.time() - STALE_S - 60,) * 2)
    os.utime(two, (time.time() - STALE_S - 60,) * 2)
    storage.read_range(CachedUrl(URL, old), 0, 1)  # the first page is in use again
    used_again = one if one.stat().st_mtime > time.time() - 3600 else two
    storage.read_range(CachedUrl(URL, new), 2 * cache_pages.PAGE_NBYTES, 1)
    kept = list(tmp_path.glob("bytes-*/unit-*"))
    assert len(kept) == 2 and used_again in kept and used(tmp_path) <= 2_500_000
    old.close()
    new.close()


def test_a_replaced_file_is_read_anew_and_a_damaged_page_too(gate: Gate, tmp_path: Path) -> None:
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.pipe("kept/changing", b"one" * 1000)
    pages = Pages(str(tmp_path), 10_000_000)
    assert storage.read_range(CachedUrl("s3://kept/changing", pages), 3, 3) == b"one"
    pages.close()
    fs.pipe("kept/changing", b"two" * 1000)
    pages = Pages(str(tmp_path), 10_000_000)  # as a new process would
    assert storage.read_range(CachedUrl("s3://kept/changing", pages), 3, 3) == b"two"
    for page in tmp_path.glob("bytes-*/unit-*"):
        page.write_bytes(page.read_bytes()[:-20].replace(b"twotwo", b"twotoo"))
    assert storage.read_range(CachedUrl("s3://kept/changing", pages), 0, 3000) == b"two" * 1000
    pages.close()
