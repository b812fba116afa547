"""Threads of OpenMP wait asleep beside readers, unless a user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

POLICY = "OMP_WAIT_POLICY"


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_importing_penstock_asks_for_sleep_where_nothing_is_set(given, found):
    env = {name: value for name, value in os.environ.items() if name != POLICY}
    env |= {} if given is None else {POLICY: given}
    code = f"import penstock, os; print(os.environ[{POLICY!r}])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


def test_a_script_that_is_only_watched_does_not_get_it(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != POLICY}
    (tmp_path / "script.py").write_text(f"import os; open('told', 'w').write(str(os.environ.get({POLICY!r})))")
    argv = [sys.executable, "-m", "penstock", "run", "--out", "run", "--", sys.executable, "script.py"]
    subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=True)
    assert (tmp_path / "told").read_text() == "None"
