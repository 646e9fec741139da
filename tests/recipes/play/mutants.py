"""Faults that are put into maypole.torch while a rank plays a recipe: the oracle must find each.

    with applied("a_bucket_is_left_out", rank):
        ...                                     # play

A mutant is a function that returns patches, (holder, attribute, value). Those in ONE_RANK are faults of rank 1 only.
mutants_test.py has the programs in which each mutant can have an effect.

Thread contract: one thread.
"""

import contextlib
import os
import time
import unittest.mock

import torch

import maypole.torch as hvd
from maypole.torch import adasum_optimizer, optimizer
from maypole.torch._gradients import reducer as _reducer
from maypole.torch._gradients.equal_start import EqualStart as _EqualStart
from maypole.torch._gradients.guards import grad_of, set_grad
from maypole.torch._gradients.parameters import Parameters as _Parameters
from maypole.torch._reduction import GradientReduction as _Reduction
from maypole.torch.elastic.state import StateDictHandler as _StateDictHandler

_Reducer = _reducer.Reducer
_Wrapped = optimizer._DistributedOptimizer


def _after(what):
    """Patches of what a reduction of one dense gradient leaves: what(reducer, tensor, the rank's own, name)."""
    original = _Reducer.start_dense

    def start_dense(self, tensor, name):
        own = tensor.clone()
        wait = original(self, tensor, name)

        def finish():
            wait()
            with torch.no_grad():
                what(self, tensor, own, name)

        return finish

    return [(_Reducer, "start_dense", start_dense)]


def a_gradient_is_left_out():
    original = _Reducer.start

    def start(self, parameter, name):
        return (lambda: None) if name.endswith("head.bias") else original(self, parameter, name)

    return [(_Reducer, "start", start)]


def a_bucket_is_left_out():
    return [(_Reducer, "start_bucket", lambda self, bucket, name: lambda: None)]


def a_gradient_is_reduced_twice():
    return _after(lambda self, tensor, own, name: hvd.allreduce_(tensor, name=name + ".again", op=self.op,
                                                                 process_set=self.process_set))


def a_rank_keeps_its_own_gradient():
    return _after(lambda self, tensor, own, name: tensor.copy_(own))


def a_bit_differs():
    # Far below any tolerance.
    return _after(lambda self, tensor, own, name: tensor.mul_(1 + 4 * torch.finfo(tensor.dtype).eps))


def an_overflow_stays_on_its_rank():
    original = _Reducer.start_dense

    def start_dense(self, tensor, name):
        bad = ~torch.isfinite(tensor)
        tensor[bad] = 0.0
        wait = original(self, tensor, name)

        def finish():
            wait()
            tensor[bad] = float("nan")

        return finish

    return [(_Reducer, "start_dense", start_dense)]


def an_unused_gradient_stays_away():
    original = _Reducer.start

    def start(self, parameter, name):
        lacked = grad_of(parameter) is None
        wait = original(self, parameter, name)

        def finish():
            wait()
            if lacked:
                set_grad(parameter, None)

        return finish

    return [(_Reducer, "start", start)]


def the_predivision_stays():
    original = _Reducer.__init__

    def init(self, *args):
        original(self, *args)
        self.postscale = 1.0

    return [(_Reducer, "__init__", init)]


def a_sum_is_averaged():
    original = _Reducer.__init__

    def init(self, *args):
        original(self, *args)
        self.op = hvd.Average

    return [(_Reducer, "__init__", init)]


def sparse_values_are_not_averaged():
    original = _reducer.sparse_allreduce_async
    return [(_reducer, "sparse_allreduce_async",
             lambda tensor, name, op, process_set: original(tensor, name, hvd.Sum, process_set))]


def adasum_is_an_average():
    def combined(self, deltas):
        return [hvd.allreduce(delta, name=f"delta{i}") for i, delta in enumerate(deltas)]

    return [(adasum_optimizer.DistributedAdasumOptimizer, "_combined", combined)]


def the_process_set_is_ignored():
    original = hvd.DistributedOptimizer

    def make(*args, process_set, **options):
        del process_set
        return original(*args, **options)

    return [(hvd, "DistributedOptimizer", make)]


def the_scheduler_is_detached():
    original = optimizer.attach

    def attach(*args):
        made = original(*args)
        twin = type(made).__new__(type(made))
        twin.__dict__.update(made.__dict__, made=made, param_groups=[dict(group) for group in made.param_groups])
        return twin

    return [(optimizer, "attach", attach)]


