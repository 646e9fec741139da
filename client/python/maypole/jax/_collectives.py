"""Collectives on the leaves of a pytree, with derivatives and batches.

    apply(plan, leaves)      what the public functions call
      run(plan, leaves)      a primitive of JAX, which runs
        _eager                 outside traced functions
        _ffi                   in them: one custom call for all leaves
        io_callback            in them, if they run on several devices, or JAX's
                               default device is no CPU
      _tangent               a second primitive, for derivatives

Gradients are as in maypole.torch: a reduction's gradient is reduced in the same
way; that of allgather and broadcast is averaged. Operations of the backward pass
have the name of the forward one with `.backward` appended. In forward mode
(jax.jvp) the tangents go through the same collective, named `.tangent`; for Adasum,
Min, Max and Product, which are not linear, there is no forward mode. Leaves that are
not of a floating dtype have no derivative.

vmap: the batch becomes a dimension of the tensor, so one operation serves the
whole batch; the result is that of one operation for each element.

Thread contract: that of JAX's tracing: any thread.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from maypole import _native
from maypole.common import basics, collectives
from maypole.common.constants import OP_NAMES, Adasum, Average, Max, Min, Product, Sum
from maypole.jax import _eager, _ffi, _internals
from maypole.jax._plans import KIND_NAMES, Plan

Leaves = tuple[Any, ...]

_ROW_KINDS = (_native.ALLGATHER, _native.ALLTOALL, _native.REDUCESCATTER)


_collective = Primitive("maypole_collective")
_collective.multiple_results = True


def run(plan: Plan, leaves: Leaves, after: Leaves = ()) -> Leaves:
    """The collective, without derivatives.

    after: none or one array, which the program must compute before the collective.
    """
    return tuple(_collective.bind(*leaves, *after, plan=plan)) if leaves else ()


@_collective.def_impl
def _on_values(*operands: Any, plan: Plan) -> list[Any]:
    return _eager.run(plan, operands[:len(plan.names)])


@_collective.def_effectful_abstract_eval
def _shapes(*operands: Any, plan: Plan) -> tuple[list[Any], Any]:
    shapes = [
        ShapedArray(_result_shape(plan, i, leaf.shape), leaf.dtype)
        for i, leaf in enumerate(operands[:len(plan.names)])
    ]
    return shapes, {_internals.COMMUNICATION}


def _on_host(*operands: Any, plan: Plan) -> Leaves:
    """The collective in a program that does not run on one CPU device."""
    shapes = tuple(
        jax.ShapeDtypeStruct(_result_shape(plan, i, leaf.shape), leaf.dtype)
        for i, leaf in enumerate(operands[:len(plan.names)]))

    def on_host(*values: Any) -> Leaves:
        return tuple(np.asarray(r) for r in _on_values(*values, plan=plan))

    return tuple(io_callback(on_host, shapes, *operands))


_lower_by_callback = mlir.lower_fun(_on_host, multiple_results=True)


def _lower(context: Any, *operands: Any, plan: Plan) -> Any:
    title = collectives.title(KIND_NAMES[plan.kind], plan.names[0])
    # XLA cannot run an operation of ours on only one of several devices.
    if _internals.devices(context, title) > 1 or jax.default_backend() != "cpu":
        return _lower_by_callback(context, *operands, plan=plan)
    return _ffi.lower(context, operands, plan)


mlir.register_lowering(_collective, _lower)


def _batched(primitive: Primitive, operands: Leaves, batched: Sequence[Any],
             plan: Plan) -> tuple[Leaves, Sequence[Any]]:
    """Batches of operations: a batch is an additional dimension of the operation's array.

    It is the second dimension if the first one has rows that go to other ranks, otherwise the first one.
    """
    if plan.op == Adasum:
        raise NotImplementedError(
            f"{collectives.title('allreduce', plan.names[0])}: op=Adasum in "
            "jax.vmap: a batch would be one tensor, with the same coefficients; "
            "call it outside vmap")
    to, count = 1 if plan.kind in _ROW_KINDS else 0, len(plan.names)
    moved = tuple(
        leaf if at is None else jnp.moveaxis(leaf, at, to)
        for leaf, at in zip(operands[:count], batched))
    results = primitive.bind(*moved, *operands[count:], plan=plan)
    return results, [at if at is None else to for at in batched[:count]]


batching.primitive_batchers[_collective] = functools.partial(_batched, _collective)


def _result_shape(plan: Plan, i: int, shape: Sequence[int]) -> tuple[int, ...]:
    if plan.kind == _native.ALLGATHER:
        rows = plan.rows[i] if plan.rows else shape[0] * len(
            collectives.ranks_of(plan.process_set))
        return (rows,) + tuple(shape[1:])
    if plan.kind == _native.REDUCESCATTER:
        rows = collectives.scattered_rows(shape[0], plan.process_set)
        return (rows,) + tuple(shape[1:])
    return tuple(shape)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class _Static:
    """A residual of the forward pass that is not an array."""

    value: Any

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, _: Any) -> "_Static":
        return cls(value)


def apply(plan: Plan, leaves: Leaves) -> Leaves:
    """The collective, differentiable in the leaves.

    In a program it begins after the function's previous collective has ended:
    otherwise a rank whose program differs slightly, perhaps only in what it
    returns, could run two independent collectives in another order.
    """
    if not leaves or _internals.is_top_level():
        return run(plan, leaves)
    last = _internals.last_collective()
    results = run(plan, leaves, () if last is None else (last,))
    _internals.note_collective(results)
    return results


def _push(primitive: Primitive, primals: Leaves, tangents: Leaves, plan: Plan,
          tangents_plan: Plan) -> tuple[list[Any], list[Any]]:
    """Returns the results of the primitive, and their tangents."""
    results = primitive.bind(*primals, plan=plan)
    there = [i for i in range(len(plan.names))
             if not isinstance(tangents[i], ad.Zero)]
    moved: list[Any] = [_internals.no_tangent(result) for result in results]
    if there:
        if plan.kind == _native.ALLGATHER:  # outside programs, the ranks' rows may differ
            tangents_plan = dataclasses.replace(
                tangents_plan, rows=tuple(result.shape[0] for result in results))
        found = _tangent.bind(*(tangents[i] for i in there), *_after(results),
                              plan=_of(tangents_plan, there))
        _internals.note_collective(found)
        for i, tangent in zip(there, found):
            moved[i] = tangent
    return results, moved


ad.primitive_jvps[_collective] = lambda primals, tangents, *, plan: _push(
    _collective, primals, tangents, plan, plan)


def _after(results: Sequence[Any]) -> Leaves:
    """Returns an operand for a later operation, which makes it begin only after these results.

    It is the smallest of them, because a derivative may keep it.
    """
    smallest = min(results, key=lambda result: result.size)
    if not isinstance(smallest, jax.core.Tracer):
        return ()
    return (jnp.ravel(smallest)[:1],)


def _of(plan: Plan, members: Sequence[int]) -> Plan:
    """Returns the plan for only these leaves."""
    return dataclasses.replace(
        plan, names=tuple(plan.names[i] for i in members),
        rows=tuple(plan.rows[i] for i in members) if plan.rows else (), check=())


# The collective on its leaves' tangents. It is linear, and its transpose is the
# collective on cotangents. In reverse mode it is only transposed, so there it
# also stands for Min.
_tangent = Primitive("maypole_tangent")
_tangent.multiple_results = True


def _forward_plan(plan: Plan) -> Plan:
    if plan.op in (Adasum, Min, Max, Product) and plan.kind == _native.ALLREDUCE:
        raise NotImplementedError(
            f"{collectives.title('allreduce', plan.names[0])}: op="
            f"{OP_NAMES[plan.op]} has no derivative in forward mode (jax.jvp), "
            "because it is not linear; use jax.grad, or op=Sum or Average")
    return plan.named(".tangent")


@_tangent.def_impl
def _tangent_on_values(*operands: Any, plan: Plan) -> list[Any]:
    return _on_values(*operands, plan=_forward_plan(plan))


@_tangent.def_abstract_eval
def _tangent_shapes(*operands: Any, plan: Plan) -> list[Any]:
    return _shapes(*operands, plan=plan)[0]


def _lower_tangent(context: Any, *operands: Any, plan: Plan) -> Any:
    return _lower(context, *operands, plan=_forward_plan(plan))


mlir.register_lowering(_tangent, _lower_tangent)


batching.primitive_batchers[_tangent] = functools.partial(_batched, _tangent)


ad.primitive_jvps[_tangent] = lambda primals, tangents, *, plan: _push(
    _tangent, primals, tangents, plan, plan.named(".tangent"))


def _pull_back(cotangents: Sequence[Any], *operands: Any, plan: Plan) -> list[Any]:
    count = len(plan.names)
    shapes = [tuple(tangent.aval.shape) for tangent in operands[:count]]
    found = _GRADIENTS[plan.kind](
        dataclasses.replace(plan.named(".backward"), rows=()),
        tuple(ad.instantiate_zeros(cotangent) for cotangent in cotangents), shapes)
    return [*found, *(None for _ in operands[count:])]


ad.primitive_transposes[_tangent] = _pull_back


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def apply_splits(plan: Plan, splits: tuple[int, ...],
                 leaves: Leaves) -> tuple[Leaves, Any]:
    """An alltoall outside traced functions that sends each rank its rows; returns also how many rows came from each."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise ValueError(
            f"{collectives.title('alltoall', plan.names[0])}: splits in a "
            "traced function, whose shapes are fixed; leave splits out, or call "
            "alltoall outside jit and vmap")
    results = _eager.run(plan, leaves, splits)
    return tuple(rows for rows, _ in results), jnp.asarray(results[0][1])


