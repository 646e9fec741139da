"""Checks that the ranks begin with the same weights, optimizer states and settings.

    start = EqualStart(process_set)
    ... in each step, before the optimizer's own ...
    error = start.check(optimizer, names, operation)   # None if the ranks agree, or the check is not due

Ranks that begin differently, because the program has not called broadcast_parameters() or
broadcast_optimizer_state(), or because only some ranks have loaded a checkpoint, would apply equal
gradients to different weights, and nothing else would detect it. So the ranks compare digests, in one
small allreduce: in their first step, in the first step of each membership epoch or after an error, and
in the first step after a join(), whose ranks have missed steps. A digest of a tensor is the sum of its
bits as integers, each times a weight of its place, so that equal values in another order differ. It is
exact, and computed on the tensor's device. Buffers are not
compared: those of batch norm may differ. With Adasum each rank has its own optimizer state.

MAYPOLE_CHECK_START=0 turns this off on a rank that differs on purpose, for
example in its learning rate; the others still compare.

A parameter that was frozen in mid-training may have a gradient of zeros, with which
momentum still moves it. A rank that has missed those steps also gets a gradient of
zeros.

Thread contract: one thread at a time. Invariant: all ranks of the set get the
same answer, an error or none.
"""

import numbers
import os
import zlib
from typing import Any, Callable, Optional

import torch

from maypole import _native
from maypole.common import basics, collectives, objects
from maypole.common.constants import Max
from maypole.common.process_sets import id_of
from maypole.torch._gradients.guards import grad_of, set_grad
from maypole.torch._structures import TensorAt, take_out
from maypole.torch.async_ops import allreduce_async_, synchronize

# By an element's size: the dtype as which its bits are read. Sums are of 32 bits: torch's integers of 64
# bits take 20 times as long on CPUs.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_CHUNK = 1 << 20  # elements that are summed at a time, for which memory is needed
_NEXT_CHUNK = 0x2545F491  # an odd number
_LEFT_OUT = -(1 << 62)  # less than any digest, and than one times -1
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)

_KINDS = ("weights", "settings", "state")
_REMEDIES = (
    "call hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
    "call hvd.broadcast_optimizer_state(optimizer, root_rank=0), or set "
    "MAYPOLE_CHECK_START=0 if the ranks' settings are to differ",
    "call hvd.broadcast_optimizer_state(optimizer, root_rank=0)")


class EqualStart:
    """See the head of this file.

    has_own_state: whether each rank may have its own state. zeros: makes a
    gradient of zeros for a parameter. who: the beginning of the error's text.
    """

    def __init__(self, process_set: Any, has_own_state: bool = False,
                 zeros: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
                 who: str = "DistributedOptimizer"):
        self._process_set = process_set
        self._who = who
        self._has_own_state = has_own_state
        self._zeros = zeros
        self._checked: Any = None

    def forget(self) -> None:
        """Makes the next check() due; all ranks must call it."""
        self._checked = None

    def check(self, optimizer: torch.optim.Optimizer,
              names: dict[torch.Tensor, str],
              operation: str) -> Optional[ValueError]:
        """Compares the ranks if that is due.

        names: the names of the optimizer's parameters. Returns None if all ranks begin
        alike, or the error for the program, which names the first difference.
        Raises HorovodInternalError if a rank is lost.
        """
        now = basics.joins(), _native.library().counts["join"]
        if self._checked == now or not names:
            return None
        parameters = sorted(names, key=names.__getitem__)
        facts = _Facts(optimizer, not self._has_own_state)
        rows = facts.rows(parameters)
        known = torch.tensor(rows, dtype=torch.int64).reshape(-1, 7)
        known = synchronize(
            allreduce_async_(known, None, operation, Max,
                             process_set=self._process_set))
        for parameter, row in zip(parameters, known.tolist()):
            for kind, most in enumerate(row[:6:2]):
                if most != -row[2 * kind + 1] and most != _LEFT_OUT:
                    return self._error(kind, names[parameter], operation,
                                       facts.details(parameter, kind))
            if row[6] and not parameter.requires_grad and grad_of(parameter) is None:
                set_grad(parameter, self._zeros(parameter))
        self._checked = now
        return None

    def _error(self, kind: int, name: str, operation: str,
               own: Optional[dict[str, str]]) -> ValueError:
        everyones = objects.allgather_object(own, operation + ".details",
                                             self._process_set)
        ranks = collectives.ranks_of(id_of(self._process_set))
        if len(ranks) != len(everyones):  # some have joined
            ranks = range(len(everyones))
        compared = [(rank, theirs) for rank, theirs in zip(ranks, everyones)
                    if theirs is not None]
        first = compared[0][1]
        key, at = next(((key, at) for at, (_, theirs) in enumerate(compared)
                        for key in sorted({*first, *theirs})
                        if first.get(key, "False") != theirs.get(key, "False")), ("", 0))
        values = " and ".join(f"{theirs.get(key, 'missing')} on rank {rank}"
                              for rank, theirs in (compared[0], compared[at]))
        return ValueError(
            f"{self._who}: the ranks begin with different {_KINDS[kind]} "
            f"of parameter {name!r}: {key} is {values}. They would train different "
            f"models; before the first step, and after join(), {_REMEDIES[kind]}")


