"""Functions that torch.compile does not compile.

Compiled code calls them between two of its graphs, or from C++ (DDP's reducer).
Dynamo must not trace them: it would spend minutes on code that calls a library,
with its locks and streams, and fail in the end.

Thread contract: that of the function itself.
"""

import functools
from typing import Any, Callable, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Of torch.compile; None in a torch that has none.
_frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def skip_code(function: Any) -> None:
    """Makes torch.compile run the function's own code without compiling it."""
    if _frames is None:
        return
    code = function.__code__
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(code)
    else:
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, skip))


def not_compiled(function: _Function) -> _Function:
    """Returns the function such that torch.compile compiles neither it nor what it calls.

    torch.compiler.disable() would do the same, but imports the compiler, which takes seconds.
    """
    if _frames is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        compiler = _frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            if compiler is not None:
                _frames.set_eval_frame(compiler)

    skip_code(run)
    run._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compiler.disable() sets it too
    return cast(_Function, run)