def _splits_forward(plan: Plan, splits: tuple[int, ...],
                    leaves: Leaves) -> tuple[Any, _Static]:
    results = apply_splits(plan, splits, leaves)
    return results, _Static(tuple(results[1].tolist()))


def _splits_backward(plan: Plan, splits: tuple[int, ...], received: _Static,
                     cotangents: Any) -> tuple[Leaves]:
    gradients, _ = apply_splits(plan.named(".backward"), received.value,
                                cotangents[0])
    return (gradients,)


apply_splits.defvjp(_splits_forward, _splits_backward)


def _as(plan: Plan, kind: int, op: int = 0) -> Plan:
    """Another collective in the place of `plan`."""
    return Plan(kind, plan.names, op, process_set=plan.process_set)


def _same_gradient(plan: Plan, cotangents: Leaves, _: Any) -> Leaves:
    return apply(plan, cotangents)


def _broadcast_gradient(plan: Plan, cotangents: Leaves, _: Any) -> Leaves:
    means = apply(_as(plan, _native.ALLREDUCE, Average), cotangents)
    if basics.rank() == plan.root:
        return means
    return tuple(jnp.zeros_like(mean) for mean in means)


def _allgather_gradient(plan: Plan, cotangents: Leaves,
                        shapes: list[tuple[int, ...]]) -> Leaves:
    means = apply(_as(plan, _native.ALLREDUCE, Average), cotangents)
    firsts = _first_rows(plan, [shape[0] for shape in shapes])
    return tuple(mean[first:first + shape[0]]
                 for mean, first, shape in zip(means, firsts, shapes))


