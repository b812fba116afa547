"""A PyTorch step in parts.

Covers: gradients of one part, their sum in `.grad`, clipping, mixed precision, one protected optimizer step.
Does not cover: what is put back after a failure and how (state.py), sizes (guard/recovery/ladder.py), models that are
divided over ranks (sharded.py).

The sum is kept in the parameters' own `.grad`: a backward pass that fails halfway leaves it half added, but a failed
step is dropped and taken again as a whole, so a second set of buffers would protect nothing and cost a model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten, map_leaves
from penstock.guard.ranks.agree import Ranks
from penstock.guard.recovery.ladder import Phase
from penstock.guard.recovery.microbatch import Part
from penstock.guard.torch import remat as torch_remat
from penstock.guard.torch.protect import ProtectedStep
from penstock.guard.torch.state import Copies, Generators, Scaler, buffers_of, nbytes_of

LossFn = Callable[..., torch.Tensor]
Weigh = Callable[[Any], float]

_DTYPES = {"float32": None, "mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}
_HALVES = (torch.bfloat16, torch.float16)
_FEW = 1000
"""So many labels are counted as a list: NumPy's first comparison after a pass takes 60 us, and the list 20 us."""


@dataclass(frozen=True)
class TorchOptions:
    """How the gradients of a batch become a step."""

    precision: str = "float32"
    clip_norm: float | None = None
    clip_value: float | None = None
    before_apply: Callable[[list[torch.nn.Parameter]], None] | None = None
    scaler: torch.amp.GradScaler | None = None
    device: torch.device | str | None = None


