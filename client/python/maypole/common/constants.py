"""Reduction operations."""

import enum


class ReduceOp(enum.IntEnum):
    """How an allreduce or reducescatter combines the inputs of the ranks, element by element.

    A member is the int that Horovod uses and the C library takes: `op=hvd.Sum`, `op=hvd.ReduceOp.Sum` and `op=1` mean
    the same, and members compare, hash, format and pickle like that int; repr() also has the name.

    Attributes:
        Average: the sum divided by the number of ranks; integers are truncated toward zero.
        Sum: integers wrap around on overflow; for bool, OR.
        Adasum: the adaptive sum of https://arxiv.org/abs/2006.02924, for floating dtypes only.
        Min: NaN if an input is NaN; for bool, AND.
        Max: NaN if an input is NaN; for bool, OR.
        Product: integers wrap around on overflow; for bool, AND.
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    # IntEnum's own differ between versions of Python.
    __str__ = int.__repr__

    def __format__(self, format_spec: str) -> str:
        return format(int(self), format_spec)


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

OP_NAMES: dict[int, str] = {op: op.name for op in ReduceOp}