def _first_rows(plan: Plan, rows: list[int]) -> list[int]:
    """Where this rank's rows begin in each gathered array."""
    ranks = collectives.ranks_of(plan.process_set)
    if basics.rank() not in ranks:  # the forward operation is an error
        return [0 for _ in rows]
    position = ranks.index(basics.rank())
    if not _internals.is_top_level():  # there all ranks have as many rows
        return [position * count for count in rows]
    name = plan.names[0] + ".rows" if plan.names else ""
    (counts,) = _eager.run(
        Plan(_native.ALLGATHER, (name,), process_set=plan.process_set),
        [np.array([rows], np.int32)])
    return np.asarray(counts)[:position].sum(axis=0, dtype=np.int64).tolist()


def _reducescatter_gradient(plan: Plan, cotangents: Leaves,
                            shapes: list[tuple[int, ...]]) -> Leaves:
    ranks = len(collectives.ranks_of(plan.process_set))
    # As for an allreduce with the same reduction: a sum counts n times.
    factor = plan.prescale * plan.postscale * (ranks if plan.op == Sum else 1)
    if factor != 1.0:
        cotangents = tuple(c * jnp.asarray(factor, c.dtype) for c in cotangents)
    gather = dataclasses.replace(_as(plan, _native.ALLGATHER),
                                 rows=tuple(shape[0] for shape in shapes))
    return apply(gather, cotangents)


_GRADIENTS = {
    _native.ALLREDUCE: _same_gradient,
    _native.ALLGATHER: _allgather_gradient,
    _native.BROADCAST: _broadcast_gradient,
    _native.ALLTOALL: _same_gradient,
    _native.REDUCESCATTER: _reducescatter_gradient,
}
