"""Faults that are put into maypole.torch while a rank plays a recipe: the oracle must find each.

    with applied("a_gradient_is_left_out", rank): ...

Thread contract: one thread.
"""

import contextlib
import unittest.mock

import torch

from maypole.torch import functions, optimizer


def a_gradient_is_left_out(rank):
    """The first parameter's hook is missing, and synchronize() does not start it either."""
    del rank
    original = optimizer.Reducer.start

    def start(self, parameter, name):
        if name.endswith("head.bias"):
            return lambda: None
        return original(self, parameter, name)

    return [(optimizer.Reducer, "start", start)]


MUTANTS = {function.__name__: function for function in [a_gradient_is_left_out]}


@contextlib.contextmanager
def applied(name, rank):
    with contextlib.ExitStack() as stack:
        if name is not None:
            for holder, attribute, value in MUTANTS[name](rank):
                stack.enter_context(unittest.mock.patch.object(holder, attribute, value))
        yield
