"""Every cause that can be shown here: it really fails, the verdict names it first, the cured one finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.doctor_docs import PAGE, page_with, table
from tests.integration.doctor_table import CASES, MB, SCRIPTS, Case, cured_script, prepare, run_case

HEALTHY = sorted(Path(__file__).with_name("doctor_healthy").glob("*.py"))
TIGHT = {"torch_workers": 1.6}
"""Batches of several workers meet between two samples: at 1.2 times the peak that was seen it really died once."""
BESIDE = 32 * MB
"""Page tables and other memory of the kernel count towards a group's limit and are in no sample."""
QUICK = [pytest.param(case, id=case.script) for case in CASES if case.quick]
ALL = [pytest.param(case, id=case.script) for case in CASES]
DEADLY = [pytest.param(case, id=case.script) for case in CASES if case.dies]


def check_named(case: Case, folder: Path) -> None:
    prepare(case.prepare, folder)
    code, verdict, text = run_case(SCRIPTS / f"{case.script}.py", case.limit, folder)
    assert (code != 0) == case.dies, text
    assert verdict["causes"], text
    assert verdict["causes"][0]["name"] == case.cause, text


@pytest.mark.parametrize("case", QUICK)
def test_a_cause_is_named_first(case, tmp_path):
    check_named(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL)
def test_every_cause_is_named_first(case, tmp_path):
    check_named(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", DEADLY)
def test_the_cured_script_finishes_under_the_same_limit(case, tmp_path):
    prepare(case.prepare, tmp_path)
    code, verdict, text = run_case(cured_script(case, tmp_path), case.limit, tmp_path, case.env)
    assert code == 0, text
    assert not verdict["ending"]["memory"]


@pytest.mark.slow
@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_healthy_scripts_finish_without_an_alarm(path, tmp_path):
    """With plenty of room, and then with a fifth more than it was seen to need (more where workers peak unseen)."""
    roomy, tight = tmp_path / "roomy", tmp_path / "tight"
    roomy.mkdir()
    tight.mkdir()
    code, verdict, text = run_case(path, 3_000_000_000, roomy)
    assert (code, verdict["causes"], verdict["ending"]["kind"]) == (0, [], "finished"), text
    peak = verdict["shape"]["peak"]
    code, verdict, text = run_case(path, max(int(TIGHT.get(path.stem, 1.2) * peak), peak + BESIDE), tight)
    assert (code, verdict["causes"], verdict["ending"]["kind"]) == (0, [], "finished"), text


def test_the_table_in_the_docs_is_that_of_the_tests():
    assert PAGE.read_text() == page_with(table())
