"""broadcast_parameters.

Thread contract: one thread at a time, because the names are fixed.
"""

from collections.abc import Iterable
from typing import Any, Optional

import mxnet as mx
from mxnet.gluon.parameter import Parameter

from maypole.mxnet.ops import broadcast_


def broadcast_parameters(params: dict[str, Any], root_rank: int = 0,
                         prefix: Optional[str] = None) -> None:
    """Overwrites `params` on all ranks with those of rank `root_rank`, in place.

    Args:
        params: what Block.collect_params() or Module.get_params() returns: a dict of Parameters or NDArrays. A
            Parameter whose initialization is deferred (its shape is not known yet) is broadcast when it is
            initialized, in the first forward pass, which all ranks must make.
        root_rank: a rank of the job (not an index in the process set), in the set.
        prefix: the prefix of the names by which ranks match operations; needed if several threads call this at once.

    Raises:
        ValueError: `params` is not a dict, or contains other values.
    """
    if not hasattr(params, "items"):
        raise ValueError("broadcast_parameters: expected a dict of Parameters "
                         f"or NDArrays, got {type(params).__name__}")
    prefix = f"broadcast_parameters.{prefix or ''}"
    pushed = []
    for key, value in sorted(params.items()):
        name = prefix + str(key)
        if isinstance(value, mx.nd.NDArray):
            pushed.append(broadcast_(value, root_rank, name))
        elif not isinstance(value, Parameter):
            raise ValueError(f"broadcast_parameters: {key!r} is a "
                             f"{type(value).__name__}, expected a Parameter or "
                             "NDArray")
        elif value._deferred_init:
            _broadcast_when_initialized(value, root_rank, name)
        else:
            pushed.extend(_broadcast(value, root_rank, name))
    for array in pushed:  # so that errors are raised here
        array.wait_to_read()


def _broadcast(parameter: Parameter, root_rank: int,
               name: str) -> Iterable[mx.nd.NDArray]:
    """Broadcasts a parameter on all its contexts."""
    first, *others = parameter.list_data()
    broadcast_(first, root_rank, name)
    for other in others:
        first.copyto(other)
    return [first, *others]


def _broadcast_when_initialized(parameter: Parameter, root_rank: int,
                                name: str) -> None:
    initialize = parameter._init_impl

    def initialize_and_broadcast(*args: Any, **kwargs: Any) -> None:
        # Only once: a later reset_ctx(), perhaps on one rank only, must not broadcast.
        parameter._init_impl = initialize
        initialize(*args, **kwargs)
        _broadcast(parameter, root_rank, name)

    parameter._init_impl = initialize_and_broadcast
