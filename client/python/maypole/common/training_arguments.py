"""Checks arguments that the distributed optimizers and tapes of all frameworks share. Pure."""

import numbers
import warnings
from typing import Any

from maypole.common.constants import OP_NAMES, Adasum, Average, ReduceOp, Sum


def check_op(op: ReduceOp) -> None:
    """Raises ValueError for a reduction with which no optimizer can step."""
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"DistributedOptimizer: op={OP_NAMES.get(op, op)}, expected Average, Sum or Adasum")


def check_predivision(op: ReduceOp, factor: float) -> None:
    """Raises ValueError if there is nothing to divide before the sum."""
    if factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={factor} needs op=Average, got {OP_NAMES.get(op, op)}: it splits "
                         "the averaging before and after the sum")


def check_passes(passes: int) -> None:
    """Raises ValueError for a number of backward passes that no step can have."""
    if not isinstance(passes, numbers.Integral) or passes < 1:
        raise ValueError(f"backward_passes_per_step={passes}: expected a positive integer")


def groups_of(num_groups: int, groups: Any) -> Any:
    """Returns `groups`, or its older form num_groups. Raises ValueError if it is neither a number nor lists."""
    if num_groups != 0:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return groups
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"groups={groups!r}: groups must be None, a non-negative integer, or a list of lists of "
                         "parameters or variables")
    return groups
