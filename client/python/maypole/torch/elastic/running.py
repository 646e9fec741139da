"""run(): maypole.common.elastic's, for functions that may use torch.distributed's backend "maypole" as well.

A process group ends with its membership epoch. So the function makes it, and what depends on it:

    @hvd.elastic.run
    def train(state):
        dist.init_process_group("maypole", init_method="maypole://")
        model = DistributedDataParallel(state.model)
        ...

Thread contract: one thread trains.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch.distributed as dist

from maypole.common import basics, elastic
from maypole.common.exceptions import HorovodInternalError, end_of_epoch


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and takes in new ones.

    See maypole.common.elastic. A RuntimeError of torch (DDP's backward(), DistBackendError) after a rank was lost
    becomes that loss's HorovodInternalError, also if the program has raised another error from it. Each epoch begins
    without torch.distributed's default group.

    Args:
        func: func(state, ...), which trains.

    Raises (when called):
        ValueError: in an elastic job, torch.distributed's default group was made with the backend "maypole" before.
    """
    resilient = elastic.run_converting(func, _internal_error, _start_epoch)

    @functools.wraps(func)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if basics.is_elastic() and _has_process_group():
            raise ValueError(
                "elastic.run: torch.distributed's default group ends with each membership epoch, so the decorated "
                "function must make it: call dist.init_process_group('maypole', init_method='maypole://') in it, not "
                "before (and dist.destroy_process_group() at its end)")
        return resilient(*args, **kwargs)

    return checked


def _internal_error(error: Exception) -> Optional[HorovodInternalError]:
    # DDP's reducer passes on only the text of an error, so what this RuntimeError says of itself proves nothing.
    # But after the end of an epoch no operation of it succeeds.
    return end_of_epoch() if any(isinstance(each, RuntimeError) for each in _chain(error)) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, those from which it was raised, or while which were handled, theirs, and so on."""
    seen: set[int] = set()
    left: list[Optional[BaseException]] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            left += [each.__cause__, each.__context__]
            yield each


def _has_process_group() -> bool:
    world = sys.modules.get("maypole.torch.distributed._world")
    return world is not None and world.current is not None and dist.is_initialized()


def _start_epoch() -> None:
    if _has_process_group():
        dist.destroy_process_group()
    elif "maypole.torch.distributed" in sys.modules and not dist.is_initialized():
        # torch names groups by their number, and has counted one that could not be made; new processes have not.
        dist.distributed_c10d._world.group_count = 0
    elastic.reset()
