"""Optimizers of Keras 2 (tf.keras up to TensorFlow 2.15, and tf_keras) that reduce gradients first; see classes.py.

Gradients are reduced in apply_gradients(), which minimize() and fit() call: before clipping, and
before a LossScaleOptimizer checks whether they are finite. get_gradients() returns this rank's
own. _compute_gradients() and _aggregate_gradients(), which Horovod has for a program's own loop,
return reduced gradients, which the next apply_gradients() does not reduce again.

Keras 2 has no accumulation; ours keeps the sums in variables beside the optimizer's, which elastic states also keep.

Thread contract: as Keras' optimizers, one thread at a time.
"""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from maypole._keras import classes, equal_start
from maypole._keras import variables as values_of
from maypole._keras.reduction import Reduction, Step
from maypole.tensorflow._gradient_sums import GradientSums
from maypole.tensorflow.gradient_aggregation import variable_of


class _State:
    """What a distributed optimizer keeps: its arguments, the positions of variables, the sums of gradients.

    Checkpoints do not contain it.
    """

    def __init__(self, reduction: Reduction):
        self.reduction = reduction
        self.prefix = ""
        self._positions: dict[Any, int] = {}
        self.sums = GradientSums(_new_variable) if reduction.passes > 1 else None
        self.applying = False  # inside apply_gradients() of the optimizer's own class

    def __copy__(self) -> "_State":
        return _State(copy.copy(self.reduction))

    def __reduce__(self) -> Any:
        return _State, (self.reduction,)

    def step(self, variables: Sequence[Any]) -> Step:
        """Returns the Step for these variables' gradients."""
        if not self._positions:
            self.prefix = self.reduction.prefix(variables)
        for variable in variables:
            self._positions.setdefault(_key(variable), len(self._positions))
        return Step(self.reduction, self.prefix, variables,
                    [self._positions[_key(v)] for v in variables],
                    [self.reduction.is_local(v, _key) for v in variables])


def _new_variable(name: str, shape: Any, dtype: Any) -> Any:
    """Makes a variable for sums of gradients, also under tf.compat.v1.disable_eager_execution()."""
    return variable_of("maypole", True, name, shape, dtype)


def _key(variable: Any) -> Any:
    return getattr(variable, "_unique_id", None) or id(variable)


def distribute(keras: Any, optimizer: Any, reduction: Reduction) -> Any:
    """Makes the optimizer reduce gradients; returns it, or a LossScaleOptimizer around it."""
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"DistributedOptimizer: {optimizer!r} is a {type(optimizer).__name__}, "
                         "expected an optimizer of Keras")
    equal_start.watch(keras)
    for kind in _kinds_of(keras.mixed_precision.LossScaleOptimizer):
        classes.turn_inside_out(kind, _take_over)
    if _is_loss_scale(optimizer):
        if classes.is_distributed(optimizer.inner_optimizer):
            classes.undo(optimizer.inner_optimizer)
    elif keras.mixed_precision.global_policy().name == "mixed_float16":
        # compile() would wrap ours in one.
        if classes.is_distributed(optimizer):
            classes.undo(optimizer)
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    classes.become(optimizer, methods, _State(reduction))
    values_of.forget_compiled_steps(optimizer)
    return optimizer


def _take_over(outer: Any, inner: _State) -> None:
    """Makes a LossScaleOptimizer distributed, as the wrapped optimizer was."""
    classes.become(outer, methods, _State(inner.reduction))


def _kinds_of(base: type) -> Iterator[type]:
    """Yields the class and its subclasses."""
    yield base
    # Not base.__subclasses__, which the metaclass may override.
    subclasses: list[type] = type.__subclasses__(base)
    for kind in subclasses:
        yield from _kinds_of(kind)


def _is_loss_scale(optimizer: Any) -> bool:
    return hasattr(type(optimizer), "get_scaled_loss")


