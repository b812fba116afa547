"""No compiler at run time: nothing imports Numba or LLVM, and readers work where neither can be imported."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

PACKAGE = Path(penstock.__file__).parent
COMPILERS = {"numba", "llvmlite"}

READ = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise AssertionError(name + " is imported")

sys.meta_path.insert(0, Refuse())
import penstock as ps

folder = sys.argv[1]
read = [
    ps.read_csv(folder + "/t.csv", label="y"),
    ps.read_json(folder + "/t.jsonl", label="y"),
    ps.read_parquet(folder + "/t.parquet", label="y"),
    ps.read_tfrecords(folder + "/out/*.tfrecord", label="label"),
    ps.read_images(folder + "/pictures", size=(32, 32)),
]
print([sum(len(y) for _, y in ds.shuffle(seed=1).batch(16)) for ds in read])
print(sorted({"numba", "llvmlite"} & set(sys.modules)))
"""


def test_no_module_imports_a_compiler() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {(path.name, name) for name in names if name.partition(".")[0] in COMPILERS}
    assert not found


def test_no_compiler_is_a_dependency() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    assert not [one for one in wanted if any(one.startswith(name) for name in COMPILERS)]


def test_readers_work_where_no_compiler_can_be_imported(tmp_path: Path) -> None:
    rows, x = 100, np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    table = pa.table({**{f"f{k}": x[:, k] for k in range(3)}, "y": np.arange(rows)})
    pq.write_table(table, tmp_path / "t.parquet")
    lines = table.to_pylist()
    (tmp_path / "t.csv").write_text(
        "f0,f1,f2,y\n" + "".join(",".join(str(v) for v in row.values()) + "\n" for row in lines)
    )
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    penstock.read_parquet(str(tmp_path / "t.parquet"), label="y").write(str(tmp_path / "out"), format="tfrecord")
    for n in range(rows):
        folder = tmp_path / "pictures" / f"class{n % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{n}.jpg"), np.full((40, 48, 3), n, np.uint8))
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:2] == [str([rows] * 5), "[]"]
