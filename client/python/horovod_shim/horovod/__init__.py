"""Horovod's package names, for scripts that say `import horovod.torch as hvd`.

Everything here is Maypole's: horovod.torch.allreduce is maypole.torch.allreduce,
and so on. The package is found where horovod_shim is in PYTHONPATH, which
`maypolerun --horovod-shim` does for its ranks, and where the distribution
maypole-horovod is installed. docs/horovod-compat.md says what is the same, what
is better and what is absent.
"""

from horovod.runner import run

from horovod import _conflict

_conflict.check()

# The version whose interface this is; scripts compare it. Maypole's own is
# maypole.__version__.
__version__ = "0.28.1"

__all__ = ["run"]
