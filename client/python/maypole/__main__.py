"""`python3 -m maypole`: prints version and build information."""

import importlib.util
import platform
import sys

from maypole import _native
from maypole.common import basics


def _framework(module: str) -> str:
    return "yes" if importlib.util.find_spec(module) else "not installed"


def main() -> int:
    """Prints one `name: value` per line.

    Returns 1 if the library cannot be loaded.
    """
    try:
        library = _native.library()
    except ImportError as error:
        print(f"maypole: {error}", file=sys.stderr)
        return 1
    for name, value in (
            ("maypole", library.version()),
            ("library", getattr(library, "path", "")),
            ("python", platform.python_version()),
            ("torch", _framework("torch")),
            ("between nodes", "TCP"),
            ("cuda", "yes" if basics.cuda_built() else "no"),
            ("nccl", "yes, where a host has it"),
            ("mpi", "yes" if basics.mpi_built() else "no"),
    ):
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
