"""Advice: facts in, sentences out."""

from __future__ import annotations

import pytest

from penstock.watch.advice import RunFacts, advise, bottleneck, gather
from penstock.watch.digest import Digest
from tests.unit.watch.runs import GB, START_T, event, progress, sample, start, training


def titles(facts: RunFacts) -> list[str]:
    return [advice.title for advice in advise(facts)]


@pytest.mark.parametrize(
    ("share", "begins"),
    [(None, "Not known"), (0.6, "The data"), (0.01, "The model"), (0.1, "Mostly the model")],
)
def test_the_bottleneck_is_named(share, begins):
    assert bottleneck(RunFacts(waited_share=share)).startswith(begins)


@pytest.mark.parametrize(
    ("facts", "title"),
    [
        (RunFacts(waited_share=0.4), "The model waits for data"),
        (RunFacts(waited_share=0.01), "Data keeps up with the model"),
        (RunFacts(peak_nbytes=99, limit_nbytes=100), "Memory came close to the limit"),
        (RunFacts(peak_nbytes=101, limit_nbytes=100), "More memory than the limit was in use"),
        (RunFacts(peak_nbytes=10, limit_nbytes=100, trained_s=5), "There is room in memory"),
        (RunFacts(unaccounted=(GB, 2 * GB), limit_nbytes=4 * GB), "Unaccounted memory keeps growing"),
        (RunFacts(speeds=(1000.0, 500.0)), "The run became slower"),
        (RunFacts(deaths=1), "The training process died once"),
        (RunFacts(deaths=3), "The training process died 3 times"),
        (RunFacts(not_finite={"loss": 12345}), "loss became NaN or infinite at step 12,345"),
        (RunFacts(val_loss=(0.5, 2, 0.6, 9)), "The validation loss rises"),
        (RunFacts(kinds={"guard.oom": 2}, micro=32), "A batch did not fit, and was split"),
        (RunFacts(kinds={"cache.full": 1}), "The cache did not fit in memory"),
        (RunFacts(status="failed", error="boom"), "The run failed"),
        (RunFacts(status="interrupted"), "The run was interrupted"),
    ],
)
def test_one_finding_each(facts, title):
    assert titles(facts) == [title]


@pytest.mark.parametrize(
    "facts",
    [
        RunFacts(),
        RunFacts(waited_share=0.1),
        RunFacts(peak_nbytes=70, limit_nbytes=100, trained_s=5),
        RunFacts(val_loss=(0.5, 2, 0.6, 3)),  # one epoch is noise
        RunFacts(val_loss=(0.5, 2, 0.505, 9)),
        RunFacts(speeds=(1000.0, 900.0)),
        RunFacts(unaccounted=(GB, int(1.1 * GB)), limit_nbytes=4 * GB),
    ],
)
def test_nothing_to_say(facts):
    assert titles(facts) == []


def test_the_gravest_comes_first():
    found = advise(RunFacts(waited_share=0.01, not_finite={"loss": 1}, deaths=1))
    assert [advice.weight for advice in found] == ["bad", "warn", "good"]


def test_advice_names_the_largest_holder():
    facts = RunFacts(peak_nbytes=99, limit_nbytes=100, holders={"optimizer": 50, "cache": 3, "not accounted for": 90})
    assert "optimizer, 50 B" in advise(facts)[0].text


def digest(events) -> Digest:
    found = Digest()
    for record in events:
        found.take(record)
    return found


def test_facts_of_a_run():
    facts = gather(digest(training(400)))
    assert facts.deaths == 1 and facts.batch == 256 and facts.micro == 128 and facts.limit_nbytes == 2 * GB
    assert facts.speeds is not None and 3000 < facts.speeds[1] < 6000
    assert facts.val_loss is not None and facts.val_loss[1] == facts.val_loss[3] == 9


def test_a_leak_is_noticed():
    leaking = [start(), *(sample(START_T + n, other=GB // 4 + n * 5_000_000) for n in range(200))]
    assert "Unaccounted memory keeps growing" in titles(gather(digest(leaking)))
    steady = [start(), *(sample(START_T + n, other=GB // 2) for n in range(200))]
    assert "Unaccounted memory keeps growing" not in titles(gather(digest(steady)))


def test_validation_and_saving_are_no_waiting():
    """The time between an epoch's last step and the next epoch's first one is left out."""
    events = [progress(START_T, 1, waited_share=0.0), event(START_T + 1, "train.epoch", epoch=0, logs={})]
    events += [progress(START_T + 31, 2, waited_share=1.0), progress(START_T + 32, 3, waited_share=0.0)]
    facts = gather(digest(events))
    assert facts.waited_share == 0.0 and facts.trained_s == pytest.approx(1.0)


def test_the_wait_for_an_epochs_first_batch_counts():
    """Twenty short epochs that each begin with a wait of one second, and train for three."""
    events, t, waited_s = [], START_T, 0.0
    for epoch in range(20):
        t, waited_s = t + 1, waited_s + 1  # the first batch
        events.append(progress(t, 4 * epoch + 1, waited_s=waited_s, waited_share=1.0))
        events += [progress(t + n, 4 * epoch + 1 + n, waited_s=waited_s, waited_share=0.0) for n in (1, 2, 3)]
        t += 13  # three of training, ten of validation
        events.append(event(t, "train.epoch", epoch=epoch, logs={}))
    facts = gather(digest(events))
    assert facts.waited_share == pytest.approx(19 / (19 + 60))
