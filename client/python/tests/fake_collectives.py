"""The collectives of the fake library, on the ranks' memory.

`execute(submissions, ranks)` runs one operation. `ranks` are those of the
process set; `submissions` are those of the ranks that have submitted it, in the
same order. A rank that has joined has none. It reads and writes the memory at
the submitters' addresses.
"""

import ctypes
import functools

import torch

from maypole import _native

_TORCH_DTYPES = {
    _native.UINT8: torch.uint8,
    _native.INT8: torch.int8,
    _native.INT16: torch.int16,
    _native.INT32: torch.int32,
    _native.INT64: torch.int64,
    _native.FLOAT16: torch.float16,
    _native.BFLOAT16: torch.bfloat16,
    _native.FLOAT32: torch.float32,
    _native.FLOAT64: torch.float64,
    _native.BOOL: torch.bool,
}

_AVERAGE, _SUM, ADASUM, _MIN, _MAX, _PRODUCT = range(6)


def _view(address, shape, dtype):
    count = 1
    for n in shape:
        count *= n
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    size = count * torch.empty(0, dtype=dtype).element_size()
    memory = (ctypes.c_ubyte * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


class Submission:
    """One rank's part of an operation, and its outcome.

    status: None until it has ended. gathered: a result in memory of the
    library. answer: for a join the last rank, for a set request the set's id.

    stream: not None for CUDA tensors, which are CPU tensors here. Their input
    is read at submission, as if the stream had no pending work, and `result`
    has the output until copy_result().
    """

    def __init__(self, rank, arguments=None):
        self.rank = rank
        self.name = self.kind = None
        self.status = None
        self.text = ""
        self.gathered = None
        self.received = None
        self.answer = None
        self.stream = self.result = None
        if arguments is not None:
            (self.kind, self.dtype, self.op, self.root, shape, self.prescale,
             self.postscale, self.name, self.input, self.output, self.awaited,
             self.process_set, self.splits, self.stream) = arguments
            self.shape = tuple(shape)
            if self.stream is not None:
                self.packed = self._input().clone()

    def _input(self):
        return _view(self.input, self.shape, _TORCH_DTYPES[self.dtype])

    def tensor(self):
        """The input."""
        return self._input() if self.stream is None else self.packed

    def store(self, value):
        """Writes `value` to the output."""
        if self.stream is None:
            _view(self.output, value.shape, value.dtype).copy_(value)
        else:
            self.result = value.clone()

    def copy_result(self, address):
        """Writes the result of an operation on CUDA tensors to `address`."""
        if self.gathered is None:
            result, address = self.result, address or self.output
        else:
            result = self.gathered
        _view(address, result.shape, result.dtype).copy_(result)

    def fail(self, status, text):
        self.status, self.text = status, text


def execute(submissions, ranks):
    """Runs one operation; see the docstring of this file."""
    first = submissions[0]
    for other in submissions[1:]:
        shapes_agree = (first.kind in (_native.ALLGATHER, _native.ALLTOALL)
                        or first.shape == other.shape)
        devices_agree = (first.stream is None) == (other.stream is None)
        if not (shapes_agree and devices_agree) or (
                first.dtype, first.op) != (other.dtype, other.op):
            for s in submissions:
                s.fail(
                    _native.FAILED_PRECONDITION,
                    f"{first.name}: rank {first.rank} has {first.shape}, rank "
                    f"{other.rank} has {other.shape}")
            return
    {
        _native.ALLREDUCE: _allreduce,
        _native.ALLGATHER: _allgather,
        _native.BROADCAST: _broadcast,
        _native.ALLTOALL: _alltoall,
        _native.REDUCESCATTER: _reducescatter,
        _native.BARRIER: lambda submissions, ranks: None,
    }[first.kind](submissions, ranks)
    for s in submissions:
        s.status = _native.OK


def _combine(op, dtype):
    if dtype == torch.bool:
        return torch.logical_or if op in (_SUM, _MAX) else torch.logical_and
    return {
        _MIN: torch.minimum,
        _MAX: torch.maximum,
        _PRODUCT: torch.mul,
    }.get(op, torch.add)


def _scaled(tensor, factor, divisor=1):
    if tensor.dtype.is_floating_point:
        return tensor * factor / divisor
    if factor == 1.0:
        return torch.div(tensor, divisor, rounding_mode="trunc")
    limits = torch.iinfo(tensor.dtype)
    numbers = [float(x) * factor / divisor for x in tensor.flatten().tolist()]
    numbers = [0 if x != x else limits.max if x >= limits.max else int(max(x, limits.min)) for x in numbers]
    return torch.tensor(numbers, dtype=tensor.dtype).view(tensor.shape)


def _adasum(values):
    if len(values) == 1:
        return values[0]
    middle = 1 << ((len(values) - 1).bit_length() - 1)
    a, b = _adasum(values[:middle]), _adasum(values[middle:])
    of = lambda x: 1 - (a * b).sum() / (2 * (x * x).sum()) if x.any() else 1
    return of(a) * a + of(b) * b


def _reduced(submissions, ranks):
    first = submissions[0]
    values = [s.tensor().clone() if s.prescale == 1.0 else _scaled(s.tensor(), s.prescale) for s in submissions]
    if first.op == ADASUM:
        total = _adasum([value.double() for value in values]).to(values[0].dtype)
    else:
        total = functools.reduce(_combine(first.op, values[0].dtype), values)
    divisor = len(ranks) if first.op == _AVERAGE else 1
    return total if (first.postscale, divisor) == (1.0, 1) else _scaled(total, first.postscale, divisor)


def _allreduce(submissions, ranks):
    total = _reduced(submissions, ranks)
    for s in submissions:
        s.store(total)


def _reducescatter(submissions, ranks):
    parts = _reduced(submissions, ranks).tensor_split(len(ranks))
    for s in submissions:
        s.store(parts[ranks.index(s.rank)])


def _allgather(submissions, ranks):
    del ranks
    gathered = torch.cat([s.tensor() for s in submissions])
    for s in submissions:
        s.gathered = gathered.clone()


def _alltoall(submissions, ranks):
    n = len(ranks)
    parts, counts = {}, {}
    for s in submissions:
        splits = s.splits or [s.shape[0] // n] * n
        parts[s.rank] = s.tensor().split(splits)
        counts[s.rank] = splits
    for s in submissions:
        place = ranks.index(s.rank)
        s.gathered = torch.cat(
            [parts[r][place] for r in ranks if r in parts]).clone()
        s.received = [counts[r][place] if r in counts else 0 for r in ranks]


def _broadcast(submissions, ranks):
    del ranks
    (root,) = [s for s in submissions if s.rank == submissions[0].root]
    value = root.tensor().clone()
    for s in submissions:
        s.store(value)
