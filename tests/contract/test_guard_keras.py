"""fit() on every Keras backend: the mathematics of the whole batch, whatever the split and whatever fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.keras_process import Outcome, case_names, run_cases

CASES = Path(__file__).parent / "guard_keras_cases.py"


@pytest.fixture(scope="module", params=["torch", "tensorflow", "jax"])
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
