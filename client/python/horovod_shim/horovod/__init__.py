"""Horovod's package names, for scripts that say `import horovod.torch as hvd`.

Everything here is Maypole's: horovod.torch.allreduce is maypole.torch.allreduce,
and so on. The package is found only where horovod_shim is in PYTHONPATH, which
`maypolerun --horovod-shim` does for its ranks. docs/horovod-compat.md says what
is the same, what is better and what is absent.
"""

from typing import Any

# The version whose interface this is; scripts compare it. Maypole's own is
# maypole.__version__.
__version__ = "0.28.1"


def run(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError: Maypole has no launcher in Python yet."""
    del args, kwargs
    raise NotImplementedError(
        "horovod.run() is not supported by Maypole yet; start the script with "
        "maypolerun --horovod-shim -np N python3 SCRIPT")
