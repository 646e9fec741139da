"""The parameters that a DistributedOptimizer reduces, and the names of their operations.

    parameters = Parameters(optimizer, options, guards, on_gradient, first_pending, is_copy)
    parameters.names[p]          # 'DistributedOptimizer#1.body.weight'
    parameters.identity          # 'DistributedOptimizer#1(body.weight)': no other optimizer has it
    for p in parameters.hooked:  # those with a hook
    parameters.follow_groups()   # after add_param_group() and the like

Optimizers with parameters of equal names are numbered in the order in which the
program makes them, which is the same on all ranks. An optimizer that replaces
another one for the same parameters takes them over and gets its number. A copy
sleeps: other ranks may not have made it, so it takes over at its first use.

Thread contract: one thread at a time. Invariants: at most one optimizer has its
hook at a parameter. `names` has all parameters of the optimizer, including
those without requires_grad; `hooked` those that have required a gradient at
some time.
"""

import weakref
from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch

from maypole import _native
from maypole.common.process_sets import id_of
from maypole.torch._compiling import not_compiled
from maypole.torch._gradients.guards import Guards
from maypole.torch._gradients.hooks import on_gradient

_PREFIX = "DistributedOptimizer"

# By the parameter's id: the optimizer whose hook it has, and the one that named it last.
_watching: "weakref.WeakValueDictionary[int, Parameters]" = (
    weakref.WeakValueDictionary())
_naming: "weakref.WeakValueDictionary[int, Parameters]" = (
    weakref.WeakValueDictionary())


def is_watched(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether some optimizer has its hook at one of these parameters."""
    return any(id(p) in _watching for p in parameters)


def name_of(parameter: Any, process_set: Any) -> Optional[str]:
    """The parameter's name in a DistributedOptimizer of this set, on all its ranks; None if it is in none."""
    owner = _naming.get(id(parameter))
    if owner is None or id_of(owner.process_set) != id_of(process_set):
        return None
    return owner.names.get(parameter)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class Parameters:
    """See the head of this file.

    optimizer: the owner, which is alive whenever this object is used.
    options: their `names` follow the groups. on_gradient: a bound method, called
    with a parameter whose gradient was computed. first_pending: a bound method
    that returns the name of a gradient that is being reduced, or None. All three
    are held weakly, so that an optimizer that was replaced stops reducing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, options: Any,
                 guards: Guards, on_gradient: Callable[[torch.Tensor], None],
                 first_pending: Callable[[], Optional[str]], is_copy: bool):
        self.optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self.process_set = options.process_set
        self._options = options
        self._guards = guards
        self._on_gradient = weakref.WeakMethod(on_gradient)
        self._first_pending = weakref.WeakMethod(first_pending)
        self.superseded = False
        self.asleep = is_copy
        self.hooked: dict[torch.Tensor, Any] = {}
        self._set_number(0 if is_copy else self._take_over())
        self._ids = [id(p) for p in _parameters_of(optimizer)]
        self.watch()

    def _set_number(self, number: int) -> None:
        self._number = number
        self.prefix = f"{_PREFIX}#{number}" if number else _PREFIX
        self.names = {p: f"{self.prefix}.{name}"
                      for p, name in self._options.names.items()}
        _naming.update((id(p), self) for p in self.names)

    @property
    def identity(self) -> str:
        """Names this optimizer, on all ranks, whose parameters may be in another order.

        Another optimizer that also has this parameter's name has another number.
        """
        return f"{self.prefix}({min(self._options.names.values(), default='')})"

    def wake(self) -> bool:
        """Called at a use by all ranks; returns whether it is the first use of a copy."""
        if not self.asleep:
            return False
        self.asleep = False
        self._set_number(self._take_over())
        return True

    def _take_over(self) -> int:
        """Removes other optimizers' hooks at these parameters; returns this optimizer's number.

        This is the number of optimizers made before it that have a parameter of the same name.
        """
        names = self._options.names
        watching = (_watching.get(id(p)) for p in names)
        others = {o for o in watching if o is not None and o is not self}
        for other in others:
            first_pending = other._first_pending()
            pending = first_pending and first_pending()
            if pending is not None:
                raise ValueError(
                    "DistributedOptimizer: another one is reducing gradients of "
                    f"the same parameters ({pending!r} among them); call its "
                    "step() or synchronize() first")
        for other in others:
            for parameter in names:
                other._unwatch(parameter)
            other.superseded = True
        replaced = [o._number for o in others if not o.hooked]
        if replaced:
            return min(replaced)
        # Counted per process set: ranks outside it make no optimizers for it.
        counts = _native.library().counts
        kinds = [("parameter", id_of(self.process_set), name)
                 for name in names.values()]
        number = max((counts[kind] for kind in kinds), default=0)
        for kind in kinds:
            counts[kind] = number + 1
        return number

    def watch(self) -> None:
        """Adds a hook to each parameter that needs a gradient and has none.

        Parameters that do not need one yet get a guard.
        """
        fresh = []
        for parameter in self.names:
            if parameter in self.hooked:
                continue
            if parameter.requires_grad:
                fresh.append(parameter)
            elif self._guards.could_add(parameter):
                self._guards.add(parameter)
        if not fresh:
            return
        method = self._on_gradient

        @not_compiled
        def hook(parameter: torch.Tensor) -> None:
            on_grad = method()
            if on_grad is not None:
                on_grad(parameter)

        for parameter in fresh:
            try:
                self._guards.add(parameter)
            except TypeError as error:
                raise ValueError(
                    f"DistributedOptimizer: {self.names[parameter]!r} is a "
                    f"{type(parameter).__name__}, expected a torch.Tensor or "
                    f"torch.nn.Parameter: {error}") from None
            self.hooked[parameter] = on_gradient(parameter, hook)
            _watching[id(parameter)] = self

    def _unwatch(self, parameter: torch.Tensor) -> None:
        if self.hooked.pop(parameter, None) is not None:
            _watching.pop(id(parameter), None)
        self._guards.remove(parameter)
        self.names.pop(parameter, None)

    def follow_groups(self) -> tuple[bool, bool]:
        """Detects parameters that were added to the optimizer's groups, and those that were removed.

        Returns whether there was a change, and whether parameters were removed.
        """
        optimizer = self.optimizer()
        ids = [id(p) for p in _parameters_of(optimizer)]
        if ids == self._ids:
            return False, False
        self._ids = ids
        names = self._options.names
        gone = follow_names(names, optimizer)
        for parameter in gone:
            self._unwatch(parameter)
        for parameter, name in names.items():
            if parameter not in self.names:
                self.names[parameter] = f"{self.prefix}.{name}"
                _naming[id(parameter)] = self
        self.watch()
        return True, bool(gone)


def follow_names(names: dict[torch.Tensor, str],
                 optimizer: torch.optim.Optimizer) -> set[torch.Tensor]:
    """Updates `names` to the optimizer's present parameters.

    New parameters are named after their position. Returns those that were removed.
    """
    gone = set(names) - set(_parameters_of(optimizer))
    for parameter in gone:
        del names[parameter]
    taken = set(names.values())
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            if parameter in names:
                continue
            name = f"group{g}.{i}"
            while name in taken:
                name += "+"
            taken.add(name)
            names[parameter] = name
    return gone
