"""The pipeline that is measured: shuffle, the user's function, batches.

Covers: what was asked for, and building chains of it on any dataset.
Does not cover: reading (penstock/read), running and measuring (bench/measure.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import InvalidInput, NotFound
from penstock.dataset import Dataset


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long."""

    path: str
    batch: int = 32
    size: int | None = None
    function: Callable[..., Any] | None = None
    step_s: float = 0.05
    seconds: float = 20.0
    shuffle: bool = True
    trials: bool = True
    query: str | None = None
    """The table or select of a database."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidInput(f"batch must be at least 1, not {self.batch}.")
        if self.seconds <= 0 or self.step_s < 0:
            raise InvalidInput("seconds must be above 0 and the consumer's step at least 0.")

    def share(self, of_twenty: float) -> float:
        """Seconds for a measurement that gets so many of every twenty."""
        return self.seconds * of_twenty / 20

    def chain(self, dataset: Dataset, *, function: bool = True) -> Dataset:
        """The pipeline on a dataset of samples."""
        if self.shuffle:
            dataset = dataset.shuffle(seed=1)
        if self.function is not None and function:
            dataset = dataset.map(self.function)
        return dataset.batch(self.batch)


def load_function(text: str) -> Callable[..., Any]:
    """The function that `module.py:name` or `package.module:name` names."""
    module_name, colon, name = text.rpartition(":")
    if not colon or not module_name or not name:
        raise InvalidInput(f"{text!r} does not name a function: write module.py:function.")
    module = _from_file(module_name) if module_name.endswith(".py") else _imported(module_name)
    found = getattr(module, name, None)
    if not callable(found):
        raise NotFound(f"There is no function {name!r} in {module_name}.")
    return found  # type: ignore[no-any-return]


def _from_file(path: str) -> Any:
    if not os.path.exists(path):
        raise NotFound(f"{path!r} does not exist.")
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # so that its functions can be sent to worker processes
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidInput(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFound(f"There is no module {name!r}: {error}.") from error
