"""Adasum of torch tensors, by the algorithm of maypole.common.adasum.

Thread contract: any thread; one thread at a time per name. start() leaves steps
2 to 4 to a thread of its own, so that handles may be waited for in any order.
"""

import threading
from collections.abc import Sequence
from typing import Any, Optional

import torch

from maypole.common import adasum, collectives, operations
from maypole.common.constants import Sum
from maypole.common.process_sets import id_of
from maypole.torch import _submissions, _tensors

# Columns that are converted to float64 at a time.
_BLOCK = 1 << 18


def allreduce(tensors: Sequence[torch.Tensor], name: Optional[str],
              prescale: float, postscale: float, process_set: Any,
              in_place: bool) -> list[torch.Tensor]:
    """The Adasum of each of `tensors`, as new tensors or in them.

    Raises ValueError for tensors that are not of a floating dtype, and the
    errors of synchronize().
    """
    return _begin(tensors, name, prescale, postscale, process_set,
                  in_place).end()


def start(tensors: Sequence[torch.Tensor], name: Optional[str],
          prescale: float, postscale: float, process_set: Any, in_place: bool,
          single: bool) -> int:
    """As allreduce(), but returns a handle at once.

    single: synchronize() returns the first tensor, not the list.
    """
    return operations.add(
        _InThread(
            _begin(tensors, name, prescale, postscale, process_set, in_place),
            single))


def _begin(tensors: Sequence[torch.Tensor], name: Optional[str],
           prescale: float, postscale: float, process_set: Any,
           in_place: bool) -> "_Reduction":
    tensors = _tensors.as_tensors(tensors, "allreduce", [name] * len(tensors))
    prescale, postscale = collectives.check_factors("allreduce", name, prescale,
                                                    postscale)
    for tensor in tensors:
        _tensors.dtype_code(tensor, "allreduce", name)
        if not tensor.dtype.is_floating_point:
            raise ValueError(
                f"{collectives.title('allreduce', name)}: Adasum needs a floating "
                f"point tensor, this one is {tensor.dtype}")
    number = id_of(process_set)
    return _Reduction(tensors, name or collectives.next_name("adasum", number), prescale, postscale,
                      process_set, in_place)


class _Reduction:
    """All tensors of one call; submits step 1 when it is made."""

    def __init__(self, tensors: Sequence[torch.Tensor], name: str,
                 prescale: float, postscale: float, process_set: Any,
                 in_place: bool):
        self._tensors = tensors
        self._in_place = in_place
        groups: dict[Any, list[int]] = {}
        for i, tensor in enumerate(tensors):
            groups.setdefault((tensor.dtype, tensor.device), []).append(i)
        self._groups = list(groups.values())
        self._parts = [
            _Group([tensors[i].detach() for i in group],
                   f"{name}.adasum{number or ''}", prescale, postscale,
                   process_set) for number, group in enumerate(self._groups)
        ]

    @torch.no_grad()
    def end(self) -> list[torch.Tensor]:
        """Steps 2 to 4; returns the results."""
        results: list[Any] = [None] * len(self._tensors)
        for group, part in zip(self._groups, self._parts):
            for i, result in zip(group, part.end()):
                results[i] = result
        if not self._in_place:
            return results
        for tensor, result in zip(self._tensors, results):
            tensor.copy_(result)
        return list(self._tensors)

    def streams(self) -> list[tuple[torch.Tensor, int]]:
        """A tensor and its current stream for each CUDA device."""
        first = {part.device: self._tensors[group[0]]
                 for group, part in zip(self._groups, self._parts)}
        streams = [(tensor, _tensors.stream_of(tensor))
                   for tensor in first.values()]
        return [(tensor, stream) for tensor, stream in streams
                if stream is not None]


