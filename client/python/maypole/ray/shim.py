"""Gives ranks Maypole's package horovod if the driver has it: Ray does not pass on the driver's PYTHONPATH."""

import importlib.util
import os
import sys

_NAME = "horovod_shim"


def in_use() -> bool:
    """Whether `import horovod` gives Maypole's package in this process."""
    try:
        found = importlib.util.find_spec("horovod")
    except ValueError:  # a module that some program has made itself
        return False
    return found is not None and f"{os.sep}{_NAME}{os.sep}" in (found.origin or "")


def add_to_path() -> None:
    """Makes it so. The package is in the package maypole (of a wheel), or beside it (in a source tree)."""
    if importlib.util.find_spec("horovod") is not None:
        return
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for directory in (package, os.path.dirname(package)):
        path = os.path.join(directory, _NAME)
        if os.path.isdir(path):
            sys.path.insert(0, path)
            return
