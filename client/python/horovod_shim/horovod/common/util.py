"""Small functions that scripts and other packages take from Horovod."""

import contextlib
import importlib.util
import os
from typing import Any, Iterator, List, Optional, Sequence

from maypole.common.basics import (ccl_built, cuda_built, ddl_built,
                                   gloo_built, mpi_built, nccl_built,
                                   rocm_built)

_FRAMEWORKS = ("torch", "tensorflow", "keras", "mxnet")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether horovod.<ext_base_name> can be imported: "torch", if there is
    torch."""
    del verbose
    return (ext_base_name in _FRAMEWORKS
            and importlib.util.find_spec(ext_base_name) is not None)


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "",
                    *args: str) -> None:
    """Raises ImportError unless `ext_name` is horovod.torch or the like."""
    del ext_env_var, pkg_path, args
    if ext_name not in (f"horovod.{name}" for name in _FRAMEWORKS):
        raise ImportError(f"{ext_name} is not supported by Maypole; these are: "
                          f"{', '.join(_FRAMEWORKS)}")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    if ext_base_name == "mxnet":
        import mxnet
        return mxnet.context.num_gpus() > 0
    if ext_base_name == "torch":
        import torch
        return torch.cuda.is_available()
    import tensorflow
    return bool(tensorflow.config.list_physical_devices("GPU"))


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of two. (Maypole's Adasum takes any number.)"""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> List[Sequence[Any]]:
    """Cuts a list into n parts; the first ones are longer by at most one."""
    shorter, longer_ones = divmod(len(l), n)
    ends = [0]
    for i in range(n):
        ends.append(ends[-1] + shorter + (i < longer_ones))
    return [l[a:b] for a, b in zip(ends, ends[1:])]


def is_iterable(x: Any) -> bool:
    """Whether iter(x) works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


@contextlib.contextmanager
def env(**kwargs: Optional[str]) -> Iterator[None]:
    """Sets environment variables within the context; None: leaves one alone."""
    wanted = {name: value for name, value in kwargs.items()
              if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
