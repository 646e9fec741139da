"""All reductions of one DistributedOptimizer: which gradients are reduced, when, and what waits for them.

A step, as the state of each parameter's gradient:

    state      begins with                        .grad holds
    old        step(), zero_grad()                the last step's result, or None
    computed   backward() (the parameter's hook)  this rank's gradient
    pending    the last backward pass of a step   nothing that may be read
    reduced    synchronize()                      the ranks' result

synchronize() reduces the gradients of all parameters, also those that this rank has not computed, so that
ranks with different graphs do not wait for each other forever (layouts.py says what such a rank
contributes). step() calls it, and so does the first access to a .grad between backward() and step()
(guards.py): code that clips, looks for infinities or prints sees the result. Before a second round of
reductions in a step the ranks agree on whether all of them have one; its operations have other names.

An error that only one rank finds (for example a gradient changed while it was reduced) is raised after
this rank has taken part in the step's reductions and told the others, so that they raise it as well, in
step() at the latest.

The parts are in the folder _gradients.

Thread contract: one thread at a time.

Invariants: between the first hook after a step and synchronize(), `_pending`
has an entry for each parameter whose gradient has been computed; the entry is
None while its reduction has not been started. The guards are engaged while
`_pending` is not empty.
"""

import contextlib
import dataclasses
import threading
import warnings
from typing import Any, Callable, Optional

import torch

from maypole.common import basics
from maypole.common.constants import ReduceOp, Sum
from maypole.common.exceptions import HorovodInternalError, raise_end_of_epoch
from maypole.common.process_sets import global_process_set
from maypole.torch._compiling import not_compiled
from maypole.torch._gradients.buckets import Bucket
from maypole.torch._gradients.callers import in_backward, in_checkpoint, in_zero_grad, nothing
from maypole.torch._gradients.changes import Gradients, is_clear
from maypole.torch._gradients.equal_start import EqualStart
from maypole.torch._gradients.guards import READ, Guards, grad_of
from maypole.torch._gradients.learned import Learned
from maypole.torch._gradients.parameters import Parameters
from maypole.torch._gradients.reducer import Reducer
from maypole.torch._gradients.same_step import SameStep, WeightChanges
from maypole.torch._gradients.sums import Sums
from maypole.torch.compression import Compression

# With two optimizers, as in a GAN, the generator's backward() also computes
# gradients of the discriminator.
_OTHER_OPTIMIZER_HINT = (
    "if these gradients come from the loss of another optimizer (as in a GAN), "
    "keep its backward() away from these parameters: requires_grad_(False) on "
    "them before it, requires_grad_(True) after it")

# How the gradients of the current step were synchronized last.
_NOT = 0
_BY_ACCESS = 1
_BY_PROGRAM = 2
_BY_STEP = 3


@dataclasses.dataclass
class Options:
    """The arguments of DistributedOptimizer(), checked.

    names: each parameter's name, without a prefix. bucket_bytes: None for no
    buckets. others: the names of parameters that the program has named, and the optimizer does not have.
    """

    names: dict[torch.Tensor, str]
    op: ReduceOp
    compression: Any = Compression.none
    backward_passes_per_step: int = 1
    predivide: float = 1.0
    sparse_as_dense: bool = False
    process_set: Any = global_process_set
    bucket_bytes: Optional[int] = None
    others: dict[torch.Tensor, str] = dataclasses.field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "others": {}}  # a copy of the optimizer need not have a copy of the frozen model


