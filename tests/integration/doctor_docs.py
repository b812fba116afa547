"""Writes the table of causes into docs/doctor.md, from what the tests run.

python -m tests.integration.doctor_docs [--run [--cured] [--keep FOLDER] [script ...]]
python -m tests.integration.doctor_docs --judge FOLDER

`--keep` leaves each run's evidence in a folder; `--judge` asks the detectors again about all that was kept there: a
verdict needs nothing but the evidence.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import re
import tempfile
from pathlib import Path

from penstock.core.sizes import size
from penstock.doctor.causes import all_causes
from penstock.doctor.static.scan import scan
from penstock.doctor.verdict.verdict import judge
from tests.integration.doctor_table import CASES, SCRIPTS, cured_script, prepare, run_case

RESULTS = Path(__file__).with_name("doctor_results.json")
"""What happened when each script was run last: {script: {"named": bool, "cured": bool}}; absent is not run."""
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
RECORDED = {
    "fragmentation", "device-taken", "pinned-rounding", "shm-too-small", "graph-constant",
}  # fmt: skip
"""Causes that are tested on recorded error texts."""


def table() -> str:
    """The table as Markdown."""
    results = json.loads(RESULTS.read_text())
    rows = [
        "| cause | shown by | limit | named first | found in the script | cure | cured one finishes |",
        "|-|-|-|-|-|-|-|",
    ]
    for cause in all_causes():
        case = next((case for case in CASES if case.cause == cause.name), None)
        if case is None:
            shown = "recorded error text" if cause.name in RECORDED else "not shown here"
            rows.append(f"| {cause.title} (`{cause.name}`) | {shown} | | | | {cause.cure} | |")
            continue
        findings = [f for f in scan(SCRIPTS / f"{case.script}.py", case.limit) if f.cause.name == cause.name]
        patch = any(finding.found.edits for finding in findings)
        hand = (SCRIPTS / f"{case.script}.cured.py").exists()
        cured = "environment" if case.env else "by hand" if hand else "`--fix`" if patch else "nothing to cure"
        found = "yes" if findings else "no: only a run shows it"
        run = {True: "yes", False: "no", None: "not run"}
        named, finishes = (run[results.get(case.script, {}).get(key)] for key in ("named", "cured"))
        rows.append(
            f"| {cause.title} (`{cause.name}`) | `{case.script}.py` | {size(case.limit)} | {named} | {found} | {cured} "
            f"| {finishes if case.dies else ''} |"
        )
    return "\n".join(rows)


def page_with(text: str) -> str:
    """The page with the table in its place."""
    return re.sub(
        r"<!-- causes -->.*<!-- end of causes -->",
        lambda _: f"<!-- causes -->\n{text}\n<!-- end of causes -->",
        PAGE.read_text(),
        flags=re.DOTALL,
    )


def run_cases(names: list[str], *, cured: bool, keep: Path | None = None) -> None:
    """Run scripts (all, if none is named) and note what happened."""
    for case in CASES:
        if names and case.script not in names:
            continue
        with contextlib.ExitStack() as stack:
            folder = keep / case.script if keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            prepare(case.prepare, folder)
            script = cured_script(case, folder) if cured else SCRIPTS / f"{case.script}.py"
            code, verdict, _ = run_case(script, case.limit, folder, case.env if cured else ())
        causes = [item["name"] for item in verdict["causes"]]
        good = code == 0 if cured else (code != 0) == case.dies and causes[:1] == [case.cause]
        note(case.script, "cured" if cured else "named", good)
        print(case.script, "cured" if cured else "named", good, code, causes, verdict["grew_at"][:3], flush=True)


def note(script: str, what: str, good: bool) -> None:
    """Keep what happened; several may be running side by side."""
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        results = json.load(file)
        results.setdefault(script, {})[what] = good
        file.seek(0)
        file.truncate()
        file.write(json.dumps(results, indent=1, sort_keys=True) + "\n")


def judge_kept(folder: Path) -> None:
    """Note what the detectors say now of runs whose evidence was kept."""
    for case in CASES:
        kept = folder / case.script / f"run-{case.script}.py"
        if not kept.exists():
            continue
        verdict = judge(kept)
        causes = [item.cause.name for item in verdict.causes]
        named = (verdict.ending.exit_code != 0) == case.dies and causes[:1] == [case.cause]
        note(case.script, "named", named)
        print(case.script, "named", named, [(c.cause.name, round(c.score, 2)) for c in verdict.causes[:3]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--cured", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--judge", type=Path)
    options = parser.parse_args()
    if options.judge:
        judge_kept(options.judge)
    if options.run:
        run_cases(options.scripts, cured=options.cured, keep=options.keep)
    PAGE.write_text(page_with(table()))


if __name__ == "__main__":
    main()
