"""Models from a user's file, built inside the probing process.

Covers: running `module.py:build` and finding out which framework its result belongs to.
Does not cover: probing it (child.py).

`build` returns a Keras model, a torch module, or a tuple of the model, its loss and its optimizer (or a function of the
parameters that makes the optimizer).
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidInput, NotFound, PenstockError
from penstock.core.user.code import in_one_line, load_function
from penstock.guard.forecast.subject import Maker


def split_name(text: str) -> tuple[Path, str]:
    """'module.py:build' as a file that is there and a name."""
    name, colon, function = text.rpartition(":")
    if not colon or not name.endswith(".py") or not function.isidentifier():
        raise InvalidInput(f"{text!r} does not name a function of a Python file. Write it as module.py:build.")
    path = Path(name)
    if not path.is_file():
        raise NotFound(f"There is no Python file {path}.")
    return path.resolve(), function


def built_maker(folder: Path, spec: dict[str, Any]) -> Maker:
    """Build once to see what it is; every setting then builds afresh."""
    path = Path(spec["file"])
    build = partial(call_build, load_function(f"{path}:{spec['function']}"), path, spec["function"])
    example = load_example(folder)
    model = build()[0]
    packages = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    # A Keras model on the torch backend is a torch module as well, so Keras is asked first.
    if "keras" in packages:
        from penstock.guard.keras.forecast import KerasMaker

        return KerasMaker(build, example)
    if "torch" in packages:
        from penstock.guard.torch.forecast import TorchMaker

        return TorchMaker(build, example)
    raise InvalidInput(f"{spec['function']}() returned a {type(model).__name__}, not a Keras model or a torch module.")


def call_build(build: Callable[[], Any], path: Path, name: str) -> tuple[Any, Any, Any]:
    """What the user's function makes; what it raises becomes one sentence, with the line of the user's file."""
    try:
        result = build()
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{name}() of {path.name} failed: {in_one_line(error)}{_line(error, path)}") from error
    return unpacked(result)


def _line(error: BaseException, path: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]} of {path.name})" if lines else ""


def unpacked(result: Any) -> tuple[Any, Any, Any]:
    """What `build` returned, as model, loss and optimizer; None stands for what it left out."""
    found = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(found) <= 3:
        raise InvalidInput(f"build() returned {len(found)} things; return the model, or (model, loss, optimizer).")
    model, loss, optimizer = (*found, None, None)[:3]
    return model, loss, optimizer


def load_example(folder: Path) -> Any:
    """The example batch that the parent left; None if the model's own shapes are to be used."""
    path = folder / "example.pickle"
    return pickle.loads(path.read_bytes()) if path.exists() else None
