"""What the ranks exchange before each step, so that all make the same step.

    same = SameStep(process_set)
    same.count()                      # after each synchronize(), and each time gradients are dropped
    same.observe(parameters)          # the results as they are before the program changes them
    same.start(names, operation, reads, failure)   # while the last gradients are reduced, or later
    same.finish(names)                # about to step: raises on all ranks, or on none
    same.start(names, operation, reads, failure, again)   # about to reduce again in the same step

Operations on gradients have the same names in every step. So a gradient that one
rank has dropped (a batch that was skipped after backward()) would be matched with
the next step's gradient of a rank that had computed none, and both would continue,
a step apart. And a rank that has computed no gradient does not wait when its
program reads .grad to clip it, since it has nothing to wait for: the others would
change the result, this rank something else. No rank can detect either case alone,
so each step has one small allreduce of
* how often gradients were reduced or dropped: the same on all ranks;
* the number of a result that the program has changed since it read it, and
whether this rank has read none: these must not both occur;
* whether this rank alone has failed: then the ranks exchange the errors' texts;
* whether it begins another round of reductions in this step, or is about to step:
  the same on all ranks;
* whether it wants the ranks to be compared (equal_start.py), for example because something other than the optimizer
  has changed weights since the last step, and the optimizer's settings, as a number: if some rank wants it, or the
  settings differ, the ranks compare before they step.

Results are observed only where the second case is possible: if some rank could
not know that others read, or others do not know that this one does.

Thread contract: one thread at a time. Invariants: all ranks' finish() belong to
the same step, or fail. Each start() is followed by a finish() or an end().
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import torch

from maypole.common import basics, objects
from maypole.common.constants import Max
from maypole.common.exceptions import HorovodInternalError
from maypole.common.recurrence import Recurrence
from maypole.torch._gradients.changes import Gradients
from maypole.torch.async_ops import allreduce_async_, synchronize


class SameStep:
    """See the head of this file."""

    def __init__(self, process_set: Any):
        self._process_set = process_set
        self._rounds = 0
        self._results: Optional[Gradients] = None
        self._handle: Optional[int] = None
        self._operation = ""
        self._failure: Optional[Exception] = None

    def count(self) -> None:
        """Counts that gradients were reduced, or dropped."""
        self._rounds += 1

    def forget(self) -> None:
        """Starts counting again, on all ranks: some may have missed steps."""
        self._rounds = 0

    def observe(self, parameters: Iterable[torch.Tensor]) -> None:
        """Records the results, to detect changes."""
        self._results = Gradients()
        for parameter in parameters:
            self._results.take(parameter)

    def end(self) -> None:
        """Called when the step is over, or has failed."""
        self._results = self._failure = None
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(HorovodInternalError):
                synchronize(handle)

    @property
    def is_started(self) -> bool:
        """Whether the exchange of this step has begun."""
        return self._handle is not None

    def start(self, names: dict[torch.Tensor, str], operation: str,
              reads: bool, failure: Optional[Exception] = None,
              again: Optional[torch.Tensor] = None, wants: bool = False,
              settings: Sequence[int] = (0, 0)) -> None:
        """Starts the exchange, which must not be started.

        reads: whether this rank has waited because its program read gradients.
        failure: the error that only this rank has found. again: a parameter
        whose gradient is reduced once more, in which case this rank does not
        step. wants: whether this rank wants the ranks to be compared. settings: EqualStart.settings().
        """
        changed = None
        if self._results is not None:
            changed = next((p for p in names if p in self._results
                            and self._results.changed(p)), None)
        self._results = None
        self._operation, self._failure = operation, failure
        row = torch.tensor(
            [self._rounds, -self._rounds, _number(names, changed), reads,
             not reads, failure is not None, _number(names, again), again is None,
             wants, *settings],
            device="cpu")
        self._handle = allreduce_async_(row, None, operation, Max,
                                        process_set=self._process_set)

    def finish(self, names: dict[torch.Tensor, str]) -> tuple[bool, bool]:
        """Returns whether some rank has read gradients of this step, and whether the ranks are to be compared.

        Raises AssertionError on all ranks if their steps differ, or if a rank
        has failed; on the failed rank it raises that rank's own error.
        """
        handle, self._handle = self._handle, None
        assert handle is not None  # start() was called
        (most, least, changed, some_read, some_do_not, some_failed, again,
         some_step, some_want, setting, least_setting) = synchronize(handle).tolist()
        if some_failed:
            raise self._error_of_all()
        if most != -least:
            raise AssertionError(
                "step(): a rank has cleared the gradients of its parameters between "
                "backward() and step(), and another one had computed none then, so "
                "its next ones were reduced with those; skip a batch before "
                "backward(), or call step() or synchronize() on all ranks for each")
        if again and some_step:
            raise AssertionError(
                f"the gradient of {_sorted(names)[again - 1]!r} is reduced twice "
                "in a step on a rank, whose program has read gradients between two "
                "backward() or called synchronize() twice, and once on another "
                "rank; between two backward() of a step, read gradients on all "
                "ranks or on none, or set backward_passes_per_step")
        if changed and some_do_not:
            raise AssertionError(
                f"the gradient of {_sorted(names)[changed - 1]!r} was changed "
                "between backward() and step() on a rank, while another rank had "
                "computed no gradient in this step, and so had nothing to wait "
                "for when its program read .grad; call synchronize() on all "
                "ranks before you change gradients, and step() within "
                "skip_synchronize()")
        no_rank_is_compared = setting == least_setting
        return bool(some_read), bool(some_want) or (setting != -least_setting and not no_rank_is_compared)

    def _error_of_all(self) -> Exception:
        failure, self._failure = self._failure, None
        own = failure and (basics.rank(), str(failure))
        everyones = objects.allgather_object(own, self._operation + ".failures",
                                             self._process_set)
        rank, text = next(filter(None, everyones))
        return failure or AssertionError(
            f"the step of rank {rank} has failed, so no rank steps: {text}")


class WeightChanges:
    """Whether something other than the optimizer changes weights, such as Embedding(max_norm=...) in its forward().

    A rank that does so for what it alone has seen diverges from the others. But programs may change weights in each
    step, equally on all ranks.
    """

    def __init__(self) -> None:
        self._versions: dict[torch.Tensor, int] = {}
        self._recurrence = Recurrence()  # of steps with a change

    def stepped(self, parameters: Iterable[torch.Tensor]) -> None:
        """The optimizer has made a step."""
        self._versions = {p: p._version for p in parameters}

    def want_comparison(self) -> bool:
        """Whether there was a change since then, after which the ranks should be compared; called once in a step."""
        if all(p._version == version for p, version in self._versions.items()):
            return False
        self._recurrence.until_next -= 1
        if self._recurrence.until_next > 0:
            return False
        self._recurrence.follow(grows=True)
        return True


def _number(names: dict[torch.Tensor, str],
            parameter: Optional[torch.Tensor]) -> int:
    """The number of a parameter, from 1; 0: none."""
    return 0 if parameter is None else _sorted(names).index(names[parameter]) + 1


def _sorted(names: dict[torch.Tensor, str]) -> list[str]:
    """Sorted, because the order may differ between the ranks' optimizers."""
    return sorted(names.values())
