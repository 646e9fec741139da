"""Maypole: distributed data-parallel training with Horovod's interface.

Import the module of your framework: `import maypole.torch as hvd`.
`maypole.run(function, np=2)` runs a function in each rank of a new job, and
raises `maypole.RankError` if one fails.
`python3 -m maypole` prints the version and the path of the library.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # Nothing is loaded before it is needed; only the library knows the version.
    if name == "__version__":
        from maypole import _native
        return _native.library().version()
    if name in ("run", "RankError"):
        from maypole import runner
        return getattr(runner, name)
    raise AttributeError(f"module 'maypole' has no attribute {name!r}")