def the_parameters_are_not_broadcast():
    return [(hvd, "broadcast_parameters", lambda parameters, root_rank: None)]


def the_state_is_not_broadcast():
    return [(hvd, "broadcast_optimizer_state", lambda optimizer, root_rank: None)]


def the_learning_rate_is_not_broadcast():
    original = hvd.broadcast_optimizer_state

    def broadcast(optimizer, root_rank):  # pylint: disable=redefined-outer-name
        rates = [group["lr"] for group in optimizer.param_groups]
        original(optimizer, root_rank)
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate

    return [(hvd, "broadcast_optimizer_state", broadcast)]


def a_broadcast_is_from_another_root():
    original = hvd.broadcast_parameters
    return [(hvd, "broadcast_parameters",
             lambda parameters, root_rank: original(parameters, (root_rank + 1) % hvd.size()))]


def an_unfrozen_parameter_is_forgotten():
    original = _Parameters.watch

    def watch(self):
        if not self.hooked:
            original(self)

    return [(_Parameters, "watch", watch)]


def a_closure_is_not_synchronized():
    return [(_Wrapped, "_synchronized_closure", lambda self, reduction, closure: closure)]


def the_loss_of_a_line_search_is_the_ranks_own():
    return [(_Reducer, "reduced_loss", lambda self, loss, name: loss)]


def passes_are_averaged():
    original = _Reduction._synchronize

    def synchronize(self, how):
        original(self, how)
        for p in self._parameters.hooked:
            if p.grad is not None and self.backward_passes_per_step > 1:
                p.grad.mul_(0.5)

    return [(_Reduction, "_synchronize", synchronize)]


def names_are_exchanged():
    original = _Reducer.start
    exchanged = {"head.bias": "branch.bias", "branch.bias": "head.bias"}

    def start(self, parameter, name):
        first, _, last = name.partition(".")
        return original(self, parameter, f"{first}.{exchanged.get(last, last)}")

    return [(_Reducer, "start", start)]


def batch_norm_is_of_one_rank():
    return [(hvd, "SyncBatchNorm", torch.nn.BatchNorm1d)]


def a_loaded_state_is_lost():
    return [(_Wrapped, "load_state_dict", lambda self, state: None)]


def a_step_reduces_again():
    return [(_Wrapped, "skip_synchronize", lambda self: contextlib.nullcontext())]


def gradients_are_not_cleared():
    return [(_Wrapped, "zero_grad", lambda self, *args, **kwargs: None)]


def an_added_group_is_not_reduced():
    return [(_Reduction, "follow_groups", lambda self: None)]


def a_loss_of_two_models_is_for_the_first():
    original = _Reducer.start

    def start(self, parameter, name):
        second = "second." in name or "#1." in name
        return (lambda: None) if second else original(self, parameter, name)

    return [(_Reducer, "start", start)]


def a_join_is_not_compared():
    original = _EqualStart.check

    def check(self, *args):
        return None if self._checked is not None else original(self, *args)

    return [(_EqualStart, "check", check)]


def an_error_stays_on_its_rank():
    return [(_Reduction, "_tell_failure", lambda self: self._failure)]


def the_scaler_is_not_restored():
    return [(_StateDictHandler, name, lambda self: None) for name in ("restore", "sync")]


def a_rank_raises():
    def step(self, *args):
        raise ValueError("parameter 'head.bias' is odd on this rank")

    return [(_Wrapped, "step", step)]


def a_rank_dies():
    return [(_Wrapped, "step", lambda self, *args: os._exit(3))]


def a_rank_hangs():
    return [(_Wrapped, "step", lambda self, *args: time.sleep(3600))]


ONE_RANK = {a_rank_keeps_its_own_gradient, a_bit_differs, the_learning_rate_is_not_broadcast, names_are_exchanged,
            the_loss_of_a_line_search_is_the_ranks_own, a_rank_raises, a_rank_dies, a_rank_hangs}

MUTANTS = {value.__name__: value for name, value in list(globals().items())
           if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == __name__}


@contextlib.contextmanager
def applied(name, rank):
    with contextlib.ExitStack() as stack:
        if name is not None and (rank == 1 or MUTANTS[name] not in ONE_RANK):
            for holder, attribute, value in MUTANTS[name]():
                stack.enter_context(unittest.mock.patch.object(holder, attribute, value))
        yield
