"""Functions that torch.compile leaves as they are.

Compiled code calls them between two of its graphs. Dynamo must not look into
them: it would compile code that calls a library, in minutes, and in the end
fail.

Thread contract: that of the function.
"""

from typing import Any, Callable, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_compiled(function: _Function) -> _Function:
    """The function, with all that it calls, as torch.compile calls it."""
    # torch 2.1 and newer. This imports torch._dynamo, as every optimizer does.
    compiler = getattr(torch, "compiler", None)
    return function if compiler is None else compiler.disable(function)
