"""Optimizers of Keras 3 whose steps reduce the gradients first; see classes.py.

Where gradients are reduced:

    apply()             before all else, so that clipping, weight decay, moving averages and loss
                        scaling see what one process would see
    _clip_gradients()   instead, if gradients are accumulated over passes: only the sum is reduced.
                        Keras calls it in a branch that depends on the number of the step, which is
                        the same on all ranks
    LossScaleOptimizer  is reduced itself, never the optimizer within it, which Keras calls in a
                        branch that depends on the rank's own gradients: ranks would wait for each
                        other without end. Then every rank sees the same gradients, and whether
                        they are finite
    _compute_gradients(), _aggregate_gradients()
                        of Horovod, in a program's own loop; then apply() does not reduce these

Thread contract: as Keras' optimizers, one thread at a time.
"""

from collections.abc import Sequence
from typing import Any, Optional

import keras

from maypole._keras import classes, equal_start
from maypole._keras import variables as values_of
from maypole._keras.reduction import Reduction, Step

_LossScale = keras.optimizers.LossScaleOptimizer
_STEP = "_maypole_step"  # the Step whose gradients _clip_gradients() reduces


def distribute(optimizer: Any, reduction: Reduction) -> Any:
    """Makes the optimizer reduce gradients; returns it, or a LossScaleOptimizer around it.

    Raises ValueError if the optimizer is built and would need other variables.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"DistributedOptimizer: {optimizer!r} is a {type(optimizer).__name__}, "
                         "expected an optimizer of Keras 3")
    classes.turn_inside_out(_LossScale, distribute)
    equal_start.watch(keras)
    inner = _inner(optimizer)
    before = next((classes.reduction_of(each) for each in (optimizer, inner) if classes.is_distributed(each)), None)
    _accumulate(inner, reduction, before)
    if inner is optimizer and keras.config.dtype_policy().name == "mixed_float16":
        # compile() would wrap ours in one.
        if classes.is_distributed(inner):
            classes.undo(inner)
        optimizer = _LossScale(optimizer, name="loss_scale_optimizer")
    if optimizer is not inner and classes.is_distributed(inner):
        classes.undo(inner)
    classes.become(optimizer, methods, reduction)
    if inner.built:
        values_of.forget_compiled_steps(optimizer)
    return optimizer


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, _LossScale) else optimizer


def _accumulate(optimizer: Any, reduction: Reduction, before: Optional[Reduction]) -> None:
    """Makes the optimizer accumulate. before: that of an earlier call, which this one replaces."""
    passes, has = reduction.passes, optimizer.gradient_accumulation_steps
    replaces = before is not None and before.has_set_passes
    reduction.has_set_passes = replaces
    if passes == has or passes == 1 and not replaces:
        return
    if has and not replaces:
        raise ValueError(f"DistributedOptimizer: backward_passes_per_step={passes}, but the "
                         f"optimizer has gradient_accumulation_steps={has}; pass one of them")
    if optimizer.built:
        raise ValueError(f"DistributedOptimizer: backward_passes_per_step={passes} needs other variables than the "
                         f"optimizer has, which is built already, with gradient_accumulation_steps={has}; create it "
                         f"with gradient_accumulation_steps={passes if passes > 1 else None}")
    optimizer.gradient_accumulation_steps = passes if passes > 1 else None
    reduction.has_set_passes = passes > 1


def _step(optimizer: Any, count: int, variables: Optional[Sequence[Any]]) -> Step:
    """Returns the Step for `count` gradients, of these variables or of all the optimizer's."""
    reduction, inner = classes.state_of(optimizer), _inner(optimizer)
    known = inner._trainable_variables if inner.built else variables
    variables = (known if variables is None else variables) or ()
    indices: Sequence[int]
    if inner.built:
        indices = [inner._get_variable_index(v) for v in variables]
    else:
        indices = range(len(variables))
    local = [reduction.is_local(v, inner._var_key) for v in variables]
    return Step(reduction, reduction.prefix(known or ()), list(variables)[:count], indices[:count],
                local[:count])


def methods(base: type) -> dict[str, Any]:
    """Returns the methods that a distributed optimizer of the class `base` overrides."""
    own = _loss_scale_methods(base) if issubclass(base, _LossScale) else _methods(base)
    return {**own, "register_local_var": _register_local_var,
            "_aggregate_gradients": _aggregate_gradients, "_compute_gradients": _compute_gradients}


