"""`penstock report`: a run folder becomes one HTML file.

Covers: reading a run whole, writing the file.
Does not cover: the page (html.py), the summary on a terminal (summary.py).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

from penstock.core.durable import private_files
from penstock.watch.chart_data import ChartData, draw
from penstock.watch.digest import Digest
from penstock.watch.html import report_page
from penstock.watch.ranks import RankTable
from penstock.watch.run_folder import EVENTS, find_run, read_events


def digest_run(folder: str | os.PathLike[str]) -> Digest:
    """Take in all events of a run."""
    digest = Digest()
    for event in read_events(folder):
        digest.take(event)
    return digest


def report_data(folder: str | os.PathLike[str]) -> ChartData:
    """A run folder's chart data; a folder of several runs gives the one that changed last."""
    run = find_run(folder)
    return {**draw(digest_run(run), name=run.resolve().name), "ranks": RankTable(run).read()}


def write_report(chart_data: ChartData, out: str | os.PathLike[str]) -> Path:
    """Write the chart data as a page of its own; the file appears whole or not at all."""
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".part")
    with private_files() if (path.parent / EVENTS).exists() else nullcontext():  # a run's files are their owner's
        half.write_text(report_page(chart_data), encoding="utf-8")
    half.replace(path)
    return path
