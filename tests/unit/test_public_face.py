"""The public names, so that adding or losing one is a decision."""

from __future__ import annotations

import subprocess
import sys

import penstock as ps

VERBS = {
    "batch", "cache", "concatenate", "filter", "interleave", "map", "map_batches", "prefetch", "repeat", "shard",
    "shuffle", "skip", "take", "unbatch", "zip",
}  # fmt: skip
DOORS = {
    "at_epoch", "cardinality", "classes", "explain", "identity", "jax", "keras", "peek", "resume", "resuming",
    "schema", "shuffle_quality", "tensorflow", "torch", "write",
}  # fmt: skip


def test_names_exist():
    for name in ps.__all__:
        assert getattr(ps, name) is not None, name
    assert callable(ps.memory)


def test_verbs_of_a_dataset():
    public = {name for name in dir(ps.Dataset) if not name.startswith("_")}
    assert public - {"of", "node"} == VERBS | DOORS


def test_import_is_light():
    """No framework, and none of the optional packages, is imported by `import penstock`."""
    script = (
        "import sys, penstock; "
        "heavy = {'tensorflow', 'torch', 'jax', 'keras', 'h5py', 'pandas', 'fsspec', 'adbc_driver_manager', 'duckdb', "
        "'numba', 'matplotlib', 'plotly', 'starlette'}; print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_autotune_is_accepted_everywhere():
    ds = (
        ps.from_tensor_slices(list(range(10)))
        .map(lambda x: x + 1, num_parallel_calls=ps.AUTOTUNE)
        .batch(3, drop_remainder=True, num_parallel_calls=ps.AUTOTUNE)
        .prefetch(ps.AUTOTUNE)
    )
    assert [b.tolist() for b in ds] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert len(ds) == 3
