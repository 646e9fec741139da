"""Makes .grad of parameters call back before the program reads or sets it.

    guards = Guards(callback)
    guards.add(parameter)
    guards.engage()          # from now on callback(parameter, ...) runs first
    guards.release()

Between backward() and the end of the reductions, .grad is neither the rank's
gradient nor the result. Code that reads it then (to clip gradients, to look for
infinities, to print them) must wait. While the guards are engaged, the class of
each parameter is a subclass of its own class, whose attribute `grad` is a
property. Nothing else of the parameter changes; autograd does not notice.

Maypole's own code uses grad_of() and set_grad(), which do not call back.

Thread contract: one thread at a time. Invariant: after release() each
parameter has the class that it had before engage().
"""

import copy
import weakref
from typing import Any, Callable

import torch

_GRAD = torch.Tensor.grad

# The value for the callback of a .grad that is read.
READ = object()

# Access to .grad without a callback.
grad_of: Callable[[torch.Tensor], Any] = _GRAD.__get__
set_grad: Callable[[torch.Tensor, Any], None] = _GRAD.__set__


def check_no_graph(grad: torch.Tensor, name: str) -> None:
    """Raises AssertionError for a gradient of backward(create_graph=True)."""
    if grad.requires_grad:
        raise AssertionError(
            f"the gradient of {name!r} is part of a graph itself; "
            "DistributedOptimizer cannot be used with backward(create_graph="
            "True), because the graph has only this rank's gradients; use "
            "torch.autograd.grad(..., create_graph=True) within the loss")


class Guards:
    """See the head of this file.

    callback: a bound method; its arguments are the parameter, and the value that
    the program assigns to .grad (READ if it reads .grad). It is held weakly: a
    parameter whose guard outlives the method's object gets its own class back at
    the next read.
    """

    def __init__(self, callback: Callable[[torch.Tensor, Any], None]):
        self._callback = weakref.WeakMethod(callback)
        # By id: (parameter, its class, its class while the guards are engaged).
        self._entries: dict[int, tuple[torch.Tensor, type, type]] = {}
        self._classes: dict[type, type] = {}
        self._engaged = False

    def could_add(self, parameter: torch.Tensor) -> bool:
        """Whether this parameter has no guard, and its class is one of torch's."""
        return (id(parameter) not in self._entries
                and type(parameter) in (torch.nn.Parameter, torch.Tensor))

    def add(self, parameter: torch.Tensor) -> None:
        """Also guards `parameter`, if it is not guarded yet.

        Raises TypeError if its class cannot be exchanged.
        """
        if id(parameter) in self._entries:
            return
        base = type(parameter)
        guarded = self._classes.get(base)
        if guarded is None:
            guarded = _guarded_class(base, self._callback)
            self._classes[base] = guarded
        parameter.__class__ = guarded
        if not self._engaged:
            parameter.__class__ = base
        self._entries[id(parameter)] = (parameter, base, guarded)

    def remove(self, parameter: torch.Tensor) -> None:
        """Stops guarding `parameter`."""
        entry = self._entries.pop(id(parameter), None)
        if entry is None:
            return
        _, base, guarded = entry
        if type(parameter) is guarded:
            parameter.__class__ = base

    def engage(self) -> None:
        """From now on the callback runs before each access."""
        self._engaged = True
        for parameter, _, guarded in self._entries.values():
            parameter.__class__ = guarded

    def release(self) -> None:
        """Ends what engage() began."""
        if not self._engaged:
            return
        self._engaged = False
        for parameter, base, _ in self._entries.values():
            parameter.__class__ = base


def _guarded_class(base: type, callback: "weakref.WeakMethod") -> type:

    def before(self: torch.Tensor, value: Any = READ) -> None:
        function = callback()
        if function is None:
            self.__class__ = base
        else:
            function(self, value)

    def get(self: torch.Tensor) -> Any:
        before(self)
        return grad_of(self)

    def put(self: torch.Tensor, value: Any) -> None:
        before(self, value)
        set_grad(self, value)

    def duplicate(self: torch.Tensor, memo: Any) -> torch.Tensor:
        if not issubclass(base, torch.nn.Parameter):  # copies .grad as well
            before(self)
        now = type(self)
        self.__class__ = base
        try:
            return copy.deepcopy(self, memo)
        finally:
            self.__class__ = now

    def reduce(self: torch.Tensor, protocol: Any) -> Any:
        # What is pickled is a tensor of torch's own class; .grad is no part of it.
        now = type(self)
        self.__class__ = base
        try:
            return self.__reduce_ex__(protocol)
        finally:
            self.__class__ = now

    members = {
        "__slots__": (),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__deepcopy__": duplicate,
        "__reduce_ex__": reduce,
        "grad": property(get, put, lambda self: put(self, None)),
    }
    if base is torch.Tensor:  # operations on a subclass would be slower
        members["__torch_function__"] = torch._C._disabled_torch_function_impl
    return type(base)(base.__name__, (base,), members)
