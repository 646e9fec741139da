"""Turns an optimizer into a distributed one, in place.

    attach(optimizer, methods, options)

The optimizer stays the same object, so everything that refers to it keeps
working: a learning rate scheduler made before, parameter groups, state, hooks.
Only its class changes, to one of the same name that is derived from `methods`
and from the former class. Maypole's state is in the attribute `_maypole`, so
that no attribute of the optimizer's own is overwritten.

A copy (copy.deepcopy, pickle) is also a distributed optimizer. It begins to
reduce gradients at its first use, or when a gradient is read after backward(),
because all ranks do that; the copy itself may have been made by one rank only,
for example to save it.

Thread contract: one thread at a time.
"""

import functools
from typing import Any

import torch

from maypole.common import basics


class Wrapped(torch.optim.Optimizer):
    """What both kinds of distributed optimizers have in common.

    _maypole: what _attach() made; None in a copy that was made outside of a job,
    or shares parameters, before its first use.
    """

    # pylint: disable=super-init-not-called
    _maypole: Any = None
    _maypole_options: Any = None

    def _attach(self) -> None:
        """Makes `_maypole`, from `_maypole_options`."""
        raise NotImplementedError

    def _attach_copy(self) -> None:
        """Begins to detect when the program uses gradients of this copy."""

    def _attached(self) -> Any:
        """Returns `_maypole`; None outside a job, where this is an ordinary optimizer."""
        if self._maypole is None and basics.in_job():
            self._attach()
        return self._maypole

    def _count_step(self) -> None:
        """Does what a scheduler's patch of step() does: see step_is_counted()."""
        self._step_count = getattr(self, "_step_count", 0) + 1  # torch 1.13
        self._opt_called = True  # newer ones

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        methods, base = type(self).__bases__
        return _new, (methods, base), (self.__getstate__(),
                                       self._maypole_options)

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if isinstance(state, dict):  # an optimizer may keep all its attributes
            state = {key: value for key, value in state.items()
                     if key not in ("_maypole", "_maypole_options", "step")}
        return state

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):
            state, self._maypole_options = state
        super().__setstate__(state)
        if basics.in_job():
            self._attach_copy()


def _new(methods: type, base: type) -> Any:
    cls: Any = _class_of(methods, base)
    return cls.__new__(cls)


@functools.cache
def _class_of(methods: type, base: type) -> type:
    return type(base.__name__, (methods, base), {"__doc__": base.__doc__})


def attach(optimizer: torch.optim.Optimizer, methods: type,
           options: Any) -> Any:
    """Gives `optimizer` the methods `methods`, and returns it.

    Raises ValueError if it is one already, or if its step() was replaced.
    """
    if isinstance(optimizer, Wrapped):
        raise ValueError("DistributedOptimizer: this optimizer is one already; "
                         "each optimizer is wrapped once")
    replaced = vars(optimizer).get("step")
    if replaced is not None and not _is_counter(replaced):
        raise ValueError(
            "DistributedOptimizer: step() of this optimizer was replaced by "
            f"{getattr(replaced, '__qualname__', replaced)!r}, which would not "
            "wait for the gradients; replace step() afterwards")
    before = optimizer.__class__
    vars(optimizer).pop("step", None)  # see step_is_counted()
    optimizer.__class__ = _class_of(methods, before)
    optimizer._maypole_options = options
    try:
        optimizer._attach()
    except BaseException:
        optimizer.__class__ = before
        for name in ("_maypole", "_maypole_options"):
            vars(optimizer).pop(name, None)
        if replaced is not None:
            optimizer.step = replaced
        raise
    return optimizer


_COUNTERS = ("_with_counter", "_wrapped_by_lr_sched")


def _is_counter(step: Any) -> bool:
    return any(hasattr(step, name) for name in _COUNTERS)


def step_is_counted(step: Any) -> Any:
    """Marks a step() that calls _count_step().

    A scheduler replaces step() of its optimizer by a function that records the
    call, and calls what was step() of the class then. It warns if it does not
    find that record. This mark tells it that step() records calls. torch also
    wraps step() of every optimizer class to profile it and to call step hooks;
    `hooked` says that this was done, because the base class's step() is wrapped
    already.
    """
    step.hooked = True
    for name in _COUNTERS:
        setattr(step, name, True)
    return step
