"""Checks that the ranks begin with the same weights, optimizer states and settings, and stay equal.

    start = EqualStart(process_set)
    ... in each step, before the optimizer's own ...
    error = start.check(optimizer, names, operation)   # None if the ranks agree, or the check is not due
    error = start.check_step(optimizer, names, operation, wanted)   # wanted: by start.wanted, the same on all ranks

Ranks that begin differently, because the program has not called broadcast_parameters() or
broadcast_optimizer_state(), or because only some ranks have loaded a checkpoint, would apply equal
gradients to different weights, and nothing else would detect it. So the ranks compare digests, in one
small allreduce: in their first step, in the first step of each membership epoch or after an error, and
in the first step after a join(), whose ranks have missed steps (check()). They compare them again from time
to time (maypole.common.recurrence), and if a rank has loaded a state (check_step()): a rank may
change weights on its own, or have other settings later. A digest of a tensor is the sum of its
bits as integers, each times a weight of its place, so that equal values in another order differ. It is
exact, and computed on the tensor's device. Buffers are not
compared: those of batch norm may differ. With Adasum each rank has its own optimizer state.
check() also compares the frozen parameters that the program has named and the optimizer does not have.

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
from maypole.common.recurrence import Recurrence
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
    "call hvd.broadcast_optimizer_state(optimizer, root_rank=0), and give all ranks the same learning rate scheduler "
    "(its load_state_dict() on all of them, or an attribute of the elastic state), or set "
    "MAYPOLE_CHECK_START=0 if the ranks' settings are to differ",
    "call hvd.broadcast_optimizer_state(optimizer, root_rank=0)")
# What has come between, if the ranks were equal before.
_CAUSES = (
    "something other than the optimizer has changed weights, not alike on all ranks: an assignment, or "
    "Embedding(max_norm=...), which changes the rows that a rank looks up; or the optimizer's steps differ: a rank has "
    "loaded or cleared its state alone, has another scale of its GradScaler, draws other random numbers in step(), or "
    "its processor rounds differently. Change these alike on all ranks, or set MAYPOLE_CHECK_START=0 if the ranks are "
    "to differ",
    "a learning rate scheduler differs (it was not loaded on all ranks, is no attribute of the elastic state, or gets "
    "each rank's own numbers), or the program has set this on some ranks only. Call its load_state_dict() on all "
    "ranks, give ReduceLROnPlateau the ranks' average, or set MAYPOLE_CHECK_START=0 if the ranks' settings are to "
    "differ",
    _REMEDIES[2])  # a rank has loaded or cleared it alone


class EqualStart:
    """See the head of this file.

    has_own_state: whether each rank may have its own state. zeros: makes a
    gradient of zeros for a parameter. who: the beginning of the error's text. others: names of
    parameters that the optimizer does not have.
    """

    def __init__(self, process_set: Any, has_own_state: bool = False,
                 zeros: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
                 who: str = "DistributedOptimizer",
                 others: Optional[dict[torch.Tensor, str]] = None):
        self._process_set = process_set
        self._who = who
        self._others = others or {}
        self._has_own_state = has_own_state
        self._zeros = zeros
        self._checked: Any = None
        self._recurrence = Recurrence()
        self._settings = _Settings()
        self._loaded = False

    def forget(self) -> None:
        """Makes the next check() due; all ranks must call it."""
        self._checked = None
        self._recurrence.forget()
        self._settings = _Settings()

    def note_loaded(self) -> None:
        """The program has loaded a state, perhaps on this rank only."""
        self._loaded = True

    @property
    def wanted(self) -> bool:
        """Whether this rank wants the ranks to be compared in this step."""
        return self._loaded or self._recurrence.until_next <= 0

    def settings(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> list[int]:
        """Returns two numbers: the highest of all ranks are x and -x if their settings are equal.

        It takes some microseconds if no setting has changed. Tensors on devices are left out: to read one is to wait.
        """
        if _is_off():
            return [_LEFT_OUT, _LEFT_OUT]
        digest = self._settings.digest(optimizer, names)
        return [digest, -digest]

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
        error = self._compared(optimizer, names, operation, later=False)
        if error is None:
            self._checked = now
            self._recurrence.forget()
        return error

    def check_step(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], operation: str,
                   wanted: bool) -> Optional[ValueError]:
        """Counts a step, after its check(), and compares the ranks if that is wanted.

        wanted: whether `wanted` was True on some rank, or the ranks' settings() differ. The rest as for check().
        """
        if wanted and names:
            error = self._compared(optimizer, names, operation, later=True)
            if error is not None:
                return error
            if self._recurrence.until_next <= 0:
                self._recurrence.follow(grows=True)
        self._recurrence.until_next -= 1
        return None

    def _compared(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], operation: str,
                  later: bool) -> Optional[ValueError]:
        self._loaded = False
        parameters = sorted(names, key=names.__getitem__)
        facts = _Facts(optimizer, not self._has_own_state)
        rows = facts.rows(parameters)
        frozen = {} if later else {name: p for p, name in self._others.items() if p not in names and _is_frozen(p)}
        if not later:
            rows.append(_row_of_frozen(frozen))
        known = torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 7)
        known = synchronize(
            allreduce_async_(known, None, operation, Max,
                             process_set=self._process_set)).tolist()
        for parameter, row in zip(parameters, known):
            for kind, most in enumerate(row[:6:2]):
                if most != -row[2 * kind + 1] and most != _LEFT_OUT:
                    return self._error(kind, names[parameter], operation,
                                       facts.details(parameter, kind), later)
            if row[6] and not parameter.requires_grad and grad_of(parameter) is None:
                set_grad(parameter, self._zeros(parameter))
        if not later and known[-1][0] not in (-known[-1][1], _LEFT_OUT):
            own = {f"the frozen {name!r}": f"{_digests([p])[0]:08x}" for name, p in frozen.items()}
            return self._error(0, None, operation, own or None, later)
        return None

    def _error(self, kind: int, name: Optional[str], operation: str, own: Optional[dict[str, str]],
               later: bool) -> ValueError:
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
        of = "" if name is None else f" of parameter {name!r}"
        what = f"different {_KINDS[kind]}{of}: {key} is {values}"
        if later:
            return ValueError(f"{self._who}: the ranks have {what}, and were equal in an earlier step: {_CAUSES[kind]}")
        return ValueError(
            f"{self._who}: the ranks begin with {what}. They would train different "
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


def _is_frozen(parameter: torch.Tensor) -> bool:
    """Whether its weights are compared: a program may train others itself, on each rank differently."""
    return not (parameter.requires_grad or parameter.is_meta or _is_off())


def _row_of_frozen(parameters: dict[str, torch.Tensor]) -> list[int]:
    """Returns the row of parameters that the optimizer does not have, by name. A rank without any is left out."""
    if not parameters:
        return [_LEFT_OUT] * 6 + [0]
    (digest,) = _digests([dict(sorted(parameters.items()))])
    return [digest, -digest] + [_LEFT_OUT] * 4 + [0]


class _Settings:
    """The settings of an optimizer's groups as one number, which does not depend on the groups' order.

    It is the sum of products of two checksums for each parameter: of its name, and of its group's settings.
    """

    def __init__(self) -> None:
        self._groups: list[_Group] = []

    def digest(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> int:
        groups = optimizer.param_groups
        while len(self._groups) < len(groups):
            self._groups.append(_Group())
        return sum(known.digest(group, names) for known, group in zip(self._groups, groups)) % _MODULUS


class _Group:
    """The checksums of a group, of which it computes only those that have changed."""

    def __init__(self) -> None:
        self._size = -1
        self._names = 0
        self._known: dict[str, tuple[Any, int]] = {}

    def digest(self, group: dict[str, Any], names: dict[torch.Tensor, str]) -> int:
        if self._size != len(group["params"]):
            self._size = len(group["params"])
            self._names = sum(zlib.crc32(names[p].encode()) for p in group["params"] if p in names)
        total = 0
        for key, value in group.items():
            if key == "params":
                continue
            known = self._known.get(key)
            if known is None or type(known[0]) is not type(value) or known[0] != value:
                known = self._known[key] = value if _is_fixed(value) else _NEVER, _checksum(key, value)
            total += known[1]
        return total * self._names


_MODULUS = (1 << 61) - 1
_NEVER = object()  # not equal to any setting


def _is_fixed(value: Any) -> bool:
    """Whether a value can be replaced, but not changed."""
    return isinstance(value, _PLAIN) or (type(value) is tuple and all(map(_is_fixed, value)))


def _checksum(key: str, value: Any) -> int:
    """Returns a setting's checksum; 0 if it counts as missing, or is on a device."""
    tensors: list[torch.Tensor] = []
    take_out(value, tensors)
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return 0
    setting, nothing = _digests([{key: value}, {}])
    return setting ^ nothing


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
