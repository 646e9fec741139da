"""Calls a function as soon as a parameter's gradient is accumulated.

Thread contract: the function runs in autograd's thread for that device, which
for CPU tensors is the thread that called backward(). For CUDA tensors torch
sets that thread's current stream to the one that computes the gradient, so an
operation that the function submits reads the gradient in the right order.
"""

from typing import Any, Callable

import torch


def on_gradient(parameter: torch.Tensor,
                function: Callable[[torch.Tensor], None]) -> Any:
    """Calls function(parameter) each time backward() has computed its gradient.

    Returns an object; the hook works as long as the caller keeps it alive.
    """
    # torch 2.1 and newer.
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)
    if register is not None:
        handle = register(function)
        # Before the program's own hooks, which then find the result of a reduction.
        parameter._post_accumulate_grad_hooks.move_to_end(handle.id, last=False)
        return handle
    # In older versions a view leads to the node that accumulates the gradient.
    with torch.enable_grad():
        view = parameter.expand_as(parameter)
    accumulator = view.grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: function(parameter))
    return accumulator
