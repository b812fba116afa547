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


@pytest.mark.parametrize(
    "words", ["demo --memory 2", "run --memory 2 -- true", "doctor --memory 2", "plan net.py:build --memory 2"]
)
def test_a_size_without_a_unit_is_refused_by_every_command(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def build(): ...\n")
    found = run(*words.split())
    assert found.returncode == 1
    assert "--memory 2 would be 2 bytes. Write a unit: --memory 2GB." in found.stderr


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


def test_a_password_in_the_wrong_place_is_not_repeated():
    found = run("plan", "postgresql://ann:S3CR'ET@127.0.0.1:9/x?sslpassword=S3CRET")
    assert found.returncode == 1 and "postgresql://ann:***@" in found.stderr
    assert "S3CR" not in found.stdout + found.stderr


def test_a_file_that_is_no_model_is_called_that(tmp_path):
    (tmp_path / "cut.keras").write_bytes(b"PK but no more")
    found = run("shrink", str(tmp_path / "cut.keras"), "--out", str(tmp_path / "small.keras"), "--quantize", "int8")
    assert found.returncode == 2
    assert "cut.keras: not a Keras model, or one that was cut short" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


LOADED = """
import sys
from penstock.cli.main import main
sys.argv = ["penstock", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    code = end.code
heavy = {"numpy", "pyarrow", "cv2", "numba", "tensorflow", "torch", "jax", "keras", "pandas"}
print("\\n", code, sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["train", "--help"], 0),
        (["train", "--no-such-option"], 2),
        (["train", "nowhere.csv"], 1),
        (["train", "nowhere/*.csv"], 1),
        (["train", "nowhere", "--batch", "0"], 2),
        (["plan", "net.py"], 1),
        (["plan", "nowhere.py:build"], 1),
        (["bench", "nowhere/"], 1),
        (["pack", "nowhere/", "out/"], 1),
        (["predict", "nowhere", "data.csv"], 1),
        (["report", "nowhere"], 1),
        (["watch", "nowhere"], 1),
        (["shrink", "nowhere.keras", "--out", "small.keras"], 2),
    ],
    ids=str,
)
def test_help_and_mistakes_are_answered_before_anything_is_loaded(words, code, tmp_path):
    """Counted, not timed: what takes seconds is NumPy, Arrow and the frameworks."""
    found = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.splitlines()[-1].strip() == f"{code} []", found.stderr
    assert "Traceback" not in found.stderr


def test_version_is_an_option_too():
    assert run("--version").stdout.strip() == __version__


def test_defaults_shown_in_help_are_those_of_the_rooms():
    from penstock.cli.pack import QUALITY
    from penstock.write import encode

    assert encode.QUALITY == QUALITY
