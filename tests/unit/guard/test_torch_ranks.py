"""Which tensors travel together when ranks add up their gradients."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
from penstock.guard.ranks.agree import OneRank  # noqa: E402
from penstock.guard.ranks.torch import groups  # noqa: E402
from penstock.guard.recovery.step import Control  # noqa: E402
from penstock.guard.torch.parts import TorchOptions, TorchStepper  # noqa: E402


class Votes(OneRank):
    """A rank whose fellow does as it does; counts the votes."""

    size, count, unsure_elsewhere = 2, 0, False

    def totals(self, *values: float) -> tuple[float, ...]:
        self.count += 1
        return (*(2 * value for value in values[:-1]), values[-1] + self.unsure_elsewhere)

    def any(self, flag: bool) -> bool:
        self.count += 1
        return flag


def votes_by_step(optimizer: object, model: torch.nn.Module, votes: Votes, **options: object) -> list[int]:
    stepper = TorchStepper(model, optimizer, TorchOptions(**options))
    stepper.loss_fn = torch.nn.functional.mse_loss
    control, found = Control("test", ranks=votes), []
    for _ in range(3):
        before = votes.count
        control.run(stepper, (torch.ones(4, 3), torch.zeros(4, 2)))
        found.append(votes.count - before)
    return found


@pytest.mark.parametrize(
    ("kind", "given", "options", "expected"),
    [
        ("AdamW", {}, {}, [3, 1, 1]),  # the first step makes the optimizer's state
        ("SGD", {}, {}, [3, 1, 1]),
        ("AdamW", {"foreach": True}, {}, [3, 3, 3]),  # units: the first of them may fail
        ("AdamW", {}, {"clip_norm": 1.0}, [3, 3, 3]),  # clipping makes tensors
    ],
)
def test_ranks_vote_once_where_nothing_after_the_gradients_can_fail(
    kind: str, given: dict[str, object], options: dict[str, object], expected: list[int]
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), 0.1, **given)
    assert votes_by_step(optimizer, model, Votes(), **options) == expected


def test_a_rank_that_is_not_sure_makes_all_vote() -> None:
    model, votes = torch.nn.Linear(3, 2), Votes()
    votes.unsure_elsewhere = True
    assert votes_by_step(torch.optim.AdamW(model.parameters()), model, votes) == [3, 3, 3]


def test_state_that_was_taken_away_is_not_counted_on() -> None:
    model, votes = torch.nn.Linear(3, 2), Votes()
    optimizer = torch.optim.AdamW(model.parameters())
    stepper, control = TorchStepper(model, optimizer, TorchOptions()), Control("test", ranks=votes)
    stepper.loss_fn, counts = torch.nn.functional.mse_loss, [0]
    for _ in range(4):
        control.run(stepper, (torch.ones(4, 3), torch.zeros(4, 2)))
        counts.append(votes.count)
        if len(counts) == 3:
            optimizer.state.clear()
    assert [b - a for a, b in itertools.pairwise(counts)] == [3, 1, 3, 1]


def test_small_tensors_of_a_kind_travel_together_and_all_keep_their_order() -> None:
    large, small = torch.zeros(1 << 18), torch.zeros(4)
    half, scalar = torch.zeros(8, dtype=torch.float16), torch.zeros(())
    sparse = torch.zeros(3).to_sparse()
    medium = torch.zeros(3 << 16)
    given = [small, scalar, large, small, half, half, sparse, small, medium, medium]
    found = list(groups(given))
    assert [len(group) for group in found] == [2, 1, 1, 2, 1, 2, 1]
    flat = [array for group in found for array in group]
    assert all(a is b for a, b in zip(flat, given, strict=True))
    assert list(groups([])) == []
