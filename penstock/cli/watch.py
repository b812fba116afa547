"""`penstock watch`: the live page of a run, or of a folder of runs.

Covers: the command's options, the address it prints, a warning where others can reach the page.
Does not cover: the page (penstock.watch).
"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.errors import NotFound
from penstock.watch.address import HOST, PORT

if TYPE_CHECKING:
    from penstock.watch.live.start import Watching


def watch(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder of several: all are listed")],
    port: Annotated[int | None, typer.Option(help=f"Port; without it {PORT}, or the next one that is free")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in")] = HOST,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser")] = False,
) -> None:
    """Show runs on a live page while they train, or afterwards; Ctrl-C ends it.

    The page is served on this machine only, and its address holds a secret. Prometheus may scrape /metrics.

    Examples:

        penstock watch runs/

        penstock watch runs/mnist --port 8000 --open
    """
    if not folder.exists():
        raise NotFound(f"There is no folder {folder}. Give the folder that `penstock train --out` writes.")
    from rich.console import Console

    from penstock.watch.live.start import is_local, run_watch

    console = Console(stderr=True)

    def tell(watching: Watching) -> None:
        typer.echo(watching.url)
        if not is_local(host):
            console.print(
                f"[bold yellow]Other machines can reach this page[/] on {host}:{watching.port}, unencrypted. "
                "Anyone with the address above, including its token, can see the runs.",
                highlight=False,
            )
        console.print("Ctrl-C ends it.", style="dim")
        if open_page:
            webbrowser.open(watching.url)

    run_watch(folder, host=host, port=port, tell=tell)
