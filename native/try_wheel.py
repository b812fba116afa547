"""Tries a wheel where nothing else is: `python native/try_wheel.py dist/penstock-*_x86_64.whl`.

Covers: an empty virtual environment, the wheel and what it depends on, no compiler on the PATH, CSV, JSON lines,
TFRecord and JPEG read there and compared with what was written.
Does not cover: building the wheel (make wheels).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

READ = '''
import json, pathlib, shutil, sys

import numpy as np
import simplejpeg

found = [name for name in ("cc", "gcc", "clang", "c99", "tcc", "zig") if shutil.which(name)]
assert not found, f"there is a compiler: {found}"

import penstock as ps
from penstock.native.library import library

here = pathlib.Path(ps.__file__)
assert pathlib.Path(sys.prefix) in here.parents, f"{here} is not of this environment"
folder = pathlib.Path(sys.argv[1])
rows = 5000
x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
names = [f"f{k}" for k in range(4)]
with open(folder / "t.csv", "w") as csv, open(folder / "t.jsonl", "w") as lines:
    csv.write(",".join([*names, "y"]) + "\\n")
    for number, row in enumerate(x):
        words = [str(value) for value in row]
        csv.write(",".join([*words, str(number)]) + "\\n")
        lines.write("{" + ", ".join(f'"{n}": {w}' for n, w in zip(names, words)) + f', "y": {number}' + "}\\n")
ps.read_csv(str(folder / "t.csv"), label="y").write(str(folder / "records"), format="tfrecord")
sources = {
    "CSV": ps.read_csv(str(folder / "t.csv"), label="y"),
    "JSON lines": ps.read_json(str(folder / "t.jsonl"), label="y"),
    "TFRecord": ps.read_tfrecords(str(folder / "records" / "*.tfrecord"), label="label"),
}
for name, source in sources.items():
    batches = list(source.shuffle(seed=1).batch(500))
    labels = np.concatenate([np.asarray(label) for _, label in batches])
    values = np.concatenate([np.asarray(value) for value, _ in batches])
    order = np.argsort(labels)
    assert np.array_equal(labels[order], np.arange(rows)), name
    assert np.array_equal(values[order], x), name

pictures = folder / "pictures"
pictures.mkdir()
soft = [np.kron(np.random.default_rng(n).integers(0, 256, (8, 8, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
        for n in range(20)]
for number, picture in enumerate(soft):
    (pictures / f"{number:02d}.jpg").write_bytes(simplejpeg.encode_jpeg(picture, quality=90))
want = {simplejpeg.decode_jpeg((pictures / f"{n:02d}.jpg").read_bytes()).tobytes() for n in range(20)}
got = set()
for batch in ps.read_images(str(pictures), size=(128, 128)).batch(5):
    for picture in np.asarray(batch[0] if isinstance(batch, tuple) else batch):
        got.add(picture.tobytes())
assert got == want, "JPEG"
print(f"Python {sys.version.split()[0]}, kernels of {library().compiler}, level {library().level}: "
      f"{', '.join([*sources, 'JPEG'])} read as written, no compiler on the PATH")
'''


def main() -> int:
    """The command line."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "fresh", with_pip=True)
        python = home / "fresh" / "bin" / "python"
        # Programs of the new environment alone: no compiler can be called, neither by pip nor by penstock.
        alone = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PENSTOCK", "CC"))}
        alone["PATH"] = str(python.parent)
        wheel = str(Path(sys.argv[1]).resolve())
        install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel]
        subprocess.run(install, env=alone, cwd=home, check=True)
        (home / "data").mkdir()
        return subprocess.run([str(python), "-c", READ, str(home / "data")], env=alone, cwd=home).returncode


if __name__ == "__main__":
    sys.exit(main())