class TorchStepper:
    """Takes steps with a torch module and optimizer. `loss_fn` must be set before each step."""

    waits_inside = False

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: TorchOptions) -> None:
        check(model, optimizer, options)
        self.model, self.optimizer, self.options = model, optimizer, options
        self.params = [p for group in optimizer.param_groups for p in group["params"]]
        self.device = torch.device(options.device) if options.device is not None else self.params[0].device
        self.autocast_dtype = _DTYPES[options.precision]
        self.phase: Phase = "forward"
        self.loss_fn: LossFn | None = None
        self.weigh: Weigh | None = None
        self.loss = torch.zeros(())
        self._losses: list[torch.Tensor] = []
        self._weights: dict[int, float] = {}
        self._views: dict[int, Any] = {}
        self._generators = Generators({p.device for p in self.params})
        self._buffers = Copies()
        self._scaler = Scaler(options.scaler)
        self._protected = ProtectedStep(optimizer, scaled=bool(self._scaler))
        self._begun, self._unsure = False, True
        self._ddp = model if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None
        self._several = world_size() > 1
        self.weight: float | None = 1.0
        if self._ddp is not None:
            # Buffers would be sent from rank 0 in the forward pass, in which a rank may fail or have no part.
            self._ddp.require_forward_param_sync = False

    @property
    def measurable(self) -> bool:
        """On the CPU a part's tensors are this process's memory."""
        return self.device.type == "cpu"

    @property
    def sure(self) -> bool:
        """A fused kernel allocates nothing; its state is there since the last step, for every parameter."""
        options, plain = self.options, self._scaler.scaler is None
        plain = plain and options.clip_norm is None and options.clip_value is None and options.before_apply is None
        return plain and self._protected.ready() and all(param.grad is not None for param in self.params)

    def begin(self, parts: Sequence[Part]) -> None:
        """Remember generators and buffers, clear gradients, and find each part's weight."""
        self.phase, self._begun = "forward", False
        self._protected.forget()
        self._generators.save()
        self._scaler.save()
        self._buffers.save(buffers_of(self.model))
        self._begun = True
        self.optimizer.zero_grad(set_to_none=True)
        self._losses = []
        self._weights = self._weigh(parts)
        self.weight = self._weight_of(parts) if self._several else 1.0
        self._views = self._all_views(parts)

    def part(self, part: Part) -> None:
        """Add the part's weighted gradients to `.grad`."""
        if self._ddp is None:
            self._add(part)
        else:
            # A backward pass that waits for other ranks would hang when one of them ran out of memory.
            with self._ddp.no_sync():
                self._add(part)
        if self._unsure and part.share < 1.0:
            # There are gradients now. If the optimizer's state does not fit beside them, other parts need not be tried.
            self.phase, self._unsure = "apply", False
            self._protected.reserve()

    def prepare(self) -> None:
        """Sum over ranks, clip, and reserve what an optimizer step that cannot be torn needs."""
        self.phase = "apply"
        self.loss = total_of(self._losses)
        if self._scaler.scaler is not None:
            self._scaler.scaler.unscale_(self.optimizer)
        self._clip()
        self._protected.prepare()

    def apply(self) -> None:
        """Let the optimizer step once."""
        scaler = self._scaler.scaler
        if scaler is None:
            self._protected.take(lambda: self.optimizer.step())
        else:
            self._protected.take(lambda: scaler.step(self.optimizer))
            scaler.update()
        self._unsure = False

    def drop(self) -> None:
        """Take gradients, buffers, generators, loss scale and a torn optimizer step back."""
        self._protected.undo()
        self._unsure = True
        self.optimizer.zero_grad(set_to_none=True)
        self._losses, self._views = [], {}
        if not self._begun:
            return
        self._buffers.restore()
        self._generators.restore()
        self._scaler.restore()

    def free(self) -> None:
        """Give cached device memory back."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def lean(self) -> bool:
        """Keep copies for undoing a step in a file from now on; True if there were any in memory."""
        return self._protected.lean()

    def holds(self) -> dict[str, int]:
        """Bytes by owner, as they are while the optimizer steps."""
        state = [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
        params = nbytes_of(self.params)
        return {
            "parameters": params,
            "gradients": params,
            "optimizer state": nbytes_of(state),
            "guard": self._protected.nbytes + nbytes_of(self._buffers.buffers),
        }

    def lower_precision(self) -> None:
        """Compute in bfloat16 from now on; weights stay in float32."""
        self.autocast_dtype = torch.bfloat16

    def rematerialise(self) -> None:
        """Recompute the model's repeated blocks in the backward pass from now on."""
        torch_remat.rematerialise(self.model)

    def _add(self, part: Part) -> None:
        self.phase = "forward"
        data = self._views.pop(part.start, None)
        loss = self._loss_of(to_torch(part.data, self.device) if data is None else data)
        if loss.ndim:
            raise InvalidInput(f"loss_fn returned shape {tuple(loss.shape)}; it must be one number, a mean or a sum.")
        self.phase = "backward"
        weight, scaler = self._weights[part.start], self._scaler.scaler
        weighted = loss if weight == 1.0 else loss * weight
        scaled = weighted if scaler is None else scaler.scale(weighted)
        scaled.backward()  # type: ignore[no-untyped-call]
        self._losses.append(weighted.detach())

    def _all_views(self, parts: Sequence[Part]) -> dict[int, Any]:
        """All parts as tensors, by their first row, where that takes no memory; else none.

        A pass leaves nothing of this code in the processor's caches: one after the other, four parts take 60 us, and
        each before its own pass 45 us.
        """
        if len(parts) < 2 or not is_shared(parts[0].data, self.device):
            return {}
        return {part.start: to_torch(part.data, self.device) for part in parts}

    def _loss_of(self, data: Any) -> torch.Tensor:
        assert self.loss_fn is not None
        if self.autocast_dtype is None:
            return call_loss(self.loss_fn, self.model, data)
        with torch.autocast(self.device.type, dtype=self.autocast_dtype):
            return call_loss(self.loss_fn, self.model, data)

    def _weigh(self, parts: Sequence[Part]) -> dict[int, float]:
        """Each part's factor, by its first row."""
        if len(parts) == 1 or getattr(self.loss_fn, "reduction", "mean") == "sum":
            return {part.start: 1.0 for part in parts}
        weigh = self.weigh or default_weigh(self.loss_fn)
        if weigh is None:
            return {part.start: part.share for part in parts}
        counts = {part.start: float(weigh(part.data)) for part in parts}
        total = sum(counts.values())
        return {start: count / total if total else 0.0 for start, count in counts.items()}

    def _clip(self) -> None:
        options = self.options
        if options.clip_norm is None and options.clip_value is None and options.before_apply is None:
            return
        params = [p for p in self.params if p.grad is not None]
        if options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(params, options.clip_norm)
        if options.clip_value is not None:
            torch.nn.utils.clip_grad_value_(params, options.clip_value)
        if options.before_apply is not None:
            options.before_apply(params)

    def begin_together(self, ranks: Ranks) -> None:
        """Start from rank 0's weights, as DistributedDataParallel does."""
        if ranks.size > 1 and self._ddp is None:
            ranks.from_first([value.detach() for value in self.model.state_dict().values()])

    def combine(self, ranks: Ranks, share: float) -> None:
        """Gradients, loss and buffers of all ranks; parameters without a gradient here may have one elsewhere."""
        for param in self.params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        self._losses = ranks.add([*(param.grad for param in self.params), total_of(self._losses)], share)[-1:]
        ranks.from_first([buffer for buffer in buffers_of(self.model) if buffer.is_floating_point()])

    def _weight_of(self, parts: Sequence[Part]) -> float | None:
        """What the loss over all parts is a mean over; None for a sum."""
        if getattr(self.loss_fn, "reduction", "mean") == "sum":
            return None
        weigh = self.weigh or default_weigh(self.loss_fn)
        return float(sum(part.rows if weigh is None else weigh(part.data) for part in parts))


