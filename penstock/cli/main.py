"""The command line: one file per command, errors without tracebacks.

Covers: registering commands, exit codes (0 done, 1 failed, 2 wrong usage, 130 interrupted).
A command's file imports what it runs only when it runs it: help and wrong options are answered at once.
Does not cover: what the commands do.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.bench import bench
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.pack import pack
from penstock.cli.plan import plan
from penstock.cli.predict import predict
from penstock.cli.report import report
from penstock.cli.run import PASSED_ON, run
from penstock.cli.shrink.command import shrink
from penstock.cli.train import train
from penstock.cli.verdict import verdict
from penstock.cli.watch import watch
from penstock.core.errors import PenstockError
from penstock.core.secrets import redact

app = typer.Typer(
    name="penstock",
    help="Training jobs that never run out of memory.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,  # they may hold the password of a database
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Training jobs that never run out of memory."""


app.command()(bench)
app.command()(demo)
app.command()(doctor)
app.command()(pack)
app.command()(plan)
app.command()(predict)
app.command()(report)
app.command(context_settings=PASSED_ON)(run)
app.command()(shrink)
app.command()(train)
app.command()(verdict)
app.command()(watch)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point: a user's mistake is one sentence, not a traceback."""
    try:
        app()
    except PenstockError as error:
        _tell(str(error))
        sys.exit(1)
    except OSError as error:  # no such folder, no right to write, no space left: the system's own words
        _tell(_told(error))
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)


def _tell(message: str) -> None:
    """One sentence on stderr, without secrets.

    Letter by letter: in `penstock[torch]` or data[ab].csv the brackets are no markup.
    """
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("penstock:", "bold red"), " ", redact(message))
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def _told(error: OSError) -> str:
    """What the system could not do, and with which file."""
    why = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {why}." if error.filename else f"{why}."
