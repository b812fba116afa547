"""Shards written straight to a store: a real S3 server, and fsspec's memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.core.errors import DataError, InvalidInput
from penstock.read import from_tensor_slices, read_parquet
from penstock.sources.storage import files as storage

pytest.importorskip("s3fs")
server_module = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    moto = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{moto.get_host_and_port()[1]}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    storage.close_files()
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("packed")
    yield "s3://packed"
    storage.close_files()
    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    moto.stop()


def table(count: int = 2000):
    return from_tensor_slices({"n": np.arange(count), "x": np.arange(count * 3, dtype=np.float32).reshape(count, 3)})


def test_a_store_is_written_read_back_and_resumed(bucket):
    class Enough(Exception):
        pass

    def stop(rows: int, nbytes: int) -> None:
        if rows > 1000:
            raise Enough

    with pytest.raises(Enough):
        table().write(f"{bucket}/a", shard_size="8KB", progress=stop)
    report = table().write(f"{bucket}/a", shard_size="8KB")
    assert report.rows == 2000 and len(report.files) > 2
    assert report.files[0].startswith("s3://packed/a/shard-")
    assert sorted(int(row["n"]) for row in read_parquet(f"{bucket}/a")) == list(range(2000))
    assert table().write(f"{bucket}/a", shard_size="8KB", progress=lambda *_: pytest.fail("again")) == report


def test_damage_in_a_store_is_found(bucket):
    import s3fs

    report = table(100).write(f"{bucket}/b", "tfrecord")
    s3fs.S3FileSystem().pipe_file("packed/b/shard-000000.tfrecord", b"something else")
    with pytest.raises(DataError, match="not as it was written"):
        table(100).write(f"{bucket}/b", "tfrecord")
    assert table(90).write(f"{bucket}/b", "tfrecord", overwrite=True).rows == 90
    assert report.rows == 100


def test_a_web_address_is_refused():
    with pytest.raises(InvalidInput, match="can only be read"):
        table(3).write("http://127.0.0.1:1/out")
