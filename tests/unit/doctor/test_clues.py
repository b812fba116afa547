"""What is read out of evidence: who grew, inside of what, since when, and how much of it a cause explains."""

from __future__ import annotations

import dataclasses
from typing import Any

from penstock.doctor.evidence.read import Frame, Stack
from penstock.doctor.verdict.facts import Clues
from penstock.doctor.verdict.rank import rank
from penstock.doctor.verdict.verdict import judge_evidence
from tests.unit.doctor.test_verdict import GB, evidence

MINE = Frame("/home/me/train.py", 10, "main")
LOSS = Frame("/home/me/train.py", 20, "step")
EVALUATION = Frame("/usr/lib/python3/site-packages/transformers/trainer.py", 4000, "evaluation_loop")
TABLES = Frame("/usr/lib/python3/site-packages/pandas/io/sql.py", 7, "read_query")
IMPORTING = Frame("/usr/lib/python3/site-packages/pandas/io/sql.py", 1, "<module>")


def stacks(*threads: tuple[Frame, ...], used: tuple[int, ...] = (GB, 3 * GB)) -> list[Stack]:
    """The same threads at two moments, between which memory grew."""
    return [Stack(float(i), 7, n, threads) for i, n in enumerate(used)]


def clues(**changes: Any) -> Clues:
    """A run that died for memory."""
    dying = {"stderr": "MemoryError: Unable to allocate 2.0 GiB", "status": 256}
    return Clues(evidence(used=(GB // 2, GB, 3 * GB), **{**dying, **changes}))


def holder(name: str, nbytes: int, length: int, *, kind: str = "builtins.list", detail: str = "") -> dict[str, Any]:
    return {"name": name, "where": "train.py:1", "type": kind, "detail": detail, "nbytes": nbytes, "len": length}


def look(t: float, phase: str, *holders: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "pid": 7, "phase": phase, "holders": list(holders)}


def test_growth_is_added_up_by_the_library_that_was_on_the_stack():
    found = clues(stacks=stacks((EVALUATION, MINE)))
    assert found.grew_inside("transformers/trainer.py:evaluation_loop") == 3 * GB
    assert found.grew_inside("transformers/trainer.py:train") == 0
    assert found.grew_inside("transformers/") == 3 * GB
    assert clues(stacks=stacks((IMPORTING, MINE))).grew_inside("pandas/io/") == 0  # an import is no table


def test_growth_while_two_threads_of_the_script_run_is_blamed_on_neither_alone():
    alone, two = clues(stacks=stacks((LOSS,))), clues(stacks=stacks((MINE,), (LOSS,)))
    assert alone.grew_at(LOSS.place) == 3 * GB
    assert two.grew_at(LOSS.place) == two.grew_at(MINE.place) == 3 * GB // 2


def test_what_grows_while_data_is_loaded_is_not_a_list_that_is_never_cleared():
    loading = [look(1.0, "load", holder("rows", GB, 10)), look(2.0, "load", holder("rows", 3 * GB, 900))]
    boards = {7: {"phase": "train", "step": 50}}
    assert "list-never-cleared" not in [r.cause.name for r in rank(clues(holders=loading, boards=boards), [])]
    training = [look(1.0, "train", holder("log", GB, 10)), look(2.0, "train", holder("log", 3 * GB, 900))]
    first = rank(clues(holders=training, boards=boards), [])[0]
    assert (first.cause.name, first.confidence) == ("list-never-cleared", "high")


def test_a_cause_that_explains_little_of_what_was_taken_is_told_with_less_confidence():
    def score(nbytes: int) -> float:
        call = {"t": 1.0, "pid": 7, "what": "toarray", "where": "train.py:3", "nbytes": nbytes, "detail": ""}
        found = [r.score for r in rank(clues(calls=[call], run={"limit": GB}), []) if r.cause.name == "dense-expansion"]
        return found[0]

    assert score(2 * GB) > 0.75 > score(GB // 3)


def test_hidden_memory_is_no_cause_where_a_name_holds_it():
    boards = {7: {"phase": "train", "step": 50, "traces": 200}}
    held = [look(1.0, "train", holder("x", 3 * GB, 0, kind="numpy.ndarray"))]
    hidden = rank(clues(boards=boards), [])
    shown = rank(clues(boards=boards, holders=held), [])
    assert hidden[0].cause.name == "retracing" and hidden[0].confidence == "high"
    assert all(r.confidence == "low" for r in shown if r.cause.name == "retracing")


def test_gradients_that_are_on_are_no_evidence_of_graphs():
    boards = {7: {"phase": "validation", "step": 5}}
    looks = [{**look(1.0, "validation", holder("logits", 2 * GB, 40, detail="of torch.Tensor [8, 9]")), "grad": True}]
    samples = [{**sample, "boards": {"7": {"phase": "validation", "step": 5}}} for sample in clues().evidence.samples]
    found = rank(clues(boards=boards, holders=looks, samples=samples), [])
    assert "validation-with-grad" not in [r.cause.name for r in found]
    looks[0]["holders"][0]["detail"] = "of torch.Tensor grad_fn [8, 9]"
    found = rank(clues(boards=boards, holders=looks, samples=samples), [])
    assert found[0].cause.name == "validation-with-grad"


def test_lengths_of_containers_are_in_the_verdict():
    looks = [look(1.0, "train", holder("log", GB, 10)), look(2.0, "train", holder("log", 3 * GB, 900))]
    lines = judge_evidence(evidence(used=(GB, 3 * GB), status=9, holders=looks)).probes
    assert any("log grew from 10 to 900 entries" in line for line in lines)
    looks[1]["holders"][0].update(nbytes=GB, len=10)
    lines = judge_evidence(evidence(used=(GB, 3 * GB), status=9, holders=looks)).probes
    assert any("none of 1 containers" in line for line in lines)


def test_a_library_of_tables_is_a_whole_table():
    found = rank(clues(stacks=stacks((TABLES, MINE)), run={"limit": 3 * GB}), [])
    assert found[0].cause.name == "whole-table-loaded"


def test_a_run_that_finished_with_room_to_spare_has_no_data_that_does_not_fit():
    call = {"t": 1.0, "pid": 7, "what": "toarray", "where": "train.py:3", "nbytes": 2 * GB, "detail": ""}
    died, finished = clues(calls=[call]), clues(calls=[call], stderr="", status=0)
    assert [r.cause.name for r in rank(died, [])] == ["dense-expansion"]
    assert rank(finished, []) == []
    tight = clues(calls=[call], stderr="", status=0, run={"limit": 3 * GB})
    assert [r.cause.name for r in rank(tight, [])] == ["dense-expansion"]


def test_what_a_launcher_starts_is_asked_for_phase_and_steps():
    boards = {7: {"phase": "load"}, 8: {"phase": "save", "step": 60}, 9: {"phase": "train", "step": 59}}
    found = clues(boards=boards)
    assert (found.phase, found.count("step")) == ("save", 60)
    alone = clues(boards={7: {"phase": "train", "step": 3}, 8: {"phase": "load"}})
    assert (alone.phase, alone.count("step")) == ("train", 3)


def test_a_process_that_waits_for_another_has_not_taken_the_memory():
    waiting = (Frame("/usr/lib/python3.11/selectors.py", 1, "select"), MINE)
    asked = [Stack(1.0, 7, 3 * GB, (waiting,)), Stack(1.01, 8, 3 * GB, ((LOSS,),))]
    found = clues(stacks=asked)
    assert (found.grew_at(LOSS.place), found.grew_at(MINE.place)) == (3 * GB, 0)
    assert clues(stacks=asked[:1]).grew_at(MINE.place) == 3 * GB  # nobody else has answered


def test_the_share_of_workers_is_taken_near_the_peak_where_they_still_live():
    def sample(t: float, used: int, held: dict[int, int]) -> dict[str, Any]:
        procs = [
            {"pid": pid, "ppid": 1, "name": "python", "anon": nbytes, "file": 0, "shmem": 0, "pss": None}
            for pid, nbytes in held.items()
        ]
        return {"t": t, "procs": procs, "boards": {"7": {"phase": "train", "step": 1}}, "used": used}

    samples = [sample(1.0, int(2.9 * GB), {7: GB, 8: GB, 9: GB}), sample(2.0, 3 * GB, {7: GB})]
    found = Clues(dataclasses.replace(evidence(run={"limit": 3 * GB}), samples=samples))
    assert abs(found.worker_share - 2 / 3) < 0.01


def test_many_batches_that_tensorflow_prefetches_are_a_product():
    calls = [
        {"t": 1.0, "pid": 7, "what": "tf.data.batch", "where": "train.py:3", "value": 32, "element": 1000},
        {"t": 1.0, "pid": 7, "what": "tf.data.prefetch", "where": "train.py:4", "value": 500, "element": GB // 4000},
    ]
    first = rank(clues(calls=calls), [])[0]
    assert (first.cause.name, first.place) == ("prefetch-product", "train.py:4")
    calls[1]["value"] = 2
    assert "prefetch-product" not in [item.cause.name for item in rank(clues(calls=calls), [])]


def test_a_first_step_that_was_not_counted_is_told_with_less_confidence():
    inside = stacks((Frame("/usr/lib/python3/site-packages/keras/layer.py", 1, "forward"), MINE))

    def first(steps: int) -> str:
        board = {7: {"phase": "load", "step": steps}}
        return next(
            item.confidence
            for item in rank(clues(stacks=inside, boards=board), [])
            if item.cause.name == "step-too-big"
        )

    assert (first(0), first(1)) == ("medium", "high")


def test_a_cause_that_accounts_for_less_than_half_is_not_told_with_high_confidence():
    def told(nbytes: int) -> tuple[str, str]:
        call = {"t": 1.0, "pid": 7, "what": "toarray", "where": "train.py:3", "nbytes": nbytes, "detail": ""}
        verdict = judge_evidence(clues(calls=[call], run={"limit": 2 * GB}).evidence)
        item = next(item for item in verdict.causes if item.cause.name == "dense-expansion")
        return item.confidence, verdict.doubt

    assert told(2 * GB) == ("high", "")
    confidence, doubt = told(int(0.9 * GB))
    assert confidence == "medium"
    assert "accounts for 30%" in doubt
