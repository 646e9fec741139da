"""What this package needs of JAX beyond its public interface, in one place.

Ran with jax 0.4.38, 0.5.3, 0.6.2 and 0.10.2. Thread contract: any thread; the
answers are those for the calling thread's trace.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any, Optional

import jax
from jax._src import core, dispatch, effects, sharding_impls
from jax._src.interpreters import ad, batching
from jax._src.interpreters import partial_eval as pe


def is_top_level() -> bool:
    """Whether the calling thread computes values, rather than tracing."""
    return core.trace_state_clean()


def outer_trace() -> Any:
    """The trace of the function that is being compiled (of the innermost jit, scan, cond, ...).

    Or of the outermost transformation outside jit.
    """
    trace = core.trace_ctx.trace
    while not isinstance(trace, pe.DynamicJaxprTrace):
        parent = getattr(trace, "parent_trace", None)
        if parent is None or isinstance(parent, core.EvalTrace):
            break
        trace = parent
    return trace


class _Last(threading.local):
    """The thread's last collective in a program that is being traced."""

    trace: Any = None  # a weak reference
    value: Any = None


_last = _Last()


def last_collective() -> Optional[Any]:
    """Returns a result of the last collective in the function that is being compiled; None if there is none."""
    if _last.trace is None or _last.trace() is not outer_trace():
        return None
    return jax.lax.stop_gradient(_last.value)


def note_collective(results: Sequence[Any]) -> None:
    """Records these results for last_collective(), until the next collective."""
    if not results or jax.config.jax_check_tracer_leaks:
        return
    # The smallest, because XLA keeps its memory until the next collective.
    value = min(results, key=lambda result: result.size)
    while True:
        if isinstance(value, batching.BatchTracer):
            value = value.val
        elif isinstance(value, (ad.JVPTracer,) + _LINEARIZE):
            value = value.primal
        else:
            break
    trace = outer_trace()
    if isinstance(value, pe.DynamicJaxprTracer):
        _last.trace, _last.value = weakref.ref(trace), value


_LINEARIZE = (ad.LinearizeTracer,) if hasattr(ad, "LinearizeTracer") else ()


class _Communication(effects.Effect):
    """The effect of a collective: it stays in the program even if its result is unused, as other ranks wait for it.

    It is allowed in loops, branches, derivatives and code that checkpoint
    repeats, because all ranks run the same program.
    """

    def __str__(self) -> str:
        return "Maypole"


COMMUNICATION = _Communication()
for _allowed in (effects.lowerable_effects, effects.control_flow_allowed_effects,
                 effects.custom_derivatives_allowed_effects,
                 effects.remat_allowed_effects):
    _allowed.add_type(_Communication)


def device_axes() -> set[Any]:
    """Returns the axes of pmap and shard_map around the calling code that have more than one device.

    There a custom call runs once for each device.
    """
    axes = {
        name for name, size in core.get_axis_env().axis_sizes.items() if size > 1
    }
    trace = core.trace_ctx.trace
    while trace is not None:
        axis = getattr(trace, "axis_data", None)  # of vmap
        axes.discard(getattr(axis, "name", None))
        trace = getattr(trace, "parent_trace", None)
    return axes


def programs_have_ended() -> bool:
    """Whether all programs have run whose results still exist, and the last ones of this thread with a collective."""
    tokens = list(dispatch.runtime_tokens.output_runtime_tokens.values())
    return all(_is_ready(value) for value in [*tokens, *jax.live_arrays()])


def forget_ended_programs() -> None:
    """Keeps JAX from raising the errors of these programs once more when the process ends."""
    dispatch.runtime_tokens.output_runtime_tokens.clear()


def _is_ready(value: Any) -> bool:
    try:
        return value.is_ready()
    except (AttributeError, RuntimeError):  # a token without this method; an array that was donated
        return True


def no_tangent(result: Any) -> Any:
    """Returns the tangent of a result that does not depend on the differentiated inputs."""
    typeof = getattr(jax, "typeof", None) or core.get_aval  # before jax 0.6
    return ad.Zero(typeof(result).to_tangent_aval())


def devices(context: Any, title: str) -> int:
    """Returns the number of devices among which XLA may divide the program that is being lowered.

    context: of the lowering rule. Raises ValueError, about the operation `title`,
    if each device has its own arrays (under shard_map).
    """
    place = context.module_context.axis_context
    if not isinstance(place, sharding_impls.SPMDAxisContext):
        return getattr(place, "num_devices", 1)
    if place.mesh.size > 1:
        raise ValueError(
            f"{title}: in a shard_map over {place.mesh.size} devices, expected one; "
            "reduce over the devices first (jax.lax.pmean), and call it outside")
    return 1
