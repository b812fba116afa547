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


@pytest.mark.parametrize("name", ["data[abc].csv", "data[/b].csv"])
def test_brackets_in_a_message_are_no_markup(name, tmp_path):
    found = run("train", str(tmp_path / name))
    assert found.returncode == 1
    assert str(tmp_path / name) in found.stderr  # letter by letter, and on one line however narrow the terminal is
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_database_that_does_not_answer_is_one_sentence():
    pytest.importorskip("adbc_driver_postgresql")
    found = run("train", "postgresql://me:secret@127.0.0.1:1/x", "--query", "t", "--target", "y")
    assert found.returncode == 1
    assert "the database cannot be reached" in found.stderr and len(found.stderr.strip().splitlines()) == 1
    assert "secret" not in found.stderr


def test_a_file_that_is_no_model_is_called_that(tmp_path):
    (tmp_path / "cut.keras").write_bytes(b"PK but no more")
    found = run("shrink", str(tmp_path / "cut.keras"), "--out", str(tmp_path / "small.keras"), "--quantize", "int8")
    assert found.returncode == 2
    assert "cut.keras: not a Keras model, or one that was cut short" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
