"""Putting PyTorch tensors back to what they were.

Covers: random generators, buffers, gradient scaler, and copies of tensors in memory or in a file.
Does not cover: when to put them back (parts.py), the optimizer step (protect.py).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from penstock.core.events import events
from penstock.guard.recovery.free_memory import try_room
from penstock.guard.recovery.undo.file import UndoFile


class Generators:
    """The state of torch's global random generators."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cuda = [device for device in devices if device.type == "cuda"]
        self._cpu_state = torch.empty(0, dtype=torch.uint8)
        self._cuda_states: list[torch.Tensor] = []

    def save(self) -> None:
        """Remember where the generators are."""
        self._cpu_state = torch.get_rng_state()
        self._cuda_states = [torch.cuda.get_rng_state(device) for device in self._cuda]

    def restore(self) -> None:
        """Put the generators back, so that a repeated step draws the same numbers."""
        if not len(self._cpu_state):  # nothing was begun yet
            return
        torch.set_rng_state(self._cpu_state)
        for device, state in zip(self._cuda, self._cuda_states, strict=True):
            torch.cuda.set_rng_state(state, device)


class Copies:
    """Copies of some tensors, in buffers that are allocated once and used again."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []

    def save(self, tensors: list[torch.Tensor]) -> None:
        """Copy the tensors' values."""
        same = len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        if not same:
            # The old buffers go first: old and new together would double what the snapshot costs.
            self._tensors, self.buffers = [], []
            self.buffers = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
            self._tensors = tensors
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self.buffers, tensors)

    def restore(self) -> None:
        """Write the copied values back."""
        if self._tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors, self.buffers)


class Undo:
    """Old values of some tensors: in one buffer that is kept, or in a file where the buffer would be too large."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._places: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        self._file: UndoFile | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are held."""
        return self._buffer.numel()

    def reserve(self, nbytes: int, *, in_file: bool) -> None:
        """Make room for so many bytes, in memory unless a file is to hold them."""
        if in_file:
            self._places, self._buffer = {}, torch.empty(0, dtype=torch.uint8)
            self._file = self._file or UndoFile()
        elif self._buffer.numel() < nbytes:
            self._places, self._buffer = {}, torch.empty(0, dtype=torch.uint8)  # the old one goes first
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)

    def save(self, tensors: list[torch.Tensor]) -> None:
        """Copy the tensors' bytes."""
        if self._file is not None:
            self._file.save([_host_bytes(tensor) for tensor in tensors])
            return
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._kept(tensors), tensors)

    def restore(self, tensors: list[torch.Tensor]) -> None:
        """Write the bytes back into the tensors that they came from."""
        with torch.no_grad():
            if self._file is not None:
                _load(self._file, tensors)
                return
            if tensors:
                torch._foreach_copy_(tensors, self._kept(tensors))

    def _kept(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Each tensor's place in the buffer, aligned to 16 bytes. The same units come again at every step."""
        kinds = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        if kinds not in self._places:
            at, places = 0, []
            for tensor in tensors:
                nbytes = tensor.numel() * tensor.element_size()
                places.append(self._buffer[at : at + nbytes].view(tensor.dtype).view(tensor.shape))
                at += -(-nbytes // 16) * 16
            self._places[kinds] = places
        return self._places[kinds]


SMALL = 4 * 2**20
"""Copies up to this size are kept in memory without asking."""


class WholeCopy:
    """Old values of everything that a step may change: in memory where there is plenty, else in a file."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._copies, self._undo = Copies(), Undo()
        self._lease: Any = None
        self._in_file = False
        self._held: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        """Memory that the copies take."""
        return nbytes_of(self._copies.buffers)

    def save(self, tensors: list[torch.Tensor]) -> None:
        """Copy the tensors' values."""
        nbytes = nbytes_of(tensors)
        if not self._in_file and self._lease is None and nbytes > SMALL:
            self._lease = try_room(nbytes, who="guard: copy for undoing an optimizer step")
            self._in_file = self._lease is None
            where = "in a file, because memory is short" if self._in_file else "in memory"
            why = f"this optimizer's step cannot be cut into units: old values are kept {where}"
            events.emit("guard.whole_copy", self._who, nbytes=nbytes, why=why)
        if self._in_file:
            self._undo.reserve(0, in_file=True)
            self._undo.save(tensors)
        else:
            self._copies.save(tensors)
        self._held = tensors

    def restore(self) -> None:
        """Write the copied values back."""
        if self._held and self._in_file:
            self._undo.restore(self._held)
        elif self._held:
            self._copies.restore()
        self._held = []

    def forget(self) -> None:
        """There is nothing to put back any more."""
        self._held = []

    def lean(self) -> bool:
        """Use a file from now on; True if that frees memory. Nothing must be held."""
        held = bool(self._copies.buffers)
        self._copies, self._in_file, self._lease = Copies(), True, None
        return held


def _host_bytes(tensor: torch.Tensor) -> np.ndarray:
    flat = tensor.detach().cpu().reshape(-1)
    found: np.ndarray = flat.view(torch.uint8).numpy()
    return found


def _load(file: UndoFile, tensors: list[torch.Tensor]) -> None:
    hosts = [_host_bytes(tensor) for tensor in tensors]
    file.load(hosts)
    for tensor, host in zip(tensors, hosts, strict=True):
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            tensor.copy_(torch.from_numpy(host).view(tensor.dtype).view(tensor.shape))


def buffers_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The model's buffers, each once. `model.buffers()` names all modules on the way: three times the time."""
    modules: list[torch.nn.Module | None] = [model]
    seen: set[torch.nn.Module] = set()
    found: list[torch.Tensor | None] = []
    while modules:
        module = modules.pop()
        if module is None or module in seen:
            continue
        seen.add(module)
        if module._buffers:
            found += module._buffers.values()
        if module._modules:
            modules += module._modules.values()
    return list({id(buffer): buffer for buffer in found if buffer is not None}.values())


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that this one is made of: codes and scales of quantised state, this rank's part of a sharded one."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    inner = [getattr(tensor, name) for name in flatten()[0]]
    return [plain for part in inner if isinstance(part, torch.Tensor) for plain in plain_tensors(part)]


def nbytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors together."""
    return sum(plain.numel() * plain.element_size() for tensor in tensors for plain in plain_tensors(tensor))


class Scaler:
    """The dynamic loss scale of a GradScaler, if there is one."""

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self.scaler = scaler
        self._saved: dict[str, Any] = {}

    def save(self) -> None:
        """Remember scale and growth counter."""
        if self.scaler is not None:
            self._saved = self.scaler.state_dict()

    def restore(self) -> None:
        """Put them back and forget that gradients were unscaled."""
        if self.scaler is not None and self._saved:
            self.scaler.load_state_dict(self._saved)
            # Only update() clears this, and update() would also move the scale.
            self.scaler._per_optimizer_states.clear()

    def __bool__(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()
