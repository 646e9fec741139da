"""The classes of distributed optimizers, of Keras 2 and 3.

An optimizer becomes an instance of a subclass of its class, in place, so that its variables and
options stay. The subclass reports the base as its __class__: Keras then saves the optimizer as the
plain one, which loads without Maypole and under every backend. A copy (copy, deepcopy, pickle) is
also distributed, if the plain optimizer can be copied.

    become(optimizer, methods, state)    makes it distributed; methods(its class) -> the overrides
    state_of(optimizer)                  what it keeps; not a part of files
    undo(optimizer)                      makes it plain again

Thread contract: as Keras' optimizers, one thread at a time.
"""

import copy
import copyreg
import functools
from typing import Any, Callable

Methods = Callable[[type], dict[str, Any]]

# object's own setter of __class__, which the classes here override.
_set_class = object.__dict__["__class__"].__set__
_ATTRIBUTE = "_maypole_state"
_NEW_OBJECT = getattr(copyreg, "__newobj__")  # noqa: B009 - what pickle calls; not in typeshed

_classes: dict[type, type] = {}
_watched: set[type] = set()


def is_distributed(optimizer: Any) -> bool:
    """Whether become() has been called for this optimizer."""
    return type(optimizer) in _classes.values()


def become(optimizer: Any, methods: Methods, state: Any) -> None:
    """Makes the optimizer distributed, or gives a distributed one a new state."""
    if not is_distributed(optimizer):
        _set_class(optimizer, _class_of(type(optimizer), methods))
    optimizer.__dict__[_ATTRIBUTE] = state


def undo(optimizer: Any) -> Any:
    """Makes a distributed optimizer plain; returns its state."""
    _set_class(optimizer, type(optimizer).__mro__[1])
    return optimizer.__dict__.pop(_ATTRIBUTE, None)


def state_of(optimizer: Any) -> Any:
    """The state. Raises RuntimeError if there is none, as after from_config()."""
    state = optimizer.__dict__.get(_ATTRIBUTE)
    if state is None:
        raise RuntimeError(f"this {type(optimizer).__name__} was made from a distributed "
                           "optimizer's class; pass it to DistributedOptimizer() before it is used")
    return state


def reduction_of(optimizer: Any) -> Any:
    """Returns the Reduction of a distributed optimizer, of Keras 2 or 3."""
    state = state_of(optimizer)
    return getattr(state, "reduction", state)


def turn_inside_out(loss_scale: type, distribute: Callable[[Any, Any], None]) -> None:
    """Makes future objects of the class `loss_scale` distributed, if they wrap a distributed optimizer.

    It calls distribute(object, state of the wrapped optimizer); the wrapped optimizer is plain then.

    compile() makes such an object for a model of mixed precision. Unchanged, it would call the
    wrapped optimizer in a branch that depends on this rank's gradients, where the ranks would
    wait for each other forever.
    """
    if loss_scale in _watched or "__init__" not in loss_scale.__dict__:
        return
    _watched.add(loss_scale)
    initialize = loss_scale.__dict__["__init__"]

    @functools.wraps(initialize)
    def __init__(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, inner_optimizer, *args, **kwargs)
        if is_distributed(inner_optimizer):
            distribute(self, undo(inner_optimizer))

    setattr(loss_scale, "__init__", __init__)  # noqa: B010 - a type checker knows no assignment to __init__


def _class_of(base: type, methods: Methods) -> type:
    """Returns the subclass of `base`, always the same one."""
    if base not in _classes:

        def __reduce_ex__(self: Any, protocol: Any) -> Any:
            return _again, (_Plain(self), methods, state_of(self))

        _classes[base] = type(base)(base.__name__, (base,), {
            **methods(base),
            "__reduce_ex__": __reduce_ex__,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__class__": property(lambda self: base),
        })
    return _classes[base]


class _Plain:
    """Stands for a distributed optimizer in a copy or pickle, and is restored as the plain one."""

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer

    def __reduce_ex__(self, protocol: Any) -> Any:
        optimizer = self._optimizer
        distributed, state = type(optimizer), undo(optimizer)
        try:
            function, *others = optimizer.__reduce_ex__(protocol)
        finally:
            _set_class(optimizer, distributed)
            optimizer.__dict__[_ATTRIBUTE] = state
        # pickle accepts that function only for the object's own class.
        return (_new if function is _NEW_OBJECT else function, *others)


def _new(kind: type, *args: Any) -> Any:
    return kind.__new__(kind, *args)


def _again(optimizer: Any, methods: Methods, state: Any) -> Any:
    """Makes the copy of a distributed optimizer from the copy of the plain one."""
    if isinstance(optimizer, _Plain):  # copy.copy() does not copy arguments
        optimizer, state = copy.copy(optimizer), copy.copy(state)
    become(optimizer, methods, state)
    return optimizer
