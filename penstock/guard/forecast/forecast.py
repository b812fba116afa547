"""Will it fit? A forecast of a training job's memory before it runs.

Covers: `forecast`: looking at the data, having the model probed, and drawing the conclusions.
Does not cover: probing (probe.py, child.py), the answers (result.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.sizes import Size, parse_size
from penstock.guard.forecast.curve import Curve, scaled
from penstock.guard.forecast.probe import Finding, ForecastFailed, run_probe
from penstock.guard.forecast.result import Costs, Forecast, Parts, Setting
from penstock.guard.forecast.subject import EXAMPLE_ROWS, shown_rows
from penstock.guard.recovery.microbatch import count_rows
from penstock.memory.limits import Limit, current_limit

if TYPE_CHECKING:
    import keras
    import torch

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
LEAST_TOP = 128
"""Probes go up to the batch, or to this many rows where that is more."""
MISSES = {"torch": 0.04, "keras-torch": 0.02, "keras-tensorflow": 0.1, "keras-jax": 0.06}
"""The worst miss by framework, held-out models included, rounded up; docs/forecast.md says where from."""


@dataclass(frozen=True)
class ForecastOptions:
    """Everything about a forecast that is neither model nor data. See `forecast`."""

    batch: int | None = None
    """Rows of the batch to forecast; by default those of the first batch of the data."""
    backend: str | None = None
    """For 'module.py:build': the backend that Keras is to run on."""
    device_memory: Size | None = None
    """Also say which batch would fit in so much device memory."""
    seconds: float = 15.0
    """About how much CPU time probing may take, once the framework is loaded and the model built."""
    timeout_s: float = 300.0
    """The probing process is stopped after this."""
    probe_rows: int | None = None
    """The most rows that are really run."""
    workers: int = 1
    """Processes on one host that share the batch and the limit."""


def forecast(
    model: keras.Model | torch.nn.Module | str,
    data: Any = None,
    *,
    optimizer: Any = None,
    loss: Any = None,
    precision: str | None = None,
    remat: bool | None = None,
    memory: Size | None = None,
    options: ForecastOptions | None = None,
) -> Forecast:
    """Predict the peak memory of guarded training, for any batch, and say what fits.

    `model` is a compiled Keras model, a torch module (with `loss`, and `optimizer` or a function of its parameters that
    makes one; AdamW otherwise), or "module.py:build". `data` is a dataset of batches or one batch; without it a Keras
    model's own shapes are used. The model itself is not touched: a copy takes a few small steps in another process.

    `precision` and `remat` name one setting; by default the model's own is compared with bfloat16 and with
    rematerialisation. `memory` is the limit to compare with; by default what this process may use.

    >>> print(forecast(model, ds))  # doctest: +SKIP
    >>> forecast(net, batch, loss=torch.nn.CrossEntropyLoss(), precision="float32", remat=False).fits  # doctest: +SKIP
    True
    """
    options = options or ForecastOptions()
    _check(precision, options)
    first = first_batch(data)
    rows = options.batch or (None if first is None else count_rows(first))
    if rows is None:
        raise InvalidInput("Without data the batch is not known. Pass ForecastOptions(batch=256).")
    rows = -(-rows // options.workers)
    spec = {
        "batch": rows, "top": options.probe_rows or max(rows, LEAST_TOP), "precision": precision, "remat": remat,
        "seconds": options.seconds, "backend": options.backend, "optimizer": optimizer, "loss": loss,
    }  # fmt: skip
    example = None if first is None else shown_rows(first, EXAMPLE_ROWS)
    del first
    limit = current_limit() if memory is None else Limit(parse_size(memory), "asked for")
    if options.workers > 1:
        limit = Limit(limit.nbytes // options.workers, f"{limit.reason}, shared by {options.workers} processes")
    findings = run_probe(model, spec, example, timeout_s=options.timeout_s, heard=_emit)
    device = None if options.device_memory is None else parse_size(options.device_memory)
    found = conclude(findings, batch=rows, limit=limit, device_nbytes=device)
    if options.workers > 1:
        found = replace(found, notes=(_divided(options.workers, rows), *found.notes))
    events.emit(
        "forecast.done", found.who, fits=found.fits, peak_nbytes=found.peak(), micro=found.micro_batch(),
        limit_nbytes=limit.nbytes,
    )  # fmt: skip
    return found


def _divided(workers: int, rows: int) -> str:
    return (
        f"For each of {workers} processes on one host: {rows} rows of the batch and 1/{workers} of the limit. Each "
        f"holds the whole model; gradients are added up in place."
    )


def first_batch(data: Any) -> Any:
    """The batch itself, or the first one of a dataset or other iterable; None for no data."""
    if data is None or isinstance(data, (tuple, Mapping)) or hasattr(data, "shape"):
        return data
    if not isinstance(data, Iterable):
        raise InvalidInput(f"The data is a {type(data).__name__}; give a dataset of batches, or one batch (x, y).")
    stream = iter(data)
    first = next(stream, None)
    if hasattr(stream, "close"):
        stream.close()
    if first is None:
        raise InvalidInput("The dataset has no batches.")
    return tuple(first) if isinstance(first, list) else first


def conclude(findings: list[Finding], *, batch: int, limit: Limit, device_nbytes: int | None = None) -> Forecast:
    """The forecast that a probe's findings amount to, also if the probe died on the way."""
    about = _one(findings, "subject")
    ended = findings[-1]
    if about is None or _one(findings, "save") is None:
        failed = _one(findings, "failed")
        if failed is not None:
            raise InvalidInput(failed["text"]) if failed["invalid"] else ForecastFailed("gave up", failed["text"])
        raise ForecastFailed(ended["why"], ended["said"])
    base = _one(findings, "base")
    assert base is not None
    found = [_of(findings, setting) for setting in _settings(findings)]
    costs = tuple(cost for own in found for cost in _costs(own, base["nbytes"]))
    state = base["state"]
    notes = [finding["text"] for finding in findings if finding["kind"] == "note"]
    if _one(findings, "done") is None:
        notes.append(f"The probe {ended['why']} before it was through; what it had told until then is used.")
    parts = Parts(
        parameters=state["parameters"],
        gradients=state["gradients"],
        optimizer=state["optimizer"],
        copies=state["copies"],
        base=max(0, base["nbytes"] - state["held"]),
        per_sample=int(costs[0].whole.slope),
        row=about["row"],
        evaluation=int(costs[0].evaluate.at(batch) + batch * about["row"]),
        save=int(costs[0].save_nbytes),
    )
    error = MISSES.get(about["framework"], max(MISSES.values()))
    return Forecast(about["who"], about["framework"], batch, limit, parts, costs, error, device_nbytes, tuple(notes))


