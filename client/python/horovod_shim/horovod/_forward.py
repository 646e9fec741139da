"""Modules that stand for Maypole's under Horovod's names."""

import importlib
from typing import Any, Callable, List, Tuple


def forward(*names: str) -> Tuple[Callable[[str], Any], Callable[[], List[str]],
                                  List[str]]:
    """__getattr__, __dir__ and __all__ of a module that has what these modules
    have: each name is that of the first one that has it."""
    modules = [importlib.import_module(name) for name in names]

    def get(name: str) -> Any:
        for module in modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"module {names[0]!r} has no attribute {name!r}")

    every = sorted({name for module in modules for name in dir(module)})
    return get, lambda: every, [name for name in every if name[0] != "_"]
