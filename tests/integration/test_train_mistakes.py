"""What a user may get wrong is told in a sentence, at once, and leaves nothing behind that is in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.demo.data import make_images
from penstock.train.config import Config, write_config
from penstock.train.supervisor import only_one

COMMANDS = ("bench", "demo", "pack", "plan", "predict", "report", "shrink", "train", "watch")


def penstock(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "penstock", *map(str, words)]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, "COLUMNS": "300", **env}
    )


def sentence(done: subprocess.CompletedProcess[str], code: int) -> str:
    """What was said on stderr, after the exit code and the absence of a traceback were checked."""
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    told = done.stderr.strip()
    assert told.startswith("penstock") and len(told.splitlines()) == 1, told
    return told


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,verdict\n" + "1.5,2,good\n2.5,1,bad\n" * 20)
    return tmp_path / "t.csv"


def test_wrong_data_is_told_before_a_folder_is_made(tmp_path, table):
    out = tmp_path / "run"
    (tmp_path / "empty").mkdir()
    for words, told in (
        ([tmp_path / "nothing.csv"], "does not exist"),
        ([table, "--target", "verdicts"], "no column 'verdicts'"),
        ([tmp_path / "empty"], "holds no file"),
    ):
        assert told in sentence(penstock("train", *words, "--out", out), 1)
        assert not out.exists(), "the same command can be given again, mended"


def test_a_damaged_picture_is_named_with_the_option_that_leaves_it_out(tmp_path):
    data = tmp_path / "pictures"
    make_images(data, 24, lambda count: None)
    damaged = next(data.rglob("*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:200])
    done = penstock("train", data, "--backend", "jax", "--batch", "8", "--out", tmp_path / "run")
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert str(damaged) in done.stderr and "add --on-error skip" in done.stderr


def test_a_folder_that_cannot_be_written(tmp_path, table):
    (tmp_path / "file").write_text("")
    for words in (["train", table, "--target", "verdict"], ["report", _finished(tmp_path)]):
        told = sentence(penstock(*words, "--out", tmp_path / "file" / "x"), 1)
        assert str(tmp_path / "file") in told


def _finished(folder):
    """A run with one event, enough for a report."""
    (folder / "done").mkdir()
    (folder / "done" / "events.jsonl").write_text('{"t": 1, "kind": "run.start", "who": "x"}\n')
    return folder / "done"


def test_runs_that_are_not_there(tmp_path, table):
    missing = tmp_path / "missing"
    assert "is not a run folder" in sentence(penstock("train", "--resume", "--out", missing), 1)
    assert not missing.exists()
    assert "no model at" in sentence(penstock("predict", missing, table), 1)
    assert "no run folder" in sentence(penstock("report", missing), 1)
    assert "no folder" in sentence(penstock("watch", missing), 1)


def test_predicting_looks_before_it_loads_a_framework(tmp_path, table):
    """The model here cannot be opened: mistakes in the other words of the command are told before it is tried."""
    run = tmp_path / "run"
    write_config(run, Config(data=str(table), backend="torch"))
    assert "not trained to the end" in sentence(penstock("predict", run, table), 1)
    (run / "model.keras").write_bytes(b"not loaded")
    assert "does not exist" in sentence(penstock("predict", run, tmp_path / "nothing.csv"), 1)
    (tmp_path / "file").write_text("")
    told = sentence(penstock("predict", run, table, "--out", tmp_path / "file" / "p.parquet"), 1)
    assert str(tmp_path / "file") in told


def test_two_trainings_into_one_folder(tmp_path, table):
    out = tmp_path / "run"
    config = Config(data=str(table), target="verdict", epochs=7)
    write_config(out, config)
    before = (out / "config.json").read_text()
    told = sentence(penstock("train", table, "--target", "verdict", "--out", out), 2)
    assert "holds a run already" in told
    with only_one(out):
        told = sentence(penstock("train", "--resume", "--out", out, "--epochs", 9), 2)
    assert "is being trained by another process" in told
    assert (out / "config.json").read_text() == before, "the options of the run that is under way stay"


def test_help_has_examples_and_codes():
    """One process for all commands: starting ten would take most of a minute on a slow machine."""
    script = (
        "import click, typer, json\n"
        "from penstock.cli.main import app\n"
        "group = typer.main.get_command(app)\n"
        "context = click.Context(group)\n"
        "names = group.list_commands(context)\n"
        "print(json.dumps({name: group.get_command(context, name).help or '' for name in names}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    helps = json.loads(done.stdout.splitlines()[-1])
    assert set(COMMANDS) <= set(helps)
    for name in COMMANDS:
        assert "Examples:" in helps[name] and f"penstock {name}" in helps[name], name


def test_shell_completion_names_commands_and_options():
    words = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock tr", "COMP_CWORD": "1"}
    script = "from penstock.cli.main import main; import sys; sys.argv[0] = 'penstock'; main()"

    def completed(line: str, word: int) -> set[str]:
        env = {**os.environ, **words, "COMP_WORDS": line, "COMP_CWORD": str(word)}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
        return set(done.stdout.split())

    assert "train" in completed("penstock tr", 1)
    assert {"--memory", "--model"} <= completed("penstock train --m", 2)
