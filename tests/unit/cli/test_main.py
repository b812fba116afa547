"""The command line as a user meets it: help with examples, errors without tracebacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import __version__


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True)


def test_version():
    assert run("version").stdout.strip() == __version__


@pytest.mark.parametrize("command", ["demo", "pack", "shrink"])
def test_help_has_examples(command):
    found = run(command, "--help")
    assert found.returncode == 0
    assert f"penstock {command}" in found.stdout and "xample" in found.stdout


def test_a_mistake_is_one_sentence():
    found = run("demo", "--memory", "plenty")
    assert found.returncode == 1
    assert "'plenty' is not a size" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_unknown_command_is_wrong_usage():
    assert run("frobnicate").returncode == 2
