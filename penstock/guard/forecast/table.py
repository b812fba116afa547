"""A forecast as text.

Covers: the parts, the table "batch x setting -> peak, fits?", the largest batches, and what to do.
Does not cover: the numbers (result.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.sizes import size
from penstock.guard.forecast.curve import MOST_ROWS
from penstock.guard.recovery.ladder import MARGIN
from penstock.guard.recovery.microbatch import num_parts

if TYPE_CHECKING:
    from penstock.guard.forecast.result import Forecast, Setting


def render(forecast: Forecast) -> str:
    """All of it, about 25 lines."""
    sections = [_head(forecast), _parts(forecast), _table(forecast), _advice(forecast), _foot(forecast)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def batches(batch: int) -> list[int]:
    """The sizes that are shown: the asked one, two smaller, two larger."""
    return sorted({max(1, batch // 4), max(1, batch // 2), batch, batch * 2, batch * 4})


def verdict(nbytes: float, limit: float, error: float) -> str:
    """'fits', 'tight' when the forecast's own error could tip it, or 'no'."""
    if nbytes > limit * MARGIN:
        return "no"
    return "tight" if nbytes * (1 + error) > limit else "fits"


def _head(forecast: Forecast) -> list[str]:
    return [f"{forecast.who} on {forecast.framework}, batch {forecast.batch:,}, limit {forecast.limit}"]


def _parts(forecast: Forecast) -> list[str]:
    parts = forecast.parts
    rows = [
        ("parameters", size(parts.parameters)),
        ("gradients", size(parts.gradients)),
        ("optimizer state", size(parts.optimizer)),
        ("guard's copies", size(parts.copies)),
        ("framework base", size(parts.base)),
        ("activations", f"{size(parts.per_sample)} a sample"),
        ("batch data", f"{size(parts.row)} a sample"),
        ("evaluation peak", size(parts.evaluation)),
        ("checkpoint peak", size(parts.save)),
    ]
    return [f"  {name:<17}{text:>18}" for name, text in rows]


def _table(forecast: Forecast) -> list[str]:
    widths = [max(len(str(setting)), 14) for setting in forecast.settings]
    head = "".join(f"   {setting!s:>{width}}" for setting, width in zip(forecast.settings, widths, strict=True))
    lines = [f"  {'batch':>11}{head}"]
    for rows in batches(forecast.batch):
        cells = [_cell(forecast, rows, setting) for setting in forecast.settings]
        mark = "*" if rows == forecast.batch else " "
        lines.append(f"{mark} {rows:>11,}{_row(cells, widths)}")
    largest = [forecast.largest_batch(precision=s.precision, remat=s.remat) for s in forecast.settings]
    lines.append(f"  {'largest':>11}{_row([_count(rows) for rows in largest], widths)}")
    micro = [forecast.micro_batch(precision=s.precision, remat=s.remat) for s in forecast.settings]
    lines.append(f"  {'micro-batch':>11}{_row([_count(rows) for rows in micro], widths)}")
    if forecast.device_nbytes is not None:
        on_device = [forecast.largest_on_device(precision=s.precision, remat=s.remat) for s in forecast.settings]
        lines.append(f"  {'on device':>11}{_row([_count(rows) for rows in on_device], widths)}")
    return lines


def _row(cells: list[str], widths: list[int]) -> str:
    return "".join(f"   {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _cell(forecast: Forecast, rows: int, setting: Setting) -> str:
    nbytes = forecast.peak(rows, precision=setting.precision, remat=setting.remat)
    return f"{size(nbytes)} {verdict(nbytes, forecast.limit.nbytes, forecast.error):>5}"


def _count(rows: int) -> str:
    if rows >= MOST_ROWS:
        return "any"
    return f"{rows:,}" if rows else "none"


def _advice(forecast: Forecast) -> list[str]:
    batch, micro = forecast.batch, forecast.micro_batch()
    if forecast.fits:
        return [f"The batch of {batch:,} fits whole: peak {size(forecast.peak())}."]
    if micro:
        peak = forecast.peak(micro=micro)
        return [
            f"The batch of {batch:,} does not fit whole ({size(forecast.peak())}). In {num_parts(batch, micro)} parts "
            f"of at most {micro:,} rows it does: peak {size(peak)}, the same mathematics."
        ]
    lines = [f"Not even one row at a time fits: that takes {size(forecast.peak(micro=1))}."]
    for setting in forecast.settings[1:]:
        found = forecast.micro_batch(precision=setting.precision, remat=setting.remat)
        if found:
            return [*lines, f"With {setting} it fits in parts of at most {found:,} rows."]
    short = forecast.peak(micro=1) / MARGIN - forecast.limit.nbytes
    if forecast.parts.base > forecast.limit.nbytes * MARGIN:
        return [*lines, f"The framework alone takes {size(forecast.parts.base)}: it needs {size(short)} more memory."]
    return [*lines, f"It needs {size(short)} more memory, a smaller model, or an optimizer with less state."]


def _foot(forecast: Forecast) -> list[str]:
    first = forecast.costs[0]
    lines = [
        f"From {first.source} of up to {first.probed_rows:,} rows in a process of their own. On the test models such",
        f"forecasts for {forecast.framework} missed by at most {forecast.error:.0%}. They hold for processes with",
        "MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072. Read-ahead of data takes of what is left.",
    ]
    return [*lines, *forecast.notes]
