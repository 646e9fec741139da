"""Optimizers of Keras 2 (tf.keras up to TensorFlow 2.15, and tf_keras) that reduce gradients first.

As in keras3.py, an optimizer becomes one of a subclass of its class, in place, which Keras saves as
the plain one. Gradients are reduced in apply_gradients(), which minimize() and fit() call: before
clipping, and before a LossScaleOptimizer looks whether they are finite. get_gradients() returns
this rank's own.

Keras 2 has no accumulation; ours keeps the sums in variables beside the optimizer's, which elastic
states keep, too.

Thread contract: as Keras' optimizers, one thread at a time.
"""

import sys
from typing import Any, Dict, List, Sequence, Tuple

import tensorflow as tf

from maypole._keras.reduction import Reduction, Step
from maypole.tensorflow._gradient_sums import GradientSums

_set_class = object.__dict__["__class__"].__set__
_ATTRIBUTE = "_maypole_state"

_classes: Dict[type, type] = {}


class _State:
    """What a distributed optimizer keeps: its arguments, the positions of variables, the sums of
    gradients. It is not a part of checkpoints."""

    def __init__(self, reduction: Reduction):
        self.reduction = reduction
        self.prefix = ""
        self._positions: Dict[Any, int] = {}
        self.sums = GradientSums() if reduction.passes > 1 else None

    def step(self, variables: Sequence[Any]) -> Step:
        """The step of these variables' gradients."""
        if not self._positions:
            self.prefix = self.reduction.prefix(variables)
        for variable in variables:
            self._positions.setdefault(_key(variable), len(self._positions))
        return Step(self.reduction, self.prefix, variables,
                    [self._positions[_key(v)] for v in variables],
                    [self.reduction.is_local(v, _key) for v in variables])


def _key(variable: Any) -> Any:
    return getattr(variable, "_unique_id", None) or id(variable)


def distribute(keras: Any, optimizer: Any, reduction: Reduction) -> Any:
    """Makes the optimizer reduce gradients; returns it, or a LossScaleOptimizer around it."""
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"DistributedOptimizer: {optimizer!r} is a {type(optimizer).__name__}, "
                         "expected an optimizer of Keras")
    if _is_loss_scale(optimizer):
        if _is_distributed(optimizer.inner_optimizer):
            _undo(optimizer.inner_optimizer)
    elif keras.mixed_precision.global_policy().name == "mixed_float16":
        # compile() would put it around ours.
        if _is_distributed(optimizer):
            _undo(optimizer)
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    if not _is_distributed(optimizer):
        _set_class(optimizer, _distributed_class(type(optimizer)))
    optimizer.__dict__[_ATTRIBUTE] = _State(reduction)
    return optimizer


def _is_loss_scale(optimizer: Any) -> bool:
    return hasattr(type(optimizer), "get_scaled_loss")


def _is_distributed(optimizer: Any) -> bool:
    return type(optimizer) in _classes.values()


def _undo(optimizer: Any) -> None:
    _set_class(optimizer, type(optimizer).__mro__[1])
    optimizer.__dict__.pop(_ATTRIBUTE, None)


def _state_of(optimizer: Any) -> _State:
    state = optimizer.__dict__.get(_ATTRIBUTE)
    if state is None:
        raise RuntimeError(f"this {type(optimizer).__name__} was made from a distributed "
                           "optimizer's class; pass it to DistributedOptimizer() before it is used")
    return state


def _distributed_class(base: type) -> type:
    """The subclass of `base`; always the same one."""
    if base in _classes:
        return _classes[base]

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_loss_scale(self, sys._getframe(1))
        pairs, state = list(grads_and_vars), _state_of(self)

        def apply(grads: List[Any]) -> Any:
            return base.apply_gradients(self, list(zip(grads, [v for _, v in pairs])), *args,
                                        **kwargs)

        grads = [grad for grad, _ in pairs]
        if not state.reduction.active() and state.reduction.passes == 1:
            return apply(grads)
        step = state.step([v for _, v in pairs])
        if state.reduction.passes > 1:
            return _in_passes(self, state, step, pairs, apply)
        return apply(_reduced(self, step, grads, 1.0))

    def register_local_var(self: Any, variable: Any) -> None:
        """The gradient of this variable stays on its rank."""
        _state_of(self).reduction.local_variables.append(variable)

    _classes[base] = type(base)(base.__name__, (base,), {
        "apply_gradients": apply_gradients,
        "register_local_var": register_local_var,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__class__": property(lambda self: base),
    })
    return _classes[base]


def _refuse_loss_scale(optimizer: Any, frame: Any) -> None:
    outer = frame.f_locals.get("self")
    if outer is not optimizer and outer is not None and _is_loss_scale(outer):
        raise RuntimeError(
            "a LossScaleOptimizer is around a distributed optimizer, whose ranks could wait for "
            "each other for ever when the gradients of one overflow; put it inside: "
            "DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(optimizer))")


def _reduced(optimizer: Any, step: Step, grads: List[Any], factor: float) -> List[Any]:
    if not step.reduction.active():
        return [g if g is None or factor == 1.0 else step.reduction.gradients.scaled(g, factor)
                for g in grads]
    grads = step.reduced(grads, True, factor)
    if _is_loss_scale(optimizer) and any(step.local):
        return _finite_together(step, grads)
    return grads


def _finite_together(step: Step, grads: List[Any]) -> List[Any]:
    """The gradients, with NaN in place of those that stay on their rank, if on any rank one of
    those is not finite: a LossScaleOptimizer must do the same on all ranks."""
    own = [i for i, local in enumerate(step.local) if local and grads[i] is not None]
    if not own:
        return grads
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(grads[i])) for i in own])
    finite = step.reduction.gradients.smallest(step.reduction, finite, step.prefix + ".finite")
    out = list(grads)
    for i in own:
        out[i] = tf.where(finite, grads[i], tf.cast(float("nan"), grads[i].dtype))
    return out


def _in_passes(optimizer: Any, state: _State, step: Step, pairs: Sequence[Tuple[Any, Any]],
               apply: Any) -> Any:
    """Adds the gradients to the sums, and in the last pass steps on these."""
    kept = [grad is not None for grad, _ in pairs]
    passes, shared = state.reduction.passes, step.only(kept)
    totals = state.sums.add([None if grad is None else tf.convert_to_tensor(grad)
                             for grad, _ in pairs], [v.shape for _, v in pairs])
    count = state.sums.count_step(totals)

    def last() -> Any:
        sums = _reduced(optimizer, shared, [total for total in totals if total is not None],
                        state.reduction.over_passes / passes)
        found = iter(sums)
        applied = apply([next(found) if there else None for there in kept])
        with tf.control_dependencies([applied] if applied is not None else []):
            with tf.control_dependencies([state.sums.end()]):
                return tf.identity(optimizer.iterations)

    def not_last() -> Any:
        return tf.identity(optimizer.iterations.assign_add(1))

    return tf.cond(count >= passes, last, not_last)
