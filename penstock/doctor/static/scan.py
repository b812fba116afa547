"""Findings in a script before it runs.

Covers: every cause's look at the script and the modules beside it, ordered by place; findings as JSON and SARIF.
Does not cover: proving them (a rehearsal or a run does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.core.sizes import size
from penstock.doctor.causes import all_causes
from penstock.doctor.causes.cause import Cause, Found
from penstock.doctor.static.script import Script, read_program


@dataclass(frozen=True)
class Finding:
    """A cause at a line of a script; `level` is error (it cannot fit), warning (it grows) or note (it may)."""

    cause: Cause
    found: Found
    level: str

    @property
    def file(self) -> str:
        return self.found.place.rpartition(":")[0]

    @property
    def line(self) -> int:
        return int(self.found.place.rpartition(":")[2])

    def as_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause.name,
            "level": self.level,
            "file": self.file,
            "line": self.line,
            "text": self.found.text,
            "nbytes": self.found.nbytes,
            "why": self.cause.why,
            "cure": self.cause.cure,
            "instead": self.cause.instead,
            "patch": bool(self.found.edits),
        }


def scan(path: Path, limit: int) -> list[Finding]:
    """Look for every cause in a script and what it imports from beside itself."""
    return scan_scripts(read_program(path), limit)


def scan_scripts(scripts: Sequence[Script], limit: int) -> list[Finding]:
    found: dict[tuple[str, str], Finding] = {}
    for script in scripts:
        for cause in all_causes():
            for item in cause.script(script):
                found.setdefault((cause.name, item.place), Finding(cause, item, _level(item, limit)))
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found.values(), key=lambda finding: (order[finding.level], finding.file, finding.line))


def _level(found: Found, limit: int) -> str:
    if found.nbytes is not None and found.nbytes > limit:
        return "error"
    if found.nbytes is not None:
        return "warning" if found.nbytes > 0.25 * limit else "note"
    return "warning" if found.sure else "note"


def describe(finding: Finding, limit: int) -> str:
    """One line: what, and how it compares with the limit."""
    text = finding.found.text
    if finding.found.nbytes is not None:
        text += f" (limit {size(limit)})"
    return text


def _uri(path: Path) -> str:
    """Relative to where the command runs, as code review wants it; whole for files elsewhere."""
    whole, here = path.absolute(), Path.cwd()
    return quote(whole.relative_to(here).as_posix()) if whole.is_relative_to(here) else whole.as_uri()


def sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """The findings for code review, as SARIF 2.1.0."""
    causes = {finding.cause.name: finding.cause for finding in findings}
    rules = [
        {
            "id": cause.name,
            "shortDescription": {"text": cause.title},
            "fullDescription": {"text": cause.why},
            "help": {"text": cause.cure},
        }
        for cause in causes.values()
    ]
    results = [
        {
            "ruleId": finding.cause.name,
            "level": finding.level,
            "message": {"text": f"{finding.found.text}. {finding.cause.cure}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _uri(Path(finding.file))},
                        "region": {"startLine": finding.line},
                    }
                }
            ],
        }
        for finding in findings
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": {"name": "penstock doctor", "version": version, "rules": rules}}, "results": results}
        ],
    }
