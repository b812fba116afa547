"""`penstock plan`: will this model train in this much memory, and with which batch.

Covers: the command's options, an example batch from data or from shapes, the progress of probing, the output.
Does not cover: the forecast (penstock.guard.forecast.forecast).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.arguments.backend import default_backend
from penstock.cli.arguments.paths import check_code, check_there
from penstock.core.errors import InvalidInput
from penstock.core.events import Event, events
from penstock.core.sizes import option_size
from penstock.core.sizes import size as written_size
from penstock.train.config import BACKENDS

if TYPE_CHECKING:
    import numpy as np

ROWS = 32
"""Rows of the example; larger batches repeat them."""


def plan(
    model: Annotated[
        str, typer.Argument(help="module.py:build, a function that returns a Keras model or torch module")
    ],
    batch: Annotated[int, typer.Option(help="Rows of the batch that you want to train with")] = 256,
    memory: Annotated[
        str | None, typer.Option(help="Limit to compare with, e.g. 2GB; default: what is allowed here")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Also say which batch fits in so much device memory")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Keras backend: tensorflow, torch or jax")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Only float32, mixed_bfloat16 or mixed_float16; default: compare")
    ] = None,
    remat: Annotated[
        bool | None, typer.Option("--remat/--no-remat", help="Only with, or only without rematerialisation")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Take the example from this data: a file, folder, glob or URL")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column of --data to predict")] = None,
    shape: Annotated[str | None, typer.Option(help="Or: the shape of one sample, e.g. 224,224,3")] = None,
    dtype: Annotated[str, typer.Option(help="Type of the samples of --shape; int64 for tokens")] = "float32",
    classes: Annotated[int | None, typer.Option(help="Number of classes, with --shape; default: one number")] = None,
    workers: Annotated[int, typer.Option(help="Processes on this host that share the batch and the memory")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON")] = False,
) -> None:
    """Forecast the peak memory of training: a table of batch sizes, precisions and rematerialisation.

    The model takes a few small steps in a process of its own; nothing is trained or written.

    Examples:

        penstock plan model.py:build --batch 256 --memory 2GB

        penstock plan net.py:build --shape 3,224,224 --classes 1000 --no-remat --precision float32

        penstock plan model.py:build --data train/ --backend jax --json
    """
    _check(model, data, batch, workers, backend, (memory, device_memory))
    from penstock.guard.forecast.forecast import ForecastOptions, forecast

    backend = backend or default_backend()
    example = example_of(data, target, shape, dtype, classes)
    options = ForecastOptions(batch=batch, backend=backend, device_memory=device_memory, workers=workers)
    with _progress(quiet=as_json):
        found = forecast(model, example, precision=precision, remat=remat, memory=memory, options=options)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))


def _check(
    model: str, data: str | None, batch: int, workers: int, backend: str | None, sizes: tuple[str | None, ...]
) -> None:
    """Refuse what is wrong with the options, before anything is loaded."""
    check_code("MODEL", model, "returns the model")
    if data is not None:
        check_there(data)
    for name, number in (("--batch", batch), ("--workers", workers)):
        if number < 1:
            raise InvalidInput(f"{name} must be at least 1, not {number}.")
    if backend is not None and backend not in BACKENDS:
        raise InvalidInput(f"--backend must be one of {', '.join(BACKENDS)}, not {backend!r}.")
    for name, size in zip(("--memory", "--device-memory"), sizes, strict=True):
        if size is not None:
            option_size(name, size)


def example_of(
    data: str | None, target: str | None, shape: str | None, dtype: str, classes: int | None
) -> tuple[Any, Any] | None:
    """A small batch from data or from shapes; None leaves it to the model's own shapes."""
    if data is not None and shape is not None:
        raise InvalidInput("--data and --shape both say what a sample is; give one of them.")
    if data is not None:
        return _from_data(data, target)
    if shape is None:
        return None
    import numpy as np

    x = np.zeros((ROWS, *_sides(shape)), _dtype(dtype))
    y = np.zeros((ROWS, 1), np.float32) if classes is None else np.arange(ROWS, dtype=np.int64) % max(1, classes)
    return x, y


def _from_data(path: str, target: str | None) -> tuple[Any, Any]:
    import numpy as np

    from penstock.read.recognise.formats import open_any

    stream = iter(open_any(path).batch(ROWS))
    first = next(stream, None)
    stream.close()
    if first is None:
        raise InvalidInput(f"{path} has no rows.")
    if isinstance(first, tuple) and len(first) == 2:
        return first
    if not isinstance(first, dict) or target not in first:
        known = ", ".join(first) if isinstance(first, dict) else "a bare value"
        raise InvalidInput(f"Say with --target which column of {path} is predicted: {known}.")
    inputs = [np.asarray(first[name]) for name in first if name != target]
    if any(column.ndim != 1 or column.dtype.kind not in "iufb" for column in inputs):
        raise InvalidInput(f"{path} has columns that are not numbers; give the prepared sample's --shape instead.")
    labels = np.asarray(first[target])
    if labels.dtype.kind not in "iufb":
        labels = np.unique(labels.astype(str), return_inverse=True)[1]
    return np.stack(inputs, axis=1).astype(np.float32), labels


def _sides(text: str) -> list[int]:
    words = text.replace("x", ",").split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise InvalidInput(f"{text!r} is not a shape. Write the sides of one sample, such as 224,224,3.")
    return [int(word) for word in words]


def _dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        raise InvalidInput(f"{name!r} is not a type. Write float32, int64 or uint8, for example.") from None


@contextmanager
def _progress(*, quiet: bool) -> Iterator[None]:
    """Show each probe while it runs."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status("starting a process to probe the model ...") as status:

        def show(event: Event) -> None:
            if event.kind == "forecast.probe":
                peak = written_size(event.values["peak_nbytes"])
                status.update(f"probing {event.values['setting']}: {event.values['rows']} rows took {peak}")

        remove = events.listen(show)
        try:
            yield
        finally:
            remove()
