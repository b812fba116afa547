"""The public names, so that adding or losing one is a decision."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import penstock as ps

LIST = Path(__file__).with_name("public_face.txt")


def face() -> list[str]:
    """Every public name with its signature; verbs and properties of a dataset with the dataset's name before them."""
    lines = [_line(name, getattr(ps, name)) for name in ps.__all__]
    for name, value in sorted(vars(ps.Dataset).items() | _inherited(ps.Dataset)):
        if not name.startswith("_"):
            lines.append(f"Dataset.{_line(name, value)}")
    return lines


def _inherited(kind: type) -> set[tuple[str, object]]:
    return {(name, getattr(kind, name)) for name in dir(kind) if not name.startswith("_") and name not in vars(kind)}


def _line(name: str, value: object) -> str:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if inspect.isroutine(value) or (inspect.isclass(value) and not issubclass(value, Exception)):
        return f"{name}{inspect.signature(value)}"
    return name


def test_names_and_signatures_are_those_of_the_list():
    """A public name or argument is a promise. After a decision to change one: python -m tests.unit.test_public_face"""
    assert face() == LIST.read_text().splitlines()


def test_names_that_are_opened_later_are_public_and_the_other_way_round():
    at_once = {name for name in ps.__all__ if name in vars(ps)}
    assert len(ps.__all__) == len(set(ps.__all__))
    assert set(ps._ROOM_OF) | at_once == set(ps.__all__)
    tree = ast.parse(Path(ps.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(ps._ROOM_OF)


def test_packages_are_not_hidden_by_functions():
    """`import penstock.memory as m` gives what the package's attribute is: it must be the package."""
    import penstock.compress
    import penstock.memory

    packages = {path.parent.name for path in Path(ps.__file__).parent.glob("*/__init__.py")}
    assert not packages & set(ps.__all__)
    assert inspect.ismodule(penstock.memory) and inspect.isfunction(ps.shrink) and inspect.ismodule(ps.errors)


def test_import_is_light():
    """No framework, no optional package, and neither NumPy nor Arrow: rooms are opened on first use."""
    script = (
        "import sys, penstock; "
        "heavy = {'numpy', 'pyarrow', 'rich', 'psutil', 'cv2', "
        "'tensorflow', 'torch', 'jax', 'keras', 'h5py', 'pandas', 'fsspec', 'adbc_driver_manager', 'duckdb', "
        "'numba', 'matplotlib', 'plotly', 'starlette'}; print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_import_opens_few_modules():
    script = "import sys, penstock; print(sum(name.startswith('penstock') for name in sys.modules), len(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, all_of_them = map(int, found.stdout.split())
    assert ours <= 20 and all_of_them <= 200


def test_a_reader_loads_only_its_own_format():
    script = (
        "import sys, penstock as ps; ps.read_csv; "
        "print([m for m in sys.modules if m.startswith('penstock.sources.') and m.count('.') == 2 and "
        "m.rpartition('.')[2] in ('sql', 'zarr', 'hdf5', 'tfrecord', 'tar', 'images', 'json')])"
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


if __name__ == "__main__":
    LIST.write_text("\n".join(face()) + "\n")
