"""The commands' help: examples, exit codes, and completion for shells."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer.testing

from penstock.cli.main import app

run = typer.testing.CliRunner()


@pytest.mark.parametrize("command", ["train", "predict"])
def test_help_has_examples_and_exit_codes(command):
    found = run.invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    assert f"penstock {command} " in found.output and "Examples" in found.output
    assert "0 done" in found.output and "130 interrupted" in found.output


def test_shells_complete_commands_and_options():
    env = {
        **os.environ, "_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock train --prec", "COMP_CWORD": "2",
    }  # fmt: skip
    code = "from penstock.cli.main import main; import sys; sys.argv = ['penstock']; main()"
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "--precision" in found.stdout


def test_commands_import_no_framework():
    code = (
        "import sys, penstock.cli.main, penstock.train.supervisor\n"
        "print([m for m in ('tensorflow', 'torch', 'jax', 'keras') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
