"""Optimizers of Keras 3 whose steps reduce the gradients first.

An optimizer becomes one of a subclass of its class, in place, so that its variables and options
stay. The subclass says that its __class__ is the base: Keras then saves the optimizer as the plain
one, which loads without Maypole and under every backend.

Where gradients are reduced:

    apply()             before all else, so that clipping, weight decay, moving averages and loss
                        scaling see what one process would see
    _clip_gradients()   instead, if gradients are accumulated over passes: only the sum is reduced.
                        Keras calls it in a branch that depends on the number of the step, which is
                        the same on all ranks
    LossScaleOptimizer  is reduced itself, never the optimizer within it, which Keras calls in a
                        branch that depends on the rank's own gradients: ranks would wait for each
                        other for ever. Then every rank sees the same gradients, and whether they
                        are finite

Thread contract: as Keras' optimizers, one thread at a time.
"""

import sys
from typing import Any, Dict, List, Optional, Sequence

import keras

from maypole._keras.reduction import Reduction, Step

_LossScale = keras.optimizers.LossScaleOptimizer
# What object itself does with __class__, which the classes here override.
_set_class = object.__dict__["__class__"].__set__

_ATTRIBUTE = "_maypole_reduction"
_STEP = "_maypole_step"  # of a step whose gradients _clip_gradients() reduces

_classes: Dict[type, type] = {}


def distribute(optimizer: Any, reduction: Reduction) -> Any:
    """Makes the optimizer reduce gradients; returns it, or a LossScaleOptimizer around it.

    Raises ValueError if it is built and would need other variables.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"DistributedOptimizer: {optimizer!r} is a {type(optimizer).__name__}, "
                         "expected an optimizer of Keras 3")
    inner = _inner(optimizer)
    _accumulate(inner, reduction)
    if inner is optimizer and keras.config.dtype_policy().name == "mixed_float16":
        # compile() would put it around ours.
        optimizer = _LossScale(optimizer, name="loss_scale_optimizer")
    if optimizer is not inner and is_distributed(inner):
        _undo(inner)
    if not is_distributed(optimizer):
        _set_class(optimizer, _distributed_class(type(optimizer)))
    optimizer.__dict__[_ATTRIBUTE] = reduction
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether distribute() has been called for this optimizer."""
    return type(optimizer) in _classes.values()


def _undo(optimizer: Any) -> None:
    _set_class(optimizer, type(optimizer).__mro__[1])
    optimizer.__dict__.pop(_ATTRIBUTE, None)


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, _LossScale) else optimizer


def _accumulate(optimizer: Any, reduction: Reduction) -> None:
    passes, has = reduction.passes, optimizer.gradient_accumulation_steps
    if passes == 1 or passes == has:
        return
    if has:
        raise ValueError(f"DistributedOptimizer: backward_passes_per_step={passes}, but the "
                         f"optimizer has gradient_accumulation_steps={has}; pass one of them")
    if optimizer.built:
        raise ValueError(f"DistributedOptimizer: backward_passes_per_step={passes} needs variables "
                         "of the optimizer, which is built already; create it with "
                         f"gradient_accumulation_steps={passes}")
    optimizer.gradient_accumulation_steps = passes


def _reduction_of(optimizer: Any) -> Reduction:
    reduction = optimizer.__dict__.get(_ATTRIBUTE)
    if reduction is None:  # by from_config(), say
        raise RuntimeError(f"this {optimizer.name} was made from a distributed optimizer's class; "
                           "pass it to DistributedOptimizer() before it is used")
    return reduction


def _step(optimizer: Any, count: int, variables: Optional[Sequence[Any]]) -> Step:
    """The step of `count` gradients, of these variables or of all that the optimizer has."""
    reduction, inner = _reduction_of(optimizer), _inner(optimizer)
    known = inner._trainable_variables if inner.built else variables
    if variables is None:
        variables = known
    if inner.built:
        indices = [inner._get_variable_index(v) for v in variables]
    else:
        indices = range(len(variables))
    local = [reduction.is_local(v, inner._var_key) for v in variables]
    return Step(reduction, reduction.prefix(known or ()), list(variables)[:count], indices[:count],
                local[:count])


