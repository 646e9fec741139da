"""Distributed training with Optax: reduces gradients before the optimizer uses them.

    optimizer = hvd.DistributedOptimizer(optax.adam(1e-3))
    state = optimizer.init(params)
    updates, state = optimizer.update(gradients, state, params)

Optax is imported when one of these functions is called.

Thread contract: that of the transformation's functions, which are pure.
"""

from typing import Any, Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp

from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.common.training_arguments import check_passes, check_predivision
from maypole.jax import _checks
from maypole.jax.compression import Compression, Compressor
from maypole.jax.ops import reduce_checked


def reduce_gradients(name: Optional[str] = None,
                     compression: type[Compressor] = Compression.none,
                     op: ReduceOp = Average,
                     gradient_predivide_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns an Optax transformation without state: an allreduce of the gradients.

    All gradients are one pytree, so one custom call reduces them. For use in optax.chain(), before
    transformations that must see the global gradient (for example clipping by global norm).

    Args:
        name: a part of the operations' names.
        compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
        op: Average (default) or Sum.
        gradient_predivide_factor: with Average, gradients are divided by it before the sum, and the sum by
            size() / factor.
        process_set: the ranks whose gradients are reduced.
    """
    optax = _optax()
    instance = _checks.new_instance("reduce_gradients", name)
    reduce = _reduction(name, compression, op, gradient_predivide_factor, process_set)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return reduce(updates, _checks.of_instance(instance)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(),
                                        update)


def _reduction(name: Optional[str], compression: type[Compressor], op: ReduceOp, predivision: float,
               process_set: ProcessSet) -> Callable[[Any, Any], Any]:
    """Returns a function of the gradients and of what the ranks compare."""
    check_predivision(op, predivision)
    return lambda updates, check: reduce_checked(updates, check, name, compression, op, 1.0 / predivision, predivision,
                                                 process_set)


def DistributedOptimizer(
        optimizer: Any,
        name: Optional[str] = None,
        compression: type[Compressor] = Compression.none,
        backward_passes_per_step: int = 1,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set) -> Any:
    """Returns an Optax optimizer that uses the reduced gradients of all ranks.

    Args:
        optimizer: the optimizer of this rank.
        name: a part of the operations' names.
        compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
        backward_passes_per_step: with n > 1 the gradients of n calls of update() are added up
            (average_aggregated_gradients: and divided by n), and reduced and used in the n-th; the updates of
            the others are zeros. All ranks must call update() the same number of times.
        op: Average (default) or Sum.
        gradient_predivide_factor: with Average, gradients are divided by it before and multiplied by it after
            the sum.
        average_aggregated_gradients: divide the sum over passes by their number.
        process_set: the ranks whose gradients are reduced.

    Raises:
        ValueError: for wrong arguments.
        ImportError: without Optax.
    """
    check_passes(backward_passes_per_step)
    optax = _optax()
    reduced = _reduced(optax, optimizer, _checks.new_instance("DistributedOptimizer", name),
                       _reduction(name, compression, op, gradient_predivide_factor, process_set))
    if backward_passes_per_step == 1:
        return reduced
    divisor = backward_passes_per_step if average_aggregated_gradients else 1
    return _accumulated(optax, optimizer, reduced, backward_passes_per_step,
                        divisor)


class ReductionState(NamedTuple):
    """The first part of the state of a DistributedOptimizer; the second one is that of the optimizer.

    steps: how many steps it has made, which the ranks compare.
    """

    steps: Any


def _reduced(optax: Any, optimizer: Any, instance: _checks.Instance, reduce: Callable[[Any, Any], Any]) -> Any:
    """Returns the optimizer on reduced gradients; the ranks compare weights and state before it uses them."""
    plain = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        return ReductionState(jnp.zeros((), jnp.int32)), plain.init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        steps, inner = state[0].steps, state[1]
        updates = reduce(updates, _checks.facts(instance, steps, params, inner))
        updates, inner = plain.update(updates, inner, params, **extra)
        return updates, (ReductionState(steps + 1), inner)

    return optax.GradientTransformationExtraArgs(init, update)


class AccumulationState(NamedTuple):
    """The state of an optimizer that accumulates.

    passes: calls of update() since the last step. sums: the sums of their gradients, in
    the parameters' dtypes, or in float32 where these are shorter. inner: the
    optimizer's state.
    """

    passes: Any
    sums: Any
    inner: Any


def _accumulated(optax: Any, optimizer: Any, reduced: Any, passes: int,
                 divisor: int) -> Any:
    # Not optax.MultiSteps: some of its versions call the inner update, and so the allreduce, in each pass.
    plain = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> AccumulationState:
        sums = jax.tree_util.tree_map(
            lambda p: jnp.zeros(jnp.shape(p), _dtype_of_sum(p)), params)
        return AccumulationState(jnp.zeros((), jnp.int32), sums,
                                 reduced.init(params))

    def update(updates: Any, state: AccumulationState, params: Any = None,
               **extra: Any) -> Any:
        # Keeps the state's dtypes, whatever dtypes the gradients have.
        sums = jax.tree_util.tree_map(
            lambda total, g: total + jnp.asarray(g, total.dtype), state.sums,
            updates)

        def step() -> Any:
            gradients = jax.tree_util.tree_map(
                lambda total, g: jnp.asarray(total / divisor, jnp.result_type(g)),
                sums, updates)
            new, inner = reduced.update(gradients, state.inner, params, **extra)
            return new, AccumulationState(jnp.zeros((), jnp.int32),
                                          _zeros(sums), inner)

        # Both branches return the same dtypes: those of the optimizer's results,
        # which a reduction does not change.
        new_like, own_like = jax.eval_shape(
            lambda g: plain.update(g, state.inner[1], params, **extra), updates)

        def wait() -> Any:
            return (jax.tree_util.tree_map(
                lambda like: jnp.zeros(like.shape, like.dtype), new_like),
                    AccumulationState(state.passes + 1, sums,
                                      (state.inner[0], jax.tree_util.tree_map(
                                          lambda own, like: jnp.asarray(own, like.dtype),
                                          state.inner[1], own_like))))

        # The number of passes is the same on all ranks.
        return jax.lax.cond(state.passes + 1 >= passes, step, wait)

    return optax.GradientTransformationExtraArgs(init, update)


def _dtype_of_sum(parameter: Any) -> Any:
    dtype = jnp.result_type(parameter)
    short = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.float32 if short else dtype


def _zeros(tree: Any) -> Any:
    return jax.tree_util.tree_map(jnp.zeros_like, tree)


def _optax() -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError("maypole.jax's optimizers need Optax: pip install "
                          "optax") from error
    return optax
