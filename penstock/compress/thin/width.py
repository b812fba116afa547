"""Narrower networks: the same graph with fewer channels.

Covers: scaling all widths, and removing the least important channels so that memory and time really fall.
Does not cover: following channels (channels.py, compress/keras/ and torch/trace.py), zeroing single weights
(prune.py).
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from penstock.compress.data import Inputs
from penstock.compress.framework import framework_of
from penstock.compress.thin.channels import Scope, Trace
from penstock.core.errors import InvalidInput
from penstock.core.events import events

ModelT = TypeVar("ModelT")


def width(
    model: ModelT,
    factor: float,
    *,
    init: Literal["important", "fresh"] = "important",
    example: Inputs | None = None,
    multiple: int = 1,
) -> ModelT:
    """The model with all widths (filters, units, heads) scaled; the original is untouched.

    `init="important"` starts from the large model's most important channels, "fresh" from new weights.
    torch modules need `example`, one batch of inputs. Channels that cannot be followed stay: see `left_alone`.
    """
    if not 0 < factor <= 1:
        raise InvalidInput(f"factor must be above 0 and at most 1, not {factor}.")
    if init not in ("important", "fresh"):
        raise InvalidInput(f"init must be 'important' or 'fresh', not {init!r}.")
    return _cut(model, factor, "layer", multiple, example, init == "important")  # type: ignore[no-any-return]


def remove_channels(
    model: ModelT,
    fraction: float,
    *,
    scope: Scope = "layer",
    example: Inputs | None = None,
    multiple: int = 1,
) -> ModelT:
    """The model without `fraction` of its channels, those with the smallest weights; fine-tune it afterwards.

    `scope="layer"` takes the fraction from every layer, "global" takes the weakest wherever they are.
    """
    if not 0 <= fraction < 1:
        raise InvalidInput(f"fraction must be at least 0 and below 1, not {fraction}.")
    if scope not in ("layer", "global"):
        raise InvalidInput(f"scope must be 'layer' or 'global', not {scope!r}.")
    return _cut(model, 1 - fraction, scope, multiple, example, True)  # type: ignore[no-any-return]


def left_alone(model: object, example: Inputs | None = None) -> list[str]:
    """Why some channels of a model cannot be removed, in sentences that name the layers."""
    return framework_of(model).trace(model, example).notes


def _cut(model: Any, keep: float, scope: Scope, multiple: int, example: Inputs | None, copy_weights: bool) -> Any:
    if multiple < 1:
        raise InvalidInput(f"multiple must be 1 or more, not {multiple}.")
    framework = framework_of(model)
    trace: Trace = framework.trace(model, example)
    stays = trace.keep(trace.scores(framework.arrays(model)), keep, scope=scope, multiple=multiple)
    small = framework.rebuild(model, trace, stays, copy_weights=copy_weights)
    events.emit(
        "shrink.width",
        framework.name,
        before=framework.parameters(model),
        after=framework.parameters(small),
        notes=trace.notes,
    )
    return small
