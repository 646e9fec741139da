"""Gradients of Keras' JAX backend: one operation for all of them, as a part of the compiled step.

Thread contract: as Reduction's.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import jax

import maypole.jax as hvd
from maypole._keras.gradients import BackendGradients
from maypole._keras.variables import name_of, optimizer_of
from maypole.jax import _checks, _internals
from maypole.jax.ops import reduce_checked


class Gradients(BackendGradients):
    """See BackendGradients."""

    _check: Optional[tuple[Any, tuple[str, ...]]] = None  # what the ranks compare in this reduction

    def reduce(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
               own: bool, postscale: float) -> list[Any]:
        tree = {f"{i:05d}": grad for i, grad in zip(indices, grads)}
        if self._check is None:
            results = hvd.allreduce(tree, name=prefix, op=reduction.op,
                                    compression=reduction.compression,
                                    prescale_factor=reduction.prescale, postscale_factor=postscale,
                                    process_set=reduction.process_set)
        else:
            results = reduce_checked(tree, self._check, prefix, reduction.compression, reduction.op,
                                     reduction.prescale, postscale, reduction.process_set)
        return [results[f"{i:05d}"] for i in indices]

    def smallest(self, reduction: Any, value: Any, name: str) -> Any:
        return hvd.allreduce(value.astype("int32"), name=name, op=hvd.Min,
                             process_set=reduction.process_set).astype(bool)

    def can_compare(self) -> bool:
        return True

    def compared(self, optimizer: Any, reduction: Any, variables: Sequence[Any],
                 facts_of: Callable[[Sequence[Any]], Any], name: str) -> Any:
        """See BackendGradients.compared(); compares as maypole.jax does, within the compiled step."""
        # A LossScaleOptimizer's gradients are reduced where a compiled step does not know its weights.
        if optimizer_of(optimizer) is not optimizer or optimizer.gradient_accumulation_steps:
            return contextlib.nullcontext()
        values = [variable.value for variable in variables]
        if not _internals.is_top_level() and not all(isinstance(value, jax.core.Tracer) for value in values):
            return contextlib.nullcontext()  # they are not the step's own
        trees: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for i, (variable, value) in enumerate(zip(variables, values)):
            trees[0 if variable.trainable else 1][f"{i}{name_of(variable)}"] = value
        instance = _checks.Instance("DistributedOptimizer", name, 0)
        return self._comparing(_checks.facts(instance, optimizer._iterations.value, *trees))

    @contextlib.contextmanager
    def _comparing(self, check: tuple[Any, tuple[str, ...]]) -> Iterator[None]:
        self._check = check
        try:
            yield
        finally:
            self._check = None

    def accumulated(self, optimizer: Any, reduce: Callable[[list[Any]], list[Any]],
                    grads: list[Any]) -> list[Any]:
        # Here Keras clips in every pass, and drops the results of passes without a step.
        steps = (optimizer._iterations + 1) % optimizer.gradient_accumulation_steps == 0
        return jax.lax.cond(steps, reduce, list, grads)
