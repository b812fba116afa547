"""`penstock verdict`: why a run died, from what it left on disk.

Covers: the command's options and what it prints.
Does not cover: judging (penstock.doctor.verdict).
"""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def verdict(
    run: Annotated[Path, typer.Argument(help="The folder that `penstock run` wrote")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON, and write no HTML")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser")] = False,
) -> None:
    """Say why a run died: who was killed, who held the memory, in which phase, for which cause, and what cures it.

    Only the folder is needed: neither the run nor its supervisor must have ended well.

    Examples:

        penstock verdict runs/first

        penstock verdict runs/first --json
    """
    from penstock.doctor.run.retry import write_verdict
    from penstock.doctor.verdict.text import summarise
    from penstock.doctor.verdict.verdict import judge

    found = judge(run)
    if as_json:
        typer.echo(json.dumps(found.as_json(), allow_nan=False))
        return
    console = Console()
    console.print(summarise(found))
    path = write_verdict(found)
    console.print(f"Page: {path}", highlight=False, soft_wrap=True, markup=False)
    if open_page:
        webbrowser.open(path.resolve().as_uri())
