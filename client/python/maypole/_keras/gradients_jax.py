"""Gradients of Keras' JAX backend: one operation for all of them, as a part of the compiled step.

Thread contract: as Reduction's.
"""

from collections.abc import Sequence
from typing import Any, Callable

import jax

import maypole.jax as hvd
from maypole._keras.gradients import BackendGradients


class Gradients(BackendGradients):
    """See BackendGradients."""

    def reduce(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
               own: bool, postscale: float) -> list[Any]:
        tree = {f"{i:05d}": grad for i, grad in zip(indices, grads)}
        results = hvd.allreduce(tree, name=prefix, op=reduction.op,
                                compression=reduction.compression,
                                prescale_factor=reduction.prescale, postscale_factor=postscale,
                                process_set=reduction.process_set)
        return [results[f"{i:05d}"] for i in indices]

    def smallest(self, reduction: Any, value: Any, name: str) -> Any:
        return hvd.allreduce(value.astype("int32"), name=name, op=hvd.Min,
                             process_set=reduction.process_set).astype(bool)

    def accumulated(self, optimizer: Any, reduce: Callable[[list[Any]], list[Any]],
                    grads: list[Any]) -> list[Any]:
        # Here Keras clips in every pass, and drops the results of passes without a step.
        steps = (optimizer._iterations + 1) % optimizer.gradient_accumulation_steps == 0
        return jax.lax.cond(steps, reduce, list, grads)
