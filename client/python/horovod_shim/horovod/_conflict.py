"""Whether Horovod itself is installed in the directory of this package."""

import os
from importlib import metadata


def check() -> None:
    """Raises ImportError if it is: pip lets the one overwrite the other's files.

    A Horovod in another directory is whole; sys.path decides which is imported.
    """
    directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for distribution in metadata.distributions(name="horovod", path=[directory]):
        raise ImportError(
            f"horovod {distribution.version} and maypole-horovod are both "
            f"installed in {directory}, and pip has let one overwrite files of "
            "the other; uninstall both (pip uninstall horovod maypole-horovod), "
            "then install the one that you want")