def methods(base: Any) -> dict[str, Any]:
    """Returns the methods that a distributed optimizer of the class `base` overrides."""

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs, state = list(grads_and_vars), classes.state_of(self)
        reduction, variables = state.reduction, [variable for _, variable in pairs]

        def apply(grads: list[Any]) -> Any:
            state.applying = True
            try:
                return base.apply_gradients(self, list(zip(grads, variables)), *args, **kwargs)
            finally:
                state.applying = False

        grads = [grad for grad, _ in pairs]
        if reduction.passes == 1 and not reduction.active():
            return apply(grads)
        step = state.step(variables)
        ahead = reduction.ahead.take([_key(v) for v in variables], reduction.gradients.place())
        if ahead is not None:
            return apply(step.with_rest_reduced(grads, ahead))
        if reduction.active():
            grads = step.completed(grads)
            checked = equal_start.checked_loop(self, step, grads)
        else:
            checked = contextlib.nullcontext()
        if reduction.passes > 1:
            return _in_passes(self, state, step, grads, apply)
        with checked:
            grads = _reduced(self, step, grads, 1.0)
        return apply(grads)

    def _aggregate_gradients(self: Any, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """As keras3._aggregate_gradients(). Keras itself also calls it, for replicas."""
        state, pairs = classes.state_of(self), list(grads_and_vars)
        if state.applying:
            return base._aggregate_gradients(self, pairs)
        reduction = state.reduction
        if not pairs or not reduction.active() or reduction.passes > 1:
            return pairs
        variables = [variable for _, variable in pairs]
        step = state.step(variables)
        grads = step.completed([grad for grad, _ in pairs])
        with equal_start.checked_loop(self, step, grads):
            grads = _reduced(self, step, grads, 1.0)
        reduction.ahead.note([_key(v) for v in variables], grads, reduction.gradients.place())
        return list(zip(grads, variables))

    def _compute_gradients(self: Any, loss: Any, var_list: Any, grad_loss: Any = None,
                           tape: Any = None) -> list[tuple[Any, Any]]:
        """As keras3._compute_gradients()."""
        if hasattr(base, "_compute_gradients"):
            return _aggregate_gradients(
                self, base._compute_gradients(self, loss, var_list, grad_loss, tape))
        if grad_loss is not None:
            raise ValueError("_compute_gradients(grad_loss=...): this optimizer's "
                             "compute_gradients() has no such argument; multiply the loss")
        return _aggregate_gradients(self, base.compute_gradients(self, loss, var_list, tape))

    def register_local_var(self: Any, variable: Any) -> None:
        """Makes the gradient of this variable stay on its rank."""
        classes.state_of(self).reduction.local_variables.append(variable)

    def get_updates(self: Any, loss: Any, params: Any) -> Any:
        """Called by Keras under disable_eager_execution()."""
        if hasattr(base, "get_updates"):
            return base.get_updates(self, loss, params)
        raise RuntimeError(
            f"DistributedOptimizer: without eager execution, Keras trains with the optimizers of "
            f"keras.optimizers.legacy only; expected legacy.{base.__name__}")

    return {"apply_gradients": apply_gradients, "get_updates": get_updates,
            "_aggregate_gradients": _aggregate_gradients, "_compute_gradients": _compute_gradients,
            "register_local_var": register_local_var}


def _reduced(optimizer: Any, step: Step, grads: list[Any], factor: float) -> list[Any]:
    if not step.reduction.active():
        return [g if g is None or factor == 1.0 else step.reduction.gradients.scaled(g, factor)
                for g in grads]
    grads = step.reduced(grads, True, factor)
    if _is_loss_scale(optimizer) and any(step.local):
        return _finite_together(step, grads)
    return grads


def _finite_together(step: Step, grads: list[Any]) -> list[Any]:
    """Returns the gradients; if a local one is not finite on some rank, with NaN in place of all local ones.

    Local gradients are those that stay on their rank. A LossScaleOptimizer must decide the same on all ranks.
    """
    own = [i for i, local in enumerate(step.local) if local and grads[i] is not None]
    if not own:
        return grads
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(grads[i])) for i in own])
    finite = step.reduction.gradients.smallest(step.reduction, finite, step.prefix + ".finite")
    out = list(grads)
    for i in own:
        out[i] = tf.where(finite, grads[i], tf.cast(float("nan"), grads[i].dtype))
    return out


def _in_passes(optimizer: Any, state: _State, step: Step, grads: Sequence[Any],
               apply: Any) -> Any:
    """Adds the gradients to the sums, and in the last pass steps with the sums."""
    kept = [grad is not None for grad in grads]
    sums, passes, shared = state.sums, state.reduction.passes, step.only(kept)
    assert sums is not None  # there are several passes
    totals = sums.add([None if grad is None else tf.convert_to_tensor(grad)
                             for grad in grads], [v.shape for v in step.variables])
    count = sums.count_step(totals)

    def last() -> Any:
        found = iter(_reduced(optimizer, shared, [total for total in totals if total is not None],
                              state.reduction.over_passes / passes))
        applied = apply([next(found) if there else None for there in kept])
        with tf.control_dependencies([applied] if applied is not None else []):
            with tf.control_dependencies([sums.end()]):
                return tf.identity(optimizer.iterations)

    def not_last() -> Any:
        return tf.identity(optimizer.iterations.assign_add(1))

    return tf.cond(count >= passes, last, not_last)
