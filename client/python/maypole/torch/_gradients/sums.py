"""With op=Sum: prevents adding a gradient to one that is already a result.

    sums = Sums(fail)
    sums.keep(parameters, names)   # their .grad may be results; if backward() adds to one, fail(error)
    sums.summed_again()            # about to reduce them: the error, if one is a result
    sums.drop()                    # the step is over, or they were cleared

A sum of the ranks' results would count each rank's gradient several times. (With
averages there is no problem: an average of averages is what one process would
have.)

Thread contract: one thread at a time. Invariant: the hooks exist from keep() until
drop(), or until the parameter's next backward() has found its gradient cleared.
"""

import weakref
from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch

from maypole.torch._gradients.changes import is_clear
from maypole.torch._gradients.guards import grad_of


class Sums:
    """See the head of this file.

    fail: a bound method that raises the error on all ranks. It is held weakly.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = weakref.WeakMethod(fail)
        self._hooks: dict[torch.Tensor, Any] = {}
        self._names: dict[torch.Tensor, str] = {}

    def keep(self, parameters: Iterable[torch.Tensor],
             names: dict[torch.Tensor, str]) -> None:
        """See the head of this file. names: the parameters' names, for messages."""
        self._names = names
        method = weakref.WeakMethod(self._before_grad)

        def hook_of(parameter: torch.Tensor) -> Callable[[Any], None]:
            key = weakref.ref(parameter)

            def hook(_: Any) -> None:
                before_grad, parameter = method(), key()
                if before_grad is not None and parameter is not None:
                    before_grad(parameter)

            return hook

        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_hook(
                    hook_of(parameter))

    def drop(self) -> None:
        """Ends what keep() began."""
        while self._hooks:
            self._hooks.popitem()[1].remove()

    def _before_grad(self, parameter: torch.Tensor) -> None:
        """Called before backward() adds to a .grad that may be a result."""
        hook = self._hooks.get(parameter)
        if hook is None:
            return
        error, fail = self._error_of(parameter), self._fail()
        if error is not None and fail is not None:
            fail(error)
        hook.remove()
        del self._hooks[parameter]

    def summed_again(self) -> Optional[AssertionError]:
        """Called before gradients are reduced; returns the error if one of them is a result."""
        errors = (self._error_of(parameter) for parameter in self._hooks)
        return next((error for error in errors if error is not None), None)

    def _error_of(self, parameter: torch.Tensor) -> Optional[AssertionError]:
        if is_clear(grad_of(parameter)):
            return None
        return AssertionError(
            f"the gradient of {self._names[parameter]!r} has been reduced in "
            "this step, and with op=Sum would be summed again; call all "
            "backward() of a step before synchronize() and before the gradients "
            "are read, clear the gradients in between, or use op=Average")
