"""Maypole averages tensors over all processes of a training job.

Import the module of your framework: `import maypole.torch as hvd`.
`python3 -m maypole` prints the version and where the library was found.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # The version is the library's own; loading it may wait until it is asked.
    if name == "__version__":
        from maypole import _native
        return _native.library().version()
    raise AttributeError(f"module 'maypole' has no attribute {name!r}")
