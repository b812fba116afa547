"""`penstock doctor`: will this script run out of memory, and is this machine fit for it.

Covers: the command's options, showing findings, diffs and checks, exit codes (0 nothing found, 1 something found,
2 wrong usage, 3 it cannot fit).
Does not cover: finding (penstock.doctor).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from penstock import __version__
from penstock.core.errors import InvalidInput
from penstock.core.sizes import option_size
from penstock.memory.limits import find_limit

if TYPE_CHECKING:  # the doctor's rooms are loaded by the command that needs them: all others answer without
    from penstock.doctor.environment.check import Check
    from penstock.doctor.rehearse.rehearse import Rehearsal
    from penstock.doctor.static.scan import Finding

FOUND, CANNOT_FIT = 1, 3
COLORS = {"error": "red", "warning": "yellow", "note": "cyan", "good": "green"}
MARKS = {"error": "◆", "warning": "▲", "note": "•", "good": "■"}


def doctor(
    script: Annotated[Path | None, typer.Argument(help="A training script; without it the machine is checked")] = None,
    memory: Annotated[str | None, typer.Option(help="The limit to judge by; without it this machine's")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Show the patch that cures what can be cured")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Write the patch into the files")] = False,
    run_it: Annotated[bool, typer.Option("--rehearse", help="Run some minutes of it under the limit")] = False,
    minutes: Annotated[float, typer.Option(help="How long a rehearsal may take")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Write findings for code review to this file")
    ] = None,
) -> None:
    """Look for what will exhaust memory: in a script before it runs, or on this machine.

    Each finding has a line, the bytes as far as the data tell them, and a cure. `--fix` shows a patch that keeps
    comments and formatting; `--fix --apply` writes it. Exit codes: 0 nothing found, 1 something found, 3 it cannot fit.

    Examples:

        penstock doctor

        penstock doctor train.py --memory 16GB

        penstock doctor train.py --fix --apply

        penstock doctor train.py --rehearse --memory 4GB --minutes 5
    """
    limit = find_limit().nbytes if memory is None else option_size("--memory", memory)
    if script is None:
        _environment(as_json)
        return
    if apply and not fix:
        raise InvalidInput("--apply writes the patch of --fix: give both.")
    if run_it:
        _rehearse(script, limit, minutes, as_json)
        return
    from penstock.doctor.static.scan import sarif, scan

    findings = scan(script, limit)
    if sarif_file is not None:
        sarif_file.write_text(json.dumps(sarif(findings, __version__), indent=1))
    if as_json:
        typer.echo(json.dumps({"limit": limit, "findings": [finding.as_json() for finding in findings]}))
    else:
        _show(findings, limit)
    if fix:
        _fix(findings, apply)
    raise typer.Exit(_code(findings))


def _code(findings: list[Finding]) -> int:
    """Notes alone do not fail a build."""
    levels = {finding.level for finding in findings}
    return CANNOT_FIT if "error" in levels else FOUND if "warning" in levels else 0


def _show(findings: list[Finding], limit: int) -> None:
    from penstock.doctor.static.scan import describe

    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        head = Text(f"{MARKS[finding.level]} {finding.found.place}  ", style=COLORS[finding.level])
        head.append(describe(finding, limit), style="bold")
        console.print(head)
        console.print(Text(f"  {finding.cause.why}", style="dim"))
        console.print(Text(f"  Cure: {finding.cause.cure}" + (" [--fix]" if finding.found.edits else "")))
    if not findings:
        console.print("Nothing found that exhausts memory.", style="green")


def _fix(findings: list[Finding], apply: bool) -> None:
    """Show the patch of each file; write it only if asked to."""
    from rich.syntax import Syntax

    from penstock.doctor.patch.apply import apply_edits, diff

    console = Console(highlight=False, soft_wrap=True)
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.found.edits:
            by_file.setdefault(finding.file, []).append(finding)
    if not by_file:
        console.print("None of it can be patched by itself; the cures above are to be made by hand.")
    for name, found in by_file.items():
        path = Path(name)
        before = path.read_text(encoding="utf-8")
        after = apply_edits(before, [edit for finding in found for edit in finding.found.edits])
        console.print(Syntax(diff(path, before, after), "diff", background_color="default"))
        if apply:
            path.write_text(after, encoding="utf-8")
            console.print(f"Written: {path}", markup=False)


def _environment(as_json: bool) -> None:
    from penstock.doctor.environment.check import check_environment

    checks = check_environment()
    if as_json:
        typer.echo(json.dumps([{"name": c.name, "level": c.level, "text": c.text, "change": c.change} for c in checks]))
    else:
        _show_checks(checks)
    raise typer.Exit(FOUND if any(check.level in ("warning", "error") for check in checks) else 0)


def _show_checks(checks: list[Check]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        line = Text(f"{MARKS[check.level]} ", style=COLORS[check.level])
        line.append(f"{check.name}: ", style="bold")
        line.append(check.text)
        console.print(line)
        if check.change:
            console.print(Text(f"  {check.change}", style="dim"))


def _rehearse(script: Path, limit: int, minutes: float, as_json: bool) -> None:
    from penstock.doctor.rehearse.rehearse import rehearse

    found = rehearse(script, limit, minutes)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _show_rehearsal(found)
    raise typer.Exit(0 if found.fits else CANNOT_FIT)


def _show_rehearsal(found: Rehearsal) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{'■' if found.fits else '◆'} {found.text}", style="green" if found.fits else "red"))
    for line in found.lines:
        console.print(Text(f"  {line}"))
    console.print(Text(f"  Evidence: {found.folder}", style="dim"))
