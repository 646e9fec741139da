"""Maypole: distributed data-parallel training with Horovod's interface.

Import the module of your framework: `import maypole.torch as hvd`.
`python3 -m maypole` prints the version and the path of the library.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # Only the library knows the version, and is not loaded before that.
    if name == "__version__":
        from maypole import _native
        return _native.library().version()
    raise AttributeError(f"module 'maypole' has no attribute {name!r}")
