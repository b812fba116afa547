"""Under a memory limit, pictures are decoded by the same kernels as without one: no fall-back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

ROOT = Path(__file__).parents[3]
PICTURES, SIDES = 150, (240, 320)
LIMIT_NBYTES = 600_000_000

CHILD = """
import hashlib, json, resource, sys

folder, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
import simplejpeg
import penstock as ps
from penstock.memory import current_limit
from penstock.native import jpeg

calls, decode, library = [], jpeg.decode, simplejpeg.decode_jpeg

def counted(*arguments):
    done = decode(*arguments)
    calls.append("kernels" if done else "handed back")
    return done

def counted_library(*arguments, **options):
    calls.append("library")
    return library(*arguments, **options)

jpeg.decode, simplejpeg.decode_jpeg = counted, counted_library
pixels = {}
for batch in ps.read_images(folder, size=(96, 128)).shuffle(seed=1).batch(16):
    for picture in batch[0] if isinstance(batch, tuple) else batch:
        name = hashlib.sha256(picture.tobytes()).hexdigest()
        pixels[name] = pixels.get(name, 0) + 1
counts = {way: calls.count(way) for way in ("kernels", "handed back", "library")}
print(json.dumps({**counts, "pixels": sorted(pixels.items()), "limit": current_limit().nbytes}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(PICTURES):
        soft = np.kron(
            rng.integers(0, 256, (SIDES[0] // 16, SIDES[1] // 16, 3), np.uint8), np.ones((16, 16, 1), np.uint8)
        )
        chroma = ("420", "422", "444")[number % 3]
        (made / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(soft, quality=85, colorsubsampling=chroma))
    return made


def read(folder: Path, limit: int) -> dict[str, object]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(folder), str(limit)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="its shadow alone takes terabytes")
def test_pictures_under_600_mb_go_through_the_kernels(folder: Path) -> None:
    free, limited = read(folder, 0), read(folder, LIMIT_NBYTES)
    limit = limited.pop("limit")
    assert isinstance(limit, int) and limit <= LIMIT_NBYTES  # the limit is there, and the child knows of it
    assert free.pop("limit") != limit
    assert limited == free
    assert (limited["kernels"], limited["handed back"], limited["library"]) == (PICTURES, 0, 0)