def _costs(own: list[Finding], base: float) -> Iterator[Costs]:
    """One setting's curves, from its findings; `base` is the process with state and programs, at rest.

    With rematerialisation only the gradients change; where the compiler tells by how much, that was not probed.
    """
    points = [finding for finding in own if finding["kind"] == "point"]
    whole = [(p["rows"], base + p["whole"]) for p in points]
    sums = max((p["split"] - p["whole"] for p in points if "split" in p), default=0.0)
    split = [(p["rows"], base + p.get("split", p["whole"] + sums)) for p in points]
    evaluate = [(p["rows"], base + p["evaluate"]) for p in points if "evaluate" in p]
    evaluate += [(e["rows"], base + e["nbytes"]) for e in own if e["kind"] == "evaluation"]
    compiled, save, ratio = _one(own, "compiled"), _one(own, "save"), _one(own, "ratio")
    if save is None:  # the probe died in this setting
        return
    if compiled is not None:
        pair = compiled["at_last"], compiled["at_rows"]
        whole.append(scaled(whole, pair, compiled["rows"], base))
        split.append(scaled(split, pair, compiled["rows"], base))
    costs = Costs(
        setting=Setting(points[0]["precision"], points[0]["remat"]),
        whole=Curve.through(whole),
        split=Curve.through(split),
        evaluate=Curve.through(evaluate),
        apply_nbytes=base + statistics.median(p["apply"] for p in points if "apply" in p),
        save_nbytes=base + save["nbytes"],
        probed_rows=points[-1]["rows"],
        source="probe steps" if compiled is None else "the compiler and probe steps",
    )
    yield costs
    if ratio is not None:
        yield replace(
            costs,
            setting=Setting(costs.setting.precision, True),
            whole=_times(costs.whole, ratio["ratio"], base),
            split=_times(costs.split, ratio["ratio"], base),
            source="the compiler and probe steps",
        )


def _times(curve: Curve, ratio: float, base: float) -> Curve:
    return Curve(tuple((rows, base + (nbytes - base) * ratio) for rows, nbytes in curve.points))


def _one(findings: list[Finding], kind: str) -> Finding | None:
    return next((finding for finding in findings if finding["kind"] == kind), None)


def _settings(findings: list[Finding]) -> list[tuple[str, bool]]:
    return list(dict.fromkeys((f["precision"], f["remat"]) for f in findings if f["kind"] == "point"))


def _of(findings: list[Finding], setting: tuple[str, bool]) -> list[Finding]:
    return [f for f in findings if (f.get("precision"), f.get("remat")) == setting]


def _check(precision: str | None, options: ForecastOptions) -> None:
    if precision is not None and precision not in PRECISIONS:
        raise InvalidInput(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, not {precision!r}.")
    for name in ("batch", "probe_rows"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}.")
    if options.backend not in (None, "tensorflow", "torch", "jax"):
        raise InvalidInput(f"Keras runs on tensorflow, torch or jax, not on {options.backend!r}.")


def _emit(finding: Finding) -> None:
    if finding["kind"] == "point":
        setting = str(Setting(finding["precision"], finding["remat"]))
        events.emit(
            "forecast.probe", "forecast", setting=setting, rows=finding["rows"],
            peak_nbytes=int(finding["base"] + finding["whole"]), seconds=round(finding["seconds"], 2),
        )  # fmt: skip