class GradientReduction:
    """See the head of this file."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: Options,
                 is_copy: bool = False):
        self.options = options
        self.backward_passes_per_step = options.backward_passes_per_step
        # The only rank of an elastic job may get company.
        process_set = options.process_set
        self.distributed = process_set.included() and (
            process_set.size() > 1 or basics.is_elastic())
        self._reducer = Reducer(options.compression, options.op,
                                options.predivide, options.sparse_as_dense,
                                options.bucket_bytes is None, process_set)
        # By parameter or bucket: the function that completes its reduction.
        self._pending: dict[Any, Optional[Callable[[], None]]] = {}
        # Backward passes of this step that have computed a gradient.
        self._passes: dict[torch.Tensor, int] = {}
        self._guards = Guards(self._accessed)
        self._synchronized = _NOT
        self._count = 0  # of synchronize() in this step
        self._asked = False  # whether the ranks have agreed on this round; not needed for the first
        self._failure: Optional[Exception] = None  # found by this rank alone
        self._abandoned = False  # since the last gradient: zero_grad() may follow, whatever has happened
        self._complete = False  # some gradient had its last pass in this step
        # Gradients that were read between two passes.
        self._read_early = Gradients()
        self._sums = Sums(self._fail)
        self._start_check = EqualStart(process_set, zeros=self._reducer.layouts.zeros, others=options.others)
        self._same_step = SameStep(process_set)
        self._weight_changes = WeightChanges()
        self._learned = Learned(options.names, options.bucket_bytes, self._reducer, self._start_check, self._same_step)
        # A rank that reduces nothing watches nothing.
        watched = options if self.distributed else dataclasses.replace(
            options, names={})
        self._parameters = Parameters(optimizer, watched, self._guards,
                                      self._on_grad, self.first_pending, is_copy)
        # backward() has a thread for each device.
        self._lock = threading.Lock()

    @property
    def _names(self) -> dict[torch.Tensor, str]:
        return self._parameters.names

    def _operation(self, what: str) -> str:
        return f"{self._parameters.identity}:{what}"

    def wake_anew(self) -> None:
        """Wakes a copy by a use for which earlier gradients do not matter."""
        if self.distributed and self._parameters.asleep:
            self._guards.release()
            self._pending.clear()
            self._read_early.clear()
            self._reset_passes()
            self._parameters.wake()

    def follow_groups(self) -> None:
        """Notices changes of the optimizer's groups."""
        if not self.distributed:
            return
        changed, some_gone = self._parameters.follow_groups()
        if changed:
            self._start_check.forget()
        if some_gone and self._learned.buckets is not None:
            if self._pending:  # the reductions of these buckets have begun
                self._learned.outdated = True
            else:
                self._learned.forget()

    # --- Within backward() ------------------------------------------------------

    def _on_grad(self, parameter: torch.Tensor) -> None:
        with self._lock:
            self._note_grad(parameter)

    def _note_grad(self, parameter: torch.Tensor) -> None:
        self._drop_those_of_an_earlier_epoch()
        if parameter in self._parameters.hooked and not self._parameters.asleep:
            raise_end_of_epoch()
            self._abandoned = False
        if not self._pending and parameter in self._parameters.hooked:
            self._begin(parameter)
        if parameter not in self._parameters.hooked:
            return
        passes = self._passes[parameter] = self._passes.get(parameter, 0) + 1
        if passes > self.backward_passes_per_step:
            raise AssertionError(self._too_often(parameter))
        if not self._pending:
            self._guards.engage()
        self._pending[parameter] = None
        self._synchronized = _NOT
        self._read_early.pop(parameter, None)
        if passes < self.backward_passes_per_step:
            return
        self._complete = True
        if self._parameters.asleep:
            return
        bucket = self._bucket_of(parameter)
        if bucket is None:
            self._start(parameter)
        else:
            bucket.computed()
            if bucket.missing == 0:
                self._start_bucket(bucket)
        if self._failure is not None:
            self._fail(self._failure)

    def _drop_those_of_an_earlier_epoch(self) -> None:
        """Gradients that were pending when the program called shutdown(), and then init(), are lost."""
        if self._pending and not self._parameters.asleep and self._learned.epoch_is_over():
            self.abandon()

    def _begin(self, parameter: torch.Tensor) -> None:
        """The first gradient since synchronize()."""
        if not self._parameters.asleep:
            self.follow_groups()
            self._learned.follow_job(self._operation("known"))
            self._ask_for_another_round(parameter)
        for bucket in self._learned.buckets or ():
            bucket.reset()

    def _keep_results(self) -> None:
        if self.distributed and self.options.op == Sum:
            self._sums.keep(self._parameters.hooked, self._names)

    def _too_often(self, parameter: torch.Tensor) -> str:
        what = (f"the gradient of {self._names[parameter]!r} was computed more "
                f"than backward_passes_per_step={self.backward_passes_per_step}"
                " times before step(); ")
        if in_checkpoint():
            return what + (
                "the parameter is used in several parts of the model that "
                "torch.utils.checkpoint computes again, and each computes its "
                "gradient apart; pass use_reentrant=False to checkpoint()")
        return what + ("increase backward_passes_per_step to accumulate "
                       f"gradients locally; {_OTHER_OPTIMIZER_HINT}")

    def _suffix(self) -> str:
        return f":{self._count + 1}" if self._count else ""

    def _start(self, parameter: torch.Tensor) -> None:
        name = self._names[parameter] + self._suffix()
        try:
            self._pending[parameter] = self._reducer.start(parameter, name)
        except AssertionError as error:
            self._note_failure(error)
            self._pending[parameter] = self._reducer.start_zeros(parameter, name)

    def _bucket_of(self, parameter: torch.Tensor) -> Optional[Bucket]:
        buckets = self._learned.buckets
        return None if buckets is None else buckets.of(parameter)

    def _start_bucket(self, bucket: Bucket) -> None:
        try:
            bucket.gather()
        except (AssertionError, ValueError) as error:
            self._note_failure(error)
        self._pending[bucket] = self._reducer.start_bucket(
            bucket, bucket.name + self._suffix())

    def _note_failure(self, error: Optional[Exception]) -> None:
        """This rank will raise `error` when it has taken part in all reductions of the step."""
        self._failure = self._failure or error

    def _fail(self, error: Exception) -> None:
        """Raises `error`, within backward()."""
        self._note_failure(error)
        self._synchronize(_NOT)

    # --- Access by the program --------------------------------------------------

    def _accessed(self, parameter: torch.Tensor, value: Any) -> None:
        """Called before the program reads or sets parameter.grad while gradients are pending."""
        if in_backward():
            self._accessed_in_backward(parameter)
        elif self._complete:
            drops = in_zero_grad() if value is READ else is_clear(value)
            if value is READ or drops:
                self._synchronize(_BY_ACCESS)
                self._keep_results()
                if drops:
                    self._same_step.count()
            elif parameter in self._pending:
                raise AssertionError(
                    f"the gradient of {self._names[parameter]!r} was replaced on "
                    "this rank while it was reduced, by another one than zeros; "
                    "call synchronize() before you set .grad, or read .grad, "
                    "which waits for the ranks' result")
            # Otherwise the value is this rank's gradient and is reduced with the rest.
        elif parameter not in self._read_early and grad_of(parameter) is not None:
            # More passes may follow, or this is the step's last one.
            self._read_early.take(parameter)

    def _accessed_in_backward(self, parameter: torch.Tensor) -> None:
        """The access comes from a hook of the program."""
        finish = self._pending.get(parameter)
        if finish is not None:
            self._pending[parameter] = nothing
            self._note_failure(self._reducer.changed())
            finish()
        elif self._passes.get(parameter, 0) >= self.backward_passes_per_step:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was accessed in "
                "backward(), while it waits for the others of its bucket; do "
                "this after backward(), or leave gradient_as_bucket_view out")

    def _changed_early(self) -> Optional[AssertionError]:
        """Returns an error if the program has changed a gradient that is not reduced yet."""
        for parameter in self._read_early:
            if grad_of(parameter) is None or not self._read_early.changed(parameter):
                continue
            return AssertionError(
                f"the gradient of {self._names[parameter]!r} was changed on this "
                "rank before it was reduced, after fewer backward passes than "
                f"backward_passes_per_step={self.backward_passes_per_step}; "
                "call synchronize() before you change gradients, and step() "
                "within skip_synchronize()")
        return None

    # --- The end of a step ------------------------------------------------------

    def first_pending(self) -> Optional[str]:
        """Returns the name of a gradient that has been computed but not synchronized; None if there is none."""
        if not self._pending or self._parameters.asleep:
            return None
        names = (key.name if isinstance(key, Bucket) else self._names.get(key)
                 for key in self._pending)
        return next(filter(None, names), "a parameter that the optimizer had")

    def passes_if_within_step(self) -> int:
        """Returns backward_passes_per_step if it is above 1 and some of the passes await step(); otherwise 0.

        The same on all ranks, because they count passes alike.
        """
        passes = self.backward_passes_per_step
        within = self.first_pending() is not None or self._synchronized in (_BY_ACCESS, _BY_PROGRAM)
        return passes if passes > 1 and within else 0

    def synchronize(self) -> None:
        """See DistributedOptimizer()."""
        self._synchronize(_BY_PROGRAM)
        self._keep_results()

    def finish_pending(self) -> bool:
        """Waits for gradients that are pending, as the first access to one does.

        Returns whether step() will use the gradients as they are.
        """
        if self.first_pending() is not None:
            self._synchronize(_BY_ACCESS)
            self._keep_results()
        return self._synchronized == _BY_ACCESS

    def drop_incomplete(self) -> None:
        """Drops the passes of a step that has not begun to reduce: other ranks may have made fewer."""
        if self._complete or any(finish is not None for finish in self._pending.values()):
            return
        self._guards.release()
        self._pending.clear()
        self._read_early.clear()
        self._reset_passes()

    @not_compiled
    def _synchronize(self, how: int) -> None:
        self._guards.release()
        first_error: Optional[Exception] = None
        unequal: Optional[Exception] = None
        doubtful = False
        try:
            self._ask_for_another_round()
            unequal, doubtful = self._start_the_rest(how)
        except Exception as error:  # pylint: disable=broad-except
            first_error = error
        self._same_step.count()
        # Not in a step that ends with an error on all ranks: ranks that read gradients do not ask here.
        if how == _BY_STEP and self.distributed and not (first_error or unequal):
            self._ask_for_step()
        first_error = self._finish_all() or first_error or unequal
        self._read_early.clear()
        self._reset_passes()
        self._count += 1
        self._learned.steps += 1
        self._asked = False
        self._synchronized = how
        if first_error is None and self._failure is not None:
            first_error = self._tell_failure()
        if first_error is not None:
            self._failure = None
            self._count = 0
            self._learned.forget()
            self._same_step.end()
            self._sums.drop()
            raise first_error
        self._reducer.layouts.settle()
        if self.distributed:
            self._learned.fill_buckets(self._parameters.hooked, self._names)
        if doubtful and how == _BY_ACCESS:
            self._same_step.observe(self._names)

    def _finish_all(self) -> Optional[Exception]:
        """Waits for all reductions; returns the first error."""
        first_error = None
        for key, finish in list(self._pending.items()):
            try:
                if finish is not None:
                    finish()
            except Exception as error:  # pylint: disable=broad-except
                first_error = first_error or error
            del self._pending[key]
        return first_error

    def _start_the_rest(self, how: int) -> tuple[Optional[Exception], bool]:
        """Starts all reductions of this step that have not been started.

        Returns the error if the ranks began differently, and whether some rank
        waits because its program read gradients while another rank may not
        know.
        """
        if not self.distributed:
            return None, False
        unaware = how == _BY_STEP and not self._pending
        was_asleep = self._parameters.wake()
        self.follow_groups()
        self._parameters.watch()  # in case some were unfrozen
        if was_asleep or not self._pending:
            self._learned.follow_job(self._operation("known"))
        # Raised only when all reductions have been started: the other ranks start theirs as well.
        unequal = self._start_check.check(
            self._parameters.optimizer(), self._names, self._operation("start"))
        self._note_failure(self._reducer.changed() or self._changed_early()
                           or self._sums.summed_again())
        for bucket in self._learned.buckets or ():
            if bucket not in self._pending and bucket.active():
                self._start_bucket(bucket)
        alone = [
            p for p in self._parameters.hooked
            if p.requires_grad and self._bucket_of(p) is None
        ]
        # By name: the order of parameters may differ between the ranks' optimizers.
        doubtful = self._reducer.layouts.learn(
            sorted(alone, key=self._names.__getitem__),
            self._operation("layouts" + self._suffix()),
            self._pending, how == _BY_ACCESS, unaware, alone)
        for parameter in alone:
            if (self._pending.get(parameter) is None
                    and self._reducer.layouts.is_known(parameter)):
                self._start(parameter)
        return unequal, doubtful

    def before_step(self, skips: bool) -> None:
        """step() is about to use the gradients.

        skips: True if step() does not reduce them, because synchronize() has done so.
        """
        if self.distributed:
            raise_end_of_epoch()
        if not skips:
            self._reduce_for_step()
        if not self.distributed:
            return
        # After the last backward pass of a step, the optimizer's own access to the gradients waits for the result.
        if skips and not self._complete and self.first_pending() is not None:
            self._end_badly(ValueError(
                f"step() within skip_synchronize(), but the gradient of {self.first_pending()!r} has not been reduced: "
                f"it has had fewer backward passes than backward_passes_per_step={self.backward_passes_per_step}; call "
                "synchronize() before, or step() outside of skip_synchronize()"))
        try:
            self._ask_for_step()
            reads, compare = self._same_step.finish(self._names)
            if reads:
                self._reducer.layouts.reads = True  # as all ranks know
            unequal = self._start_check.check_step(
                self._parameters.optimizer(), self._names, self._operation("start"), compare)
            if unequal is not None:
                raise unequal
        except (AssertionError, ValueError):
            self.abandon()
            raise

    def note_loaded(self) -> None:
        """The program has loaded a state into the optimizer."""
        self._start_check.note_loaded()

    def _ask_for_step(self, again: Optional[torch.Tensor] = None) -> None:
        if self._same_step.is_started:
            return
        self._same_step.start(self._names, self._operation("step"),
                              self._synchronized == _BY_ACCESS, self._failure, again,
                              self._weight_changes.want_comparison() or self._start_check.wanted,
                              self._start_check.settings(self._parameters.optimizer(), self._names))

    def _end_badly(self, failure: Exception) -> None:
        """Raises `failure`, on all ranks."""
        self._failure = failure
        self._tell_failure()
        self.abandon()
        raise failure

    def _tell_failure(self) -> Exception:
        """Waits until all ranks know of this rank's failure, and returns it."""
        failure = self._failure
        assert failure is not None
        self._ask_for_step()
        with contextlib.suppress(type(failure), HorovodInternalError):
            self._same_step.finish(self._names)
        return failure

    def _ask_for_another_round(self, parameter: Optional[torch.Tensor] = None) -> None:
        """Raises AssertionError on all ranks if only some have another round of reductions in this step."""
        if not self.distributed or self._count == 0 or self._asked:
            return
        self._asked = True
        self._ask_for_step(parameter if parameter in self._names else
                           next(iter(self._names), None))
        try:
            self._same_step.finish(self._names)
        except AssertionError:
            self.abandon()
            raise

    def _reduce_for_step(self) -> None:
        if self.distributed and self._parameters.superseded:
            raise ValueError(
                "step() of a DistributedOptimizer whose parameters belong to "
                "another one, which was made later; use the later one only")
        if self._synchronized == _BY_PROGRAM:
            # Up to the comma: the words that scripts look for.
            warnings.warn(
                "optimizer.step() called without optimizer."
                "skip_synchronize(), but after synchronize(): the gradients "
                "are reduced a second time; call step() within the context "
                "optimizer.skip_synchronize()", stacklevel=4)
            if self.distributed and self.options.op == Sum:
                self._end_badly(ValueError(
                    "step() after synchronize() would sum the gradients, which "
                    "are sums already; call step() within the context "
                    "optimizer.skip_synchronize()"))
        if self._synchronized != _BY_ACCESS:
            self._synchronize(_BY_STEP)

    def before_closure(self) -> None:
        """Called before a closure computes gradients."""
        if self._pending:
            self.synchronize()
        self.end_step()

    def stepped(self) -> None:
        """Called when step() has changed the weights."""
        if self.distributed:
            self._weight_changes.stepped(self._names)

    def end_step(self) -> None:
        """Called when step() has used the gradients, or zero_grad() has cleared them."""
        self._synchronized = _NOT
        self._count = 0
        self._same_step.end()
        self._sums.drop()

    def before_zero_grad(self) -> None:
        """Raises AssertionError while gradients are being reduced; first the error that has ended the epoch, if any."""
        self.wake_anew()
        self._drop_those_of_an_earlier_epoch()
        if self.distributed and not self._abandoned:
            raise_end_of_epoch()
        if self._pending:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or "
                f"synchronize(), while gradients are being reduced ("
                f"{self.first_pending()!r} among them); call step() or "
                f"synchronize() first; {_OTHER_OPTIMIZER_HINT}")
        if self.distributed:
            self._parameters.watch()  # those that were unfrozen since the last step
        self.end_step()

    @contextlib.contextmanager
    def zeroing(self) -> Any:
        """A context around the optimizer's own zero_grad() that keeps gradients in their buckets."""
        self.before_zero_grad()
        buckets = self._learned.buckets
        if buckets is None:
            yield
            return
        buckets.detach()
        yield
        buckets.zero()

    def reduced_loss(self, loss: Any) -> Any:
        """Returns the ranks' losses, reduced like their gradients."""
        if not self.distributed:
            return loss
        return self._reducer.reduced_loss(loss, self._operation("loss"))

    def set_passes(self, passes: int) -> None:
        """Sets how many backward passes are accumulated from the next step on."""
        self.backward_passes_per_step = passes
        self.options.backward_passes_per_step = passes
        self._reset_passes()

    def _reset_passes(self) -> None:
        self._complete = False
        self._passes.clear()

    def abandon(self) -> None:
        """Ends a step whose membership epoch is over.

        Waits for the reductions that are under way, whatever their outcome, and
        starts no others. The gradients are undefined then.
        """
        self._guards.release()
        self._finish_all()
        self._failure = None
        self._asked = False
        self._read_early.clear()
        self._reset_passes()
        self._learned.forget()
        self.end_step()
        self._abandoned = True
