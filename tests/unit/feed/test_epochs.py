from __future__ import annotations

import multiprocessing
import pickle

import pytest

from penstock.feed.epochs import EpochNumbers


def _ask(epochs: EpochNumbers, ticket: int, member: int, answers: object) -> None:
    answers.put((ticket, epochs.take(ticket, member)))  # type: ignore[attr-defined]


def test_epochs_follow_each_other():
    epochs = EpochNumbers(3)
    assert [epochs.take() for _ in range(3)] == [3, 4, 5]
    epochs.share()
    assert [epochs.take() for _ in range(2)] == [6, 7]


def test_one_ticket_is_one_epoch_for_all_members_each_once():
    epochs = EpochNumbers()
    epochs.share()
    assert [epochs.take(77, m) for m in (1, 0, 2)] == [0, 0, 0]
    assert [epochs.take(99, m) for m in (0, 1)] == [1, 1]
    assert epochs.take(77, 2) == 2, "a member that comes again is in a new pass"
    assert epochs.take(77, 0) == 2
    assert epochs.take() == 3


def test_a_late_member_still_finds_its_pass():
    epochs = EpochNumbers()
    epochs.share()
    early = [epochs.take(1000 + 2 * n, 0) for n in range(20)]
    assert [epochs.take(1000 + 2 * n, 1) for n in range(20)] == early == list(range(20))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_count_together(method):
    epochs = EpochNumbers()
    epochs.share()
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    found = {}
    for ticket in (11, 13):
        children = [context.Process(target=_ask, args=(epochs, ticket, m, answers)) for m in range(2)]
        for child in children:
            child.start()
        got = [answers.get(timeout=60) for _ in children]
        for child in children:
            child.join()
        assert len({epoch for _, epoch in got}) == 1
        found[ticket] = got[0][1]
    assert found == {11: 0, 13: 1}
    assert epochs.take() == 2


def test_a_copy_counts_for_itself():
    epochs = EpochNumbers()
    epochs.share()
    epochs.take()
    copy = pickle.loads(pickle.dumps(epochs))
    assert copy.take() == 1
    assert copy.take() == 2
    assert epochs.take() == 1