class _Facts:
    """The values of one rank's parameters; with_state: also of their state."""

    def __init__(self, optimizer: torch.optim.Optimizer, with_state: bool):
        self._state = optimizer.state if with_state else {}
        self._settings = {
            p: {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups for p in group["params"]}

    def _of(self, parameter: torch.Tensor) -> list[Any]:
        return [parameter, self._settings[parameter], self._state.get(parameter) or {}]

    def rows(self, parameters: list[torch.Tensor]) -> list[list[int]]:
        """For each parameter, (digest, its negative) for each of _KINDS, and whether it is frozen with a gradient."""
        if _is_off():
            rows = [[_LEFT_OUT] * 6 for _ in parameters]
        else:
            digests = iter(_digests([fact for p in parameters for fact in self._of(p)]))
            rows = [[sign * digest for digest in (next(digests) for _ in _KINDS)
                     for sign in (1, -1)] for _ in parameters]
        return [row + [not p.requires_grad and grad_of(p) is not None]
                for row, p in zip(rows, parameters)]

    def details(self, parameter: torch.Tensor, kind: int) -> Optional[dict[str, str]]:
        """Returns, by key, readable values in which ranks may differ; None: this rank is not compared."""
        if _is_off():
            return None
        fact = self._of(parameter)[kind]
        if kind == 0:
            fact = {"checksum": fact}
        values = {str(key): _scalar(value) for key, value in fact.items() if value is not None}
        return {key: _text(value) if isinstance(value, _PLAIN) else f"{_digests([value])[0]:08x}"
                for key, value in values.items()}


def _is_off() -> bool:
    return os.environ.get("MAYPOLE_CHECK_START") == "0"


def _scalar(value: Any) -> Any:
    """Returns Python's number for one of NumPy, also for one in an array; other numbers as text."""
    if isinstance(value, _PLAIN):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return repr(value) if isinstance(value, numbers.Number) else value


def _text(value: Any) -> str:
    """repr(), which is the same for equal floats of Python and NumPy."""
    return float.__repr__(value) if isinstance(value, float) else repr(value)


def _digests(values: list[Any]) -> list[int]:
    """Returns the digests of structures of tensors and plain values."""
    tensors: list[torch.Tensor] = []
    ends, skeletons = [], []
    for value in values:
        skeletons.append(_plain(take_out(value, tensors)))
        ends.append(len(tensors))
    sums = _sums(tensors)
    return [zlib.crc32(repr((skeleton, sums[start:end])).encode())
            for skeleton, start, end in zip(skeletons, [0] + ends, ends)]


def _plain(value: Any) -> Any:
    """Returns `value` in a form whose repr() is equal on ranks with equal values."""
    if isinstance(value, dict):
        # torch's state of a parameter may have None, or nothing; a group that
        # was loaded has False for settings that others lack.
        return sorted((str(key), _plain(item)) for key, item in value.items()
                      if item is not None and item is not False)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    value = _scalar(value)
    if isinstance(value, _PLAIN):
        return _text(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return str(value.dtype), value.shape, zlib.crc32(value.tobytes())
    if isinstance(value, TensorAt):
        return value.dtype, value.shape
    return type(value).__name__  # of objects that programs put there


# By device. At most _CHUNK numbers each, kept as long as the process lives: 4 MiB.
_known_weights: dict[torch.device, torch.Tensor] = {}


@torch.no_grad()
def _sums(tensors: list[torch.Tensor]) -> list[int]:
    """Returns the weighted sum of the bits of each tensor, with one transfer from each device."""
    by_device: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if (tensor.layout is torch.strided and not tensor.is_quantized
                and not torch.nn.parameter.is_lazy(tensor)):
            by_device.setdefault(tensor.device, []).append(i)
    sums = [0] * len(tensors)
    for places in by_device.values():
        of_device = [_sum(tensors[i]).to(torch.int64) for i in places]
        for i, value in zip(places, torch.stack(of_device).tolist()):
            sums[i] = value
    return sums


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.resolve_neg().reshape(-1).view(_INTEGERS[tensor.element_size()])
    weights = _weights(min(bits.numel(), _CHUNK), tensor.device)
    total = torch.zeros((), dtype=torch.int32, device=tensor.device)
    for part in bits.split(_CHUNK):
        part = part.to(torch.int32)
        # A sign is the highest bit, of which a product would keep only whether their number is odd.
        part = (part ^ (part >> 16)) * weights[:part.numel()]
        total = total * _NEXT_CHUNK + part.sum(dtype=torch.int32)
    return total


def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Returns odd pseudo-random numbers of 32 bits, of each place the same on all ranks."""
    known = _known_weights.get(device)
    if known is None or known.numel() < count:
        mask = (1 << 32) - 1
        hashed = torch.arange(1, count + 1, dtype=torch.int64, device="cpu") * 0x9E3779B1 & mask
        hashed = (hashed ^ hashed >> 15) * 0x2C1B3C6D & mask
        hashed = (hashed ^ hashed >> 12) * 0x297A2D39 & mask
        hashed = (hashed ^ hashed >> 15) | 1
        hashed = torch.where(hashed > mask >> 1, hashed - (1 << 32), hashed)
        known = _known_weights[device] = hashed.to(torch.int32).to(device)
    return known
