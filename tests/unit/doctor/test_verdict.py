"""Verdicts on recorded evidence: error texts of machines with accelerators, and traps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.doctor.causes import all_causes
from penstock.doctor.evidence.read import Evidence, read_evidence
from penstock.doctor.rehearse.forecast import outlook
from penstock.doctor.run.ask import CALM_S, STILL_S, WALK_SHARE, Asker
from penstock.doctor.verdict.ending import how_it_ended
from penstock.doctor.verdict.rank import Ranked, with_rival
from penstock.doctor.verdict.shape import Point, shape_of
from penstock.doctor.verdict.text import curve
from penstock.doctor.verdict.verdict import judge_evidence

GB = 1 << 30
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1 GiB is free. "
    "Including non-PyTorch memory, this process has 14.50 GiB memory in use. Of the allocated memory 13.90 GiB is "
    "allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated."
)
PIECES = CUDA.replace("120.00 MiB is reserved", "5.50 GiB is reserved")
SHARED = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 12 MiB is free. "
    "Process 1234 has 14.10 GiB memory in use. Including non-PyTorch memory, this process has 1.50 GiB memory in use."
)
CUDNN = "UNKNOWN: Failed to determine best cudnn convolution algorithm: INTERNAL: All algorithms tried failed"
BUS = (
    "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.\nERROR: Unexpected bus error encountered in worker. "
    "This might be caused by insufficient shared memory (shm)."
)
GRAPH = "ValueError: Cannot create a tensor proto whose content is larger than 2GB."
PINNED = "RuntimeError: CUDA error: out of memory in cudaHostAlloc"


def evidence(
    *, error: str = "", stderr: str = "", status: int | None = 256, used: tuple[int, ...] = (GB,), **changes: Any
) -> Evidence:
    run = {
        "command": ["python", "train.py"], "cwd": "/nowhere", "start": 0.0, "limit": 4 * GB, "limit_from": "host",
        "limit_kept_by": "system", "kills": {"group": 0, "machine": 0}, "group_oom": False, "shm": [0, 1 << 26],
    }  # fmt: skip
    run.update(changes.pop("run", {}))
    process = {"pid": 7, "ppid": 1, "name": "python", "anon": GB, "file": 0, "shmem": 0, "pss": None}
    samples = [
        {"t": float(i), "procs": [process], "boards": {"7": {"phase": "train", "step": 1}}, "used": n}
        for i, n in enumerate(used)
    ]
    story = [
        {"t": 9.0, "kind": "end", "status": status, "kills": {"group": 0, "machine": 0}, "kernel": [], "journal": []}
    ]
    errors = []
    if error:
        errors = [
            {
                "t": 8.0,
                "pid": 7,
                "kind": "error",
                "type": "RuntimeError",
                "message": error,
                "frames": [],
                "phase": "train",
            }
        ]
    found = Evidence(
        Path("/nowhere"), run, samples, story, stderr, errors=errors, boards={7: {"phase": "train", "step": 1}}
    )
    return Evidence(**{**vars(found), **changes})


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        (CUDA, "framework-oom", "step-too-big"),
        (PIECES, "framework-oom", "fragmentation"),
        (SHARED, "framework-oom", "device-taken"),
        (CUDNN, "framework-oom", "device-taken"),
        (BUS, "shm-full", "shm-too-small"),
        (GRAPH, "failed", "graph-constant"),
        (PINNED, "failed", "pinned-rounding"),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.",
            "framework-oom",
            "step-too-big",
        ),
    ],
)
def test_error_texts_of_other_machines(text, kind, cause):
    verdict = judge_evidence(evidence(error=text))
    assert verdict.ending.kind == kind
    assert verdict.causes[0].cause.name == cause


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "ray"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "slurm"),
        ("RuntimeError: unable to mmap 96 bytes from file </torch_1>: Cannot allocate memory (12)", "map-count"),
        ("OSError: [Errno 12] Cannot allocate memory", "fork-memory"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 12.5 GiB for an array", "python-memory"),
    ],
)
def test_killers_and_limits_are_known_by_their_words(stderr, kind):
    ending = how_it_ended(evidence(stderr=stderr))
    assert (ending.kind, ending.memory) == (kind, True)


def test_sigbus_without_a_full_shm_is_another_thing():
    assert how_it_ended(evidence(status=7)).kind == "bus-error"


def test_a_userspace_killer_is_believed_by_its_log():
    story = [
        {"t": 9.0, "kind": "end", "status": 9, "kills": {}, "kernel": [], "journal": ["systemd-oomd[1]: Killed /a"]}
    ]
    assert how_it_ended(evidence(status=9, story=story)).kind == "userspace-killer"


def test_everything_ended_at_once_in_a_group_that_is_killed_as_a_whole():
    found = how_it_ended(evidence(story=[], used=(GB, 2 * GB, 4 * GB - 1), run={"group_oom": True}))
    assert (found.kind, found.memory, found.confirmed) == ("group-oom", True, False)


def test_everything_ended_at_once_far_below_the_limit_is_no_memory_kill():
    assert how_it_ended(evidence(story=[], used=(GB,))).kind == "lost"


def test_kills_elsewhere_on_the_machine_are_not_ours():
    story = [
        {
            "t": 9.0,
            "kind": "end",
            "status": 9,
            "kills": {"machine": 5},
            "kernel": ["Killed process 999 (x)"],
            "journal": [],
        }
    ]
    assert how_it_ended(evidence(status=9, story=story)).kind == "killed-by-other"


def points(values: list[int], phase: str = "train") -> list[Point]:
    return [Point(i * 0.2, n, phase, 1, i) for i, n in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([100 + 8 * i for i in range(100)], "growth per step"),
        ([300 + 400 * (i % 20 > 10) for i in range(100)], "sawtooth"),
        ([500] * 100, "plateau"),
    ],
)
def test_shapes(values, name):
    assert shape_of(points(values), 1000).name == name


def test_growth_before_the_first_step_and_in_validation():
    load = points([10 * i for i in range(90)], "load")
    assert shape_of(load, 1000).name == "peak at load"
    both = points([300] * 40) + points([300 + 20 * i for i in range(30)], "validation")
    assert shape_of(both, 1000).name == "step at validation"


def test_a_leak_is_extrapolated_to_the_step_of_its_end():
    ahead = outlook(points([100 + 2 * i for i in range(100)]), 1000)
    assert ahead.per_step == pytest.approx(2, rel=0.05)
    assert ahead.dies_at == pytest.approx(450, rel=0.05)
    assert outlook(points([400 + 100 * (i % 7 == 0) for i in range(100)]), 1000).dies_at is None


def test_a_steep_rise_is_looked_at_more_often_than_a_calm_run():
    asker = Asker(1000)
    assert asker.add(0.0, 10) == {"holders"} or asker.wait_s() > 0.1
    for i in range(5):
        asker.add(1.0 + i * 0.1, 100 + 150 * i)
    assert asker.seconds_left() < 3
    assert asker.wait_s() < 0.1
    assert "probes" in asker.add(1.6, 910) or asker.probes_at > 0


def test_a_still_run_is_sampled_seldom_and_a_moving_one_often():
    asker = Asker(limit=1000)
    for i in range(40):
        asker.add(i * 0.2, 100)
    assert asker.wait_s() == STILL_S
    asker.add(8.2, 120)
    assert asker.wait_s() <= CALM_S


def test_walks_over_names_that_take_long_are_asked_for_seldom():
    quick, slow = Asker(limit=1000), Asker(limit=1000)
    times = [i * 0.2 for i in range(1, 200)]
    walks = {
        name: sum("holders" in asker.add(t, 100, walk_s) for t in times)
        for name, asker, walk_s in (("quick", quick, 0.001), ("slow", slow, 0.04))
    }
    assert walks["quick"] > 8
    assert walks["slow"] <= 1 + times[-1] * WALK_SHARE / 0.04  # the first is asked before its cost is known


def test_a_new_rise_after_a_fall_is_probed_soon():
    asker = Asker(limit=1000)
    assert "probes" in asker.add(100.0, 950)
    assert "probes" not in asker.add(100.3, 960)
    asker.add(101.0, 300)
    assert "probes" in asker.add(103.5, 950)


def test_torn_files_are_read_up_to_the_tear(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(evidence().run))
    whole = json.dumps(evidence().samples[0]).encode()
    (tmp_path / "samples.jsonl").write_bytes(whole + b"\n" + whole[: len(whole) // 2])
    found = read_evidence(tmp_path)
    assert (len(found.samples), found.torn) == (1, 1)
    assert "peak" in curve(judge_evidence(found))


def test_going_on_needs_a_checkpoint_that_is_there_and_an_option_that_the_script_declares(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import argparse\nargparse.ArgumentParser().add_argument('--resume-from', default=None)\n")
    saved = tmp_path / "last.pt"
    run = {"command": ["python", "train.py"], "cwd": str(tmp_path)}
    calls = [{"t": 1.0, "what": "saved", "where": "", "pid": 7, "path": str(saved)}]
    found = judge_evidence(evidence(status=9, run=run, calls=calls)).resume
    assert (found.checkpoint, found.command) == ("", "")
    saved.write_bytes(b"x")
    assert judge_evidence(evidence(status=9, run=run, calls=calls)).resume.command == (
        f"python train.py --resume-from {saved}"
    )
    script.write_text("print('no option')\n")
    found = judge_evidence(evidence(status=9, run=run, calls=calls)).resume
    assert (found.checkpoint, found.command) == (str(saved), "")


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("logs/version_0/checkpoints/epoch=1-step=20.ckpt", "logs/version_0/checkpoints/epoch=1-step=20.ckpt"),
        ("out/checkpoint-500/trainer_state.json", "out/checkpoint-500"),
        ("runs/checkpoints/checkpoint_3/model.safetensors", "runs/checkpoints/checkpoint_3"),
        ("ckpts/40/_CHECKPOINT_METADATA", "ckpts/40"),
        ("model.weights.h5", "model.weights.h5"),
        ("best.keras", "best.keras"),
        ("notes.txt", ""),
        ("ckpts/40.orbax-checkpoint-tmp/_CHECKPOINT_METADATA", ""),
    ],
)  # fmt: skip
def test_checkpoints_are_known_by_what_trainers_call_them(tmp_path, made, named):
    path = tmp_path / made
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    run = {"command": ["python", "train.py"], "cwd": str(tmp_path)}
    found = judge_evidence(evidence(status=9, run=run)).resume
    assert found.checkpoint == (str(tmp_path / named) if named else "")
    late = {**run, "start": path.stat().st_mtime + 10}
    assert judge_evidence(evidence(status=9, run=late)).resume.checkpoint == ""


def test_a_file_of_a_checkpoint_folder_stands_for_the_folder(tmp_path):
    part = tmp_path / "out" / "checkpoint-20" / "optimizer.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    calls = [{"t": 1.0, "what": "saved", "where": "", "pid": 7, "path": str(part)}]
    run = {"command": ["python", "train.py"], "cwd": "/nowhere"}
    assert judge_evidence(evidence(status=9, run=run, calls=calls)).resume.checkpoint == str(part.parent)


def test_a_retry_inside_of_the_handler_is_known_by_both_errors():
    refused = {"type": "RuntimeError", "message": "DefaultCPUAllocator: can't allocate memory", "place": "train.py:20"}
    error = dict(evidence(error=refused["message"]).errors[0], during={**refused, "retried": "train.py:32"})
    verdict = judge_evidence(evidence(errors=[error]))
    assert (verdict.causes[0].cause.name, verdict.causes[0].place) == ("retry-in-handler", "train.py:32")
    error["during"] = {"type": "KeyError", "message": "'x'", "place": "train.py:20"}
    assert "retry-in-handler" not in [item.cause.name for item in judge_evidence(evidence(errors=[error])).causes]


def test_two_causes_that_fit_alike_are_told_as_a_doubt():
    first, second = (Ranked(cause, score, (), "", 0, None) for cause, score in zip(all_causes(), (0.9, 0.87)))
    doubted = with_rival([first, second])
    assert (doubted[0].confidence, doubted[0].rival) == ("medium", second.cause.title)
    assert (doubted[1].confidence, doubted[1].rival) == ("medium", first.cause.title)
    far = [first, dataclasses.replace(second, score=0.7)]
    assert with_rival(far)[0].confidence == "high"
    same = [dataclasses.replace(item, place="train.py:3") for item in (first, second)]
    assert with_rival(same)[0].confidence == "high"


def test_a_training_of_our_own_goes_on_in_its_folder():
    run = {"command": ["python", "-m", "penstock", "train", "photos/", "--out", "runs/a b", "--batch", "8"]}
    found = judge_evidence(evidence(status=9, run=run)).resume
    assert found.command == "python -m penstock train --resume --out 'runs/a b'"