def total_of(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of the parts' losses, at least in float32."""
    if not losses:
        return torch.zeros(())
    first = losses[0] if losses[0].dtype not in _HALVES else losses[0].float()
    return sum(losses[1:], first)


def world_size() -> int:
    """Processes in the default group; 1 where there is none."""
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def check(model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: TorchOptions) -> None:
    """Refuse, by name, what cannot be stepped in parts."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"Guard needs a torch.nn.Module, not a {type(model).__name__}. For Keras models use fit().")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput(f"Guard needs a torch.optim.Optimizer, not a {type(optimizer).__name__}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidInput("LBFGS evaluates the loss several times per step, which cannot be split. Use another.")
    if options.precision not in _DTYPES:
        names = ", ".join(map(repr, [*_DTYPES, "auto"]))
        raise InvalidInput(f"precision must be one of {names}, not {options.precision!r}.")
    if not any(group["params"] for group in optimizer.param_groups):
        raise InvalidInput("The optimizer has no parameters.")


def to_torch(batch: Any, device: torch.device) -> Any:
    """The batch's arrays as tensors on the device; NumPy arrays are shared, not copied, on the CPU."""

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            # torch warns about, and may write through, arrays that are read-only.
            value = torch.from_numpy(value if value.flags.writeable else value.copy())
        elif not isinstance(value, torch.Tensor):
            return value
        return value if value.device == device else value.to(device, non_blocking=True)

    return map_leaves(batch, leaf)


def is_shared(batch: Any, device: torch.device) -> bool:
    """Whether `to_torch` makes views of the batch's memory, and no copy."""
    leaves = flatten(batch)[1].values()
    return device.type == "cpu" and all(
        leaf.flags.writeable if isinstance(leaf, np.ndarray) else getattr(leaf, "device", device) == device
        for leaf in leaves
    )


def call_loss(loss_fn: LossFn, model: torch.nn.Module, data: Any) -> torch.Tensor:
    """`criterion(model(x), y)` for torch's own losses, `loss_fn(model, batch)` for a function of the user."""
    if not is_criterion(loss_fn):
        return loss_fn(model, data)
    if not isinstance(data, tuple) or len(data) != 2:
        raise InvalidInput(
            f"{getattr(loss_fn, '__name__', type(loss_fn).__name__)} needs batches of (x, y). For other batches pass a "
            f"function loss_fn(model, batch)."
        )
    return loss_fn(model(data[0]), data[1])


def is_criterion(loss_fn: object) -> bool:
    """Whether this is a loss of torch itself, which takes outputs and targets."""
    return isinstance(loss_fn, torch.nn.Module) or getattr(loss_fn, "__module__", "") == "torch.nn.functional"


def default_weigh(loss_fn: object) -> Weigh | None:
    """How torch's own losses count samples, where it is not one each: ignored and weighted classes."""
    class_weights: torch.Tensor | None = None
    ignored = -100  # the default of torch.nn.functional
    if isinstance(loss_fn, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)):
        class_weights, ignored = loss_fn.weight, loss_fn.ignore_index
    elif loss_fn not in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss):
        return None

    def weigh(data: Any) -> float:
        if class_weights is None and isinstance(data[1], np.ndarray) and data[1].dtype.kind in "iu":
            return float(_count_other(data[1], ignored))  # a tenth of the time of tensors, in each part
        target = torch.as_tensor(data[1])
        if target.is_floating_point():  # class probabilities: torch divides by the rows alone
            return float(target.shape[0])
        kept = target[target != ignored]
        return float(kept.numel() if class_weights is None else class_weights.to(kept.device)[kept].sum())

    return weigh


def _count_other(labels: np.ndarray, ignored: int) -> int:
    if labels.size <= _FEW:
        return labels.size - labels.reshape(-1).tolist().count(ignored)
    return int(np.count_nonzero(labels != ignored))