def _distributed_class(base: type) -> type:
    """The subclass of `base`; always the same one."""
    if base not in _classes:
        methods = _loss_scale_methods(base) if issubclass(base, _LossScale) else _methods(base)
        _classes[base] = type(base.__name__, (base,), {
            **methods,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__class__": property(lambda self: base),
            "register_local_var": _register_local_var,
        })
    return _classes[base]


def _register_local_var(self: Any, variable: Any) -> None:
    """The gradient of this variable stays on its rank."""
    _reduction_of(self).local_variables.append(variable)


def _methods(base: type) -> Dict[str, Any]:
    """The methods of an optimizer other than a LossScaleOptimizer."""

    def build(self: Any, variables: Any) -> None:
        _turn_inside_out(self, sys._getframe(1))
        base.build(self, variables)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not _reduction_of(self).active():
            return base.apply(self, grads, trainable_variables)
        step = _step(self, len(grads), trainable_variables)
        grads = step.completed(grads)
        if not self.gradient_accumulation_steps:
            grads = step.reduced(grads, step.owns(grads))
            return base.apply(self, grads, trainable_variables)
        # What base.apply() passes on to _clip_gradients().
        self.__dict__[_STEP] = step.only([
            g is not None and not getattr(v, "overwrite_with_gradient", False)
            for g, v in zip(grads, step.variables)])
        try:
            return base.apply(self, grads, trainable_variables)
        finally:
            del self.__dict__[_STEP]

    def _clip_gradients(self: Any, grads: Any) -> Any:
        step = self.__dict__.get(_STEP)
        if step is not None:
            grads = step.reduction.gradients.accumulated(
                self, lambda sums: step.reduced(sums, True, step.reduction.over_passes),
                list(grads))
        return base._clip_gradients(self, grads)

    if not hasattr(base, "_clip_gradients"):
        raise RuntimeError(f"Keras {keras.__version__} has no Optimizer._clip_gradients(), where "
                           "Maypole reduces accumulated gradients; use an older Keras")
    return {"build": build, "apply": apply, "_clip_gradients": _clip_gradients}


def _turn_inside_out(optimizer: Any, frame: Any) -> None:
    """If it is a LossScaleOptimizer around the optimizer that calls its build(), in `frame`: makes
    that one distributed, and the optimizer plain.

    compile() puts it there for a model of mixed precision. Once it applies gradients, it is too
    late, because it has taken those of this rank.
    """
    outer = frame.f_locals.get("self")
    if not isinstance(outer, _LossScale) or outer.inner_optimizer is not optimizer:
        return
    while frame is not None and frame.f_code.co_name != "fit":
        if frame.f_code.co_name == "apply" and frame.f_locals.get("self") is outer:
            raise RuntimeError(
                "a LossScaleOptimizer is around a distributed optimizer, whose ranks could wait "
                "for each other for ever when the gradients of one overflow; put it inside: "
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))")
        frame = frame.f_back
    reduction = _reduction_of(optimizer)
    _undo(optimizer)
    distribute(outer, reduction)


def _loss_scale_methods(base: type) -> Dict[str, Any]:

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        base.apply(self, _scaled(self, grads, trainable_variables), trainable_variables)

    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any,
                        trainable_variables: Any) -> Any:
        return base.stateless_apply(self, optimizer_variables, _scaled(self, grads, None),
                                    trainable_variables)

    def check_finite(self: Any, grads: Any) -> Any:
        finite, reduction = base.check_finite(self, grads), _reduction_of(self)
        if not reduction.has_local() or not reduction.active():
            return finite
        # Gradients that stay on their rank differ, and the scale must not.
        variables = _inner(self)._trainable_variables
        return reduction.gradients.smallest(reduction, finite,
                                            reduction.prefix(variables) + ".finite")

    return {"apply": apply, "stateless_apply": stateless_apply, "check_finite": check_finite}


def _scaled(optimizer: Any, grads: Any, variables: Any) -> List[Any]:
    """The reduced gradients of a LossScaleOptimizer, in every pass: whether they are finite decides
    also about a pass that is accumulated."""
    grads = list(grads)
    if not _reduction_of(optimizer).active():
        return grads
    step = _step(optimizer, len(grads), None if variables is None else list(variables))
    grads = step.completed(grads)
    return step.reduced(grads, step.owns(grads), step.reduction.over_passes)
