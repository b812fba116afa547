"""Whole runs of fit() on every Keras backend: recomputation, rehearsal, faults in every phase, crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.keras_process import Outcome, case_names, run_cases

CASES = Path(__file__).parent / "guard_keras_run_cases.py"
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("tensorflow", "jax")]


@pytest.fixture(scope="module", params=["torch", *SLOW])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(request, CASES, backend, tmp_path_factory.mktemp(backend))


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("case", case_names(CASES))
def test_a_case_on_a_backend(case: str, outcome: Outcome) -> None:
    wrong = outcome(case)
    assert wrong is None, wrong
