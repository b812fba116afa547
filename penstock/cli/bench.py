"""`penstock bench`: what holds a pipeline back, and what would help.

Covers: the command's options, what it shows while it measures, its output.
Does not cover: measuring and judging (penstock.bench).
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments.paths import check_there


def bench(
    src: Annotated[str, typer.Argument(help="A file, folder, glob, URL or database")],
    batch: Annotated[int, typer.Option(help="Rows a batch")] = 32,
    size: Annotated[int | None, typer.Option(help="Resize images to this height and width")] = None,
    map: Annotated[str | None, typer.Option("--map", help="Your function, as module.py:function")] = None,
    step_ms: Annotated[float, typer.Option(help="How long the simulated consumer works on a batch; 0 for none")] = 50.0,
    seconds: Annotated[float, typer.Option(help="About how long to measure")] = 20.0,
    shuffle: Annotated[bool, typer.Option(help="Measure with shuffling, as training does")] = True,
    trials: Annotated[bool, typer.Option(help="Try caching, packing and resizing on a sample")] = True,
    query: Annotated[str | None, typer.Option(help="The table or select of a database, if it has several")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw: out.html (needs nothing) or out.png")] = None,
) -> None:
    """Measure a dataset on this machine: the bottleneck, the distance to the limits, and what would help.

    The pipeline runs on files in memory and on files that are not (their pages are put out of the page cache first),
    with and without a consumer that takes --step-ms a batch. Packing, caching and resizing are tried on a sample in a
    temporary folder.

    Examples:

        penstock bench photos/ --size 224 --batch 64

        penstock bench 'tables/*.csv' --batch 1024 --step-ms 5 --plot bench.html

        penstock bench photos/ --size 224 --map augment.py:augment --json

        penstock bench postgresql://user@host/db --query measurements --batch 1024
    """
    check_there(src)
    from rich.console import Console

    from penstock.bench import report
    from penstock.bench.chain import BenchPlan
    from penstock.bench.plot import check_plot, write_plot
    from penstock.bench.run import bench as run_bench
    from penstock.bench.verdict import judge
    from penstock.core.user.code import load_function

    if plot is not None:
        check_plot(plot)
    function = None if map is None else load_function(map)
    plan = BenchPlan(src, batch, size, function, step_ms / 1e3, seconds, shuffle, trials, query)
    console = Console(stderr=True)
    with console.status("looking at the data") as status:
        facts = run_bench(plan, lambda what: status.update(f"measuring: {what}"))
    verdict = judge(facts)
    if plot is not None:
        write_plot(plot, facts, verdict)
    if json:
        typer.echo(json_module.dumps(report.to_json(facts, verdict), indent=2))
    else:
        typer.echo(report.text(facts, verdict))
        if plot is not None:
            typer.echo(f"Picture: {plot}")