def _aggregate_gradients(self: Any, grads_and_vars: Any) -> list[Any]:
    """Returns the pairs with reduced gradients, which the next apply() does not reduce again.

    With accumulation, apply() reduces, and these gradients are this rank's.
    """
    pairs, reduction = list(grads_and_vars), classes.state_of(self)
    if not pairs or not reduction.active() or _inner(self).gradient_accumulation_steps:
        return pairs
    variables = [variable for _, variable in pairs]
    step = _step(self, len(pairs), variables)
    grads = step.completed([grad for grad, _ in pairs])
    with equal_start.checked_loop(self, step, grads):
        grads = step.reduced(grads, False)
    reduction.ahead.note([id(variable) for variable in variables], grads, reduction.gradients.place())
    return list(zip(grads, variables))


def _compute_gradients(self: Any, loss: Any, var_list: Any, grad_loss: Any = None,
                       tape: Any = None) -> list[Any]:
    """As _aggregate_gradients(), for the gradients of `loss`: a function, or a tensor that `tape` has recorded."""
    scaled = (lambda: self.scale_loss(loss())) if callable(loss) else loss
    return self._aggregate_gradients(
        classes.state_of(self).gradients.computed(scaled, var_list, grad_loss, tape))


def _reduced_ahead(reduction: Reduction, variables: Optional[Sequence[Any]]) -> Optional[list[Any]]:
    """Returns the gradients of these variables that a program's own loop has already reduced; None if it has not."""
    return None if variables is None else reduction.ahead.take([id(v) for v in variables], reduction.gradients.place())


def _register_local_var(self: Any, variable: Any) -> None:
    """Makes the gradient of this variable stay on its rank."""
    classes.state_of(self).local_variables.append(variable)


def _methods(base: Any) -> dict[str, Any]:
    """Returns the methods of an optimizer other than a LossScaleOptimizer."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        reduction = classes.state_of(self)
        if not reduction.active():
            return base.apply(self, grads, trainable_variables)
        ahead = _reduced_ahead(reduction, trainable_variables)
        step = _step(self, len(grads), trainable_variables)
        if ahead is not None:
            return base.apply(self, step.with_rest_reduced(grads, ahead), trainable_variables)
        grads = step.completed(grads)
        checked = equal_start.checked_loop(self, step, grads)
        if not self.gradient_accumulation_steps:
            with checked:
                grads = step.reduced(grads, step.owns(grads))
            return base.apply(self, grads, trainable_variables)
        # The gradients that base.apply() passes to _clip_gradients().
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
    return {"apply": apply, "_clip_gradients": _clip_gradients}


def _loss_scale_methods(base: Any) -> dict[str, Any]:

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        base.apply(self, _scaled(self, grads, trainable_variables), trainable_variables)

    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any,
                        trainable_variables: Any) -> Any:
        return base.stateless_apply(self, optimizer_variables, _scaled(self, grads, None),
                                    trainable_variables)

    def check_finite(self: Any, grads: Any) -> Any:
        finite, reduction = base.check_finite(self, grads), classes.state_of(self)
        if not reduction.has_local() or not reduction.active():
            return finite
        # Gradients that stay on their rank differ between ranks, but the scale must not.
        variables = _inner(self)._trainable_variables
        return reduction.gradients.smallest(reduction, finite,
                                            reduction.prefix(variables) + ".finite")

    return {"apply": apply, "stateless_apply": stateless_apply, "check_finite": check_finite}


def _scaled(optimizer: Any, grads: Any, variables: Any) -> list[Any]:
    """Returns the reduced gradients of a LossScaleOptimizer, in every pass.

    In every pass, because whether they are finite also decides about an accumulated pass.
    """
    grads, reduction = list(grads), classes.state_of(optimizer)
    if not reduction.active():
        return grads
    ahead = _reduced_ahead(reduction, variables)
    step = _step(optimizer, len(grads), variables)
    if ahead is not None:
        return step.with_rest_reduced(grads, ahead)
    grads = step.completed(grads)
    with equal_start.checked_loop(optimizer, step, grads):
        return step.reduced(grads, step.owns(grads), step.reduction.over_passes)
