"""`penstock report`: what happened in a run, on the terminal and as one HTML file.

Covers: the command's options and what it prints.
Does not cover: the report (penstock.watch).
"""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from penstock.watch.run_folder import find_run


def report(
    run: Annotated[Path, typer.Argument(help="A run folder; of a folder with several, the one that changed last")],
    out: Annotated[Path | None, typer.Option(help="HTML file to write; without it RUN/report.html")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the HTML file in a browser")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard scalars into this folder")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, and write no HTML")] = False,
) -> None:
    """Show what happened in a run: memory by holder, loss, throughput, waits, decisions, and advice.

    The HTML file is complete in itself: it opens offline and can be sent to someone.

    Examples:

        penstock report runs/mnist

        penstock report runs/mnist --out mnist.html --open

        penstock report runs/mnist --tensorboard tb/mnist
    """
    folder = find_run(run)
    from rich.console import Console

    from penstock.watch.report import report_data, write_report
    from penstock.watch.summary import summarise

    with Console(stderr=True).status("Reading the run's events"):  # half a minute for a run of a million steps
        chart_data = report_data(folder)
    if as_json:
        typer.echo(json.dumps(chart_data, allow_nan=False))
    else:
        console = Console()
        console.print(summarise(chart_data))
        path = write_report(chart_data, out or folder / "report.html")
        console.print(f"\nReport: {path}", highlight=False, soft_wrap=True, markup=False)
        if open_page:
            webbrowser.open(path.resolve().as_uri())
    if tensorboard is not None:
        from penstock.sources.tfrecord.write import frame  # compiles its checksum: only where it is used
        from penstock.watch.export.tensorboard import export_scalars

        _, count = export_scalars(folder, tensorboard, frame)
        typer.echo(f"TensorBoard: {count} records in {tensorboard}", err=as_json)