def _cut(count: int, ranks: int) -> list[int]:
    """The lengths of `ranks` slices of `count` elements."""
    return [count // ranks + (r < count % ranks) for r in range(ranks)]


class _Group:
    """The tensors of one dtype and device.

    slices[t][r]: the length of rank r's slice of tensor t.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], name: str,
                 prescale: float, postscale: float, process_set: Any):
        self._name = name
        self._scales = (prescale, postscale)
        self._set = id_of(process_set)
        self._ranks = process_set.size()
        self._shapes = [tensor.shape for tensor in tensors]
        self._dtype = tensors[0].dtype
        self.device = tensors[0].device
        self._slices = [_cut(t.numel(), self._ranks) for t in tensors]
        self._totals = [sum(s) for s in zip(*self._slices)]
        pieces = [t.reshape(-1).split(s) for t, s in zip(tensors, self._slices)]
        # First what rank 0 gets of each tensor, then what rank 1 gets, ...
        packed = torch.cat([piece for of_rank in zip(*pieces)
                            for piece in of_rank])
        self._exchange = operations.start(
            _submissions.alltoall(packed, self._totals, name, self._set))
        self._me = process_set.rank()

    def end(self) -> list[torch.Tensor]:
        """Waits for step 1, and does the others."""
        rows, received = self._exchange.wait()
        total = self._totals[self._me]
        everyones = torch.zeros(self._ranks, total, dtype=self._dtype,
                                device=self.device)
        for row, part in zip(everyones, rows.split(received.tolist())):
            # A rank that has joined has sent nothing; see also adasum.check_shapes().
            if part.numel() == total:
                row.copy_(part)
        mine = [s[self._me] for s in self._slices]
        columns = everyones.split(mine, dim=1)
        sums = self._sum(torch.stack([_gram(part) for part in columns] +
                                     [self._signature()])).cpu()
        adasum.check_shapes(self._name, sums[-1].diagonal().tolist(),
                            [list(shape) for shape in self._shapes])
        factors = self._coefficients(sums[:-1])
        factors = factors * (self._scales[0] * self._scales[1])
        result = torch.cat([_combine(f.to(self.device), part)
                            for f, part in zip(factors, columns)])
        gathered = operations.start(
            _submissions.allgather(result, self._name, self._set,
                                   awaited=True)).wait()
        if gathered.numel() != sum(self._totals):
            raise adasum.joined(self._name)
        return self._unpacked(gathered)

    def _coefficients(self, grams: torch.Tensor) -> torch.Tensor:

        def unit(rank: int) -> torch.Tensor:
            column = torch.zeros(grams.shape[:2], dtype=grams.dtype,
                                 device=grams.device)
            column[:, rank] = 1
            return column

        return adasum.coefficients(grams, self._ranks, torch, unit)

    def _signature(self) -> torch.Tensor:
        """A matrix with a number at this rank's place that depends on the shapes.

        So the sum tells all ranks everyone's.
        """
        matrix = torch.zeros(self._ranks, self._ranks, dtype=torch.float64,
                             device=self.device)
        matrix[self._me, self._me] = adasum.signature([tuple(shape) for shape in self._shapes])
        return matrix

    def _sum(self, grams: torch.Tensor) -> torch.Tensor:
        # The scale factors are taken out again; they are here so that ranks that
        # give different ones get an error.
        pre, post = self._scales
        summed = operations.start(
            _submissions.allreduce(grams, self._name, Sum, pre, post, self._set,
                                   True, awaited=True)).wait()
        return summed / (pre * post) if pre * post != 0 else summed

    def _unpacked(self, gathered: torch.Tensor) -> list[torch.Tensor]:
        lengths = [s[r] for r in range(self._ranks) for s in self._slices]
        pieces = gathered.split(lengths)
        count = len(self._slices)
        return [torch.cat(pieces[t::count]).reshape(shape)
                for t, shape in enumerate(self._shapes)]


def _gram(part: torch.Tensor) -> torch.Tensor:
    """The dot products of the rows of `part`."""
    total = torch.zeros(part.shape[0], part.shape[0], dtype=torch.float64,
                        device=part.device)
    for block in part.split(_BLOCK, dim=1):
        wide = block.to(torch.float64)
        total += wide @ wide.t()
    return total


def _combine(factors: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The sum of the rows of `part`, each with its factor."""
    blocks = [(factors @ block.to(torch.float64)).to(part.dtype)
              for block in part.split(_BLOCK, dim=1)]
    return torch.cat(blocks)


class _InThread:
    """A reduction that a thread ends; see operations.PendingGroup."""

    def __init__(self, reduction: _Reduction, single: bool):
        self._single = single
        self._results: Any = None
        self._error: Optional[Exception] = None
        self._streams = reduction.streams()
        self._thread = threading.Thread(target=self._run, args=(reduction,),
                                        name="maypole-adasum", daemon=True)
        self._thread.start()

    def _run(self, reduction: _Reduction) -> None:
        try:
            with _tensors.on_streams(self._streams):
                results = reduction.end()
            self._results = results[0] if self._single else results
        except Exception as error:
            self._error = error

    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    done = ended

    def wait(self) -> Any:
        """Waits for the thread and returns the results, or raises the error."""
        self._thread.join()
        for tensor, stream in self._streams:
            _tensors.wait_for_stream(tensor, stream)
        if self._error is not None:
            raise self._error
        return self._results
