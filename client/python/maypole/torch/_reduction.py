"""All reductions of one DistributedOptimizer: which gradient, when, and who waits.

A step, as the state of each parameter's gradient:

    state      begins with                        .grad holds
    old        step(), zero_grad()                the last step's result, or None
    computed   backward() (the parameter's hook)  this rank's gradient
    pending    the last backward pass of a step   nothing that may be read
    reduced    synchronize()                      the ranks' result

synchronize() reduces all parameters, also those that this rank has not
computed, so that ranks with different graphs do not wait for each other forever
(_layouts has what such a rank contributes). step() calls it; so does the first
access to a .grad between backward() and step() (_guards): clipping, looking for
infinities and printing see the result. A second synchronize() in a step has
other names, so that it never meets another rank's first one.

With buckets, the gradient of a new parameter is reduced alone in its first
step. After that all ranks know which gradients are sparse, and the others go
into buckets. What a first step has taught must be the same on all ranks. Ranks
may see different errors, and a rank that has joined (it had no input) has missed
steps. So all is forgotten after an error and in a new epoch; after a join() the
ranks compare it first.

Thread contract: one thread at a time.

Invariants: between the first hook after a step and synchronize(), `_pending`
has an entry for each parameter whose gradient has been computed; the entry is
None while its reduction has not been started. The guards are engaged while
`_pending` is not empty. At most one reduction watches a parameter.
"""

import contextlib
import dataclasses
import inspect
import traceback
import warnings
import weakref
import zlib
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

import torch
import torch.utils.checkpoint

from maypole import _native
from maypole.common import basics
from maypole.common.constants import Max, Sum
from maypole.common.process_sets import global_process_set, id_of
from maypole.torch._buckets import Bucket, Buckets
from maypole.torch._compiling import not_compiled
from maypole.torch._guards import READ, Guards, grad_of
from maypole.torch._hooks import on_gradient
from maypole.torch._reducer import Reducer
from maypole.torch.async_ops import allreduce_async_, synchronize
from maypole.torch.compression import Compression

_PREFIX = "DistributedOptimizer"

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

    names: of each parameter, without a prefix. bucket_bytes: None for no
    buckets.
    """

    names: Dict[torch.Tensor, str]
    op: int
    compression: Any = Compression.none
    backward_passes_per_step: int = 1
    predivide: float = 1.0
    sparse_as_dense: bool = False
    process_set: Any = global_process_set
    bucket_bytes: Optional[int] = None


# The reduction that watches a parameter, by the parameter's id.
_watching: "weakref.WeakValueDictionary[int, GradientReduction]" = (
    weakref.WeakValueDictionary())


def is_watched(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether some reduction watches one of these parameters."""
    return any(id(p) in _watching for p in parameters)


def parameters_of(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """All parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class GradientReduction:
    """See the head of this file."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: Options,
                 is_copy: bool = False):
        self.options = options
        self.backward_passes_per_step = options.backward_passes_per_step
        self._optimizer = weakref.ref(optimizer)
        # A rank that is alone in an elastic job may get company.
        process_set = options.process_set
        self.distributed = process_set.included() and (
            process_set.size() > 1 or basics.is_elastic())
        self._reducer = Reducer(options.compression, options.op,
                                options.predivide, options.sparse_as_dense,
                                options.bucket_bytes is None, process_set)
        self._buckets = (None if options.bucket_bytes is None else Buckets(
            options.bucket_bytes))
        # By parameter or bucket: the function that ends its reduction.
        self._pending: Dict[Any, Optional[Callable[[], None]]] = {}
        # Backward passes still to come before a gradient is reduced, of each
        # parameter that is watched.
        self._passes_left: Dict[torch.Tensor, int] = {}
        self._hooks: Dict[torch.Tensor, Any] = {}
        self._guards = Guards(self._accessed)
        # Parameters that are in a bucket or will never be in one.
        self._settled: Set[torch.Tensor] = set()
        self._synchronized = _NOT
        self._count = 0  # of synchronize() in this step
        self._complete = False  # some gradient had its last pass in this step
        # Gradients that were read between two passes: (version, sums).
        self._read_early: Dict[torch.Tensor, Any] = {}
        # With op=Sum: hooks of parameters whose .grad may be a result.
        self._results: Dict[torch.Tensor, Any] = {}
        # Results as they were, by parameter, in a step in which some rank could
        # not notice that others read them; None in other steps.
        self._read: Optional[Dict[torch.Tensor, Any]] = None
        self._epoch = basics.joins()
        self._joins = _native.library().counts["join"]
        self._steps = 0  # since _forget()
        self._superseded = False
        self._ids: List[int] = []
        self._names: Dict[torch.Tensor, str] = {}
        # A copy that has not been used: other ranks may not have made it.
        self._asleep = self.distributed and is_copy
        if self.distributed:
            self._be_called(0 if is_copy else self._take_over(options.names))
            self._ids = [id(p) for p in parameters_of(optimizer)]
            self._watch()

    def _be_called(self, number: int) -> None:
        """Names the operations. number: see _take_over()."""
        self._number = number
        self._prefix = f"{_PREFIX}#{number}" if number else _PREFIX
        self._names = {p: f"{self._prefix}.{name}"
                       for p, name in self.options.names.items()}

    def _wake(self) -> bool:
        """The first use of a copy, on all ranks. Returns whether this is it."""
        if not self._asleep:
            return False
        self._asleep = False
        self._be_called(self._take_over(self.options.names))
        return True

    def wake_anew(self) -> None:
        """The same, by a use that is not about earlier gradients."""
        if self._asleep:
            self._guards.release()
            self._pending.clear()
            self._read_early.clear()
            self._reset_passes()
            self._wake()

    # --- Which parameters -------------------------------------------------------

    def _take_over(self, names: Dict[torch.Tensor, str]) -> int:
        """Ends other reductions' watch over these parameters; returns this
        optimizer's number: how many were made before it with a parameter of
        the same name.

        An optimizer that replaces another one has its number.
        """
        others = {_watching.get(id(p)) for p in names} - {None, self}
        for other in others:
            if other.pending:
                raise ValueError(
                    "DistributedOptimizer: another one is reducing gradients of "
                    f"the same parameters ({other._first_pending()!r} among "
                    "them); call its step() or synchronize() first")
        for other in others:
            for parameter in names:
                other._unwatch(parameter)
            other._superseded = True
        replaced = [o._number for o in others if not o._passes_left]
        if replaced:
            return min(replaced)
        # Of this process set: other ranks make no optimizers for it.
        counts = _native.library().counts
        kinds = [("parameter", id_of(self.options.process_set), name)
                 for name in names.values()]
        number = max((counts[kind] for kind in kinds), default=0)
        for kind in kinds:
            counts[kind] = number + 1
        return number

    def _watch(self) -> None:
        """Adds a hook to each parameter that needs a gradient and has none, and
        a guard to those that do not need one yet."""
        fresh = []
        for parameter in self._names:
            if parameter in self._passes_left:
                continue
            if parameter.requires_grad:
                fresh.append(parameter)
            elif self._guards.could_add(parameter):
                self._guards.add(parameter)
        if not fresh:
            return
        # Weak, so that an optimizer that was replaced stops reducing.
        method = weakref.WeakMethod(self._on_grad)

        @not_compiled
        def hook(parameter: torch.Tensor) -> None:
            on_grad = method()
            if on_grad is not None:
                on_grad(parameter)

        for parameter in fresh:
            try:
                self._guards.add(parameter)
            except TypeError as error:
                raise ValueError(
                    f"DistributedOptimizer: {self._names[parameter]!r} is a "
                    f"{type(parameter).__name__}, expected a torch.Tensor or "
                    f"torch.nn.Parameter: {error}") from None
            self._passes_left[parameter] = self.backward_passes_per_step
            self._hooks[parameter] = on_gradient(parameter, hook)
            _watching[id(parameter)] = self

    def _unwatch(self, parameter: torch.Tensor) -> None:
        if self._passes_left.pop(parameter, None) is not None:
            del self._hooks[parameter]
            _watching.pop(id(parameter), None)
        self._guards.remove(parameter)
        self._names.pop(parameter, None)

    def follow_groups(self) -> None:
        """Notices parameters that were added to the optimizer's groups, and
        those that are gone."""
        if not self.distributed:
            return
        parameters = parameters_of(self._optimizer())
        ids = [id(p) for p in parameters]
        if ids == self._ids:
            return
        self._ids = ids
        gone = set(self._names) - set(parameters)
        for parameter in gone:
            self._unwatch(parameter)
            self.options.names.pop(parameter, None)
        if gone and self._buckets is not None:
            self._forget()
        taken = set(self.options.names.values())
        for g, group in enumerate(self._optimizer().param_groups):
            for i, parameter in enumerate(group["params"]):
                if parameter in self._names:
                    continue
                name = f"group{g}.{i}"
                while name in taken:
                    name += "+"
                taken.add(name)
                self.options.names[parameter] = name
                self._names[parameter] = f"{self._prefix}.{name}"
        self._watch()

    # --- Within backward() ------------------------------------------------------

    def _on_grad(self, parameter: torch.Tensor) -> None:
        passes = self._passes_left.get(parameter)
        if passes is None:
            return  # no longer watched
        if passes <= 0:
            raise AssertionError(self._too_often(parameter))
        self._passes_left[parameter] = passes - 1
        if not self._pending:
            self._begin(parameter)
        self._pending[parameter] = None
        self._synchronized = _NOT
        if passes > 1:
            self._read_early.pop(parameter, None)
            return
        self._complete = True
        if self._asleep:
            return
        bucket = self._bucket_of(parameter)
        if bucket is None:
            self._start(parameter)
            return
        bucket.computed()
        if bucket.missing == 0:
            self._start_bucket(bucket)

    def _begin(self, parameter: torch.Tensor) -> None:
        """The first gradient since synchronize()."""
        if not self._asleep:
            self._follow_job()
        self._guards.engage()

    def _keep_results(self) -> None:
        """With op=Sum: sees to it that no gradient is added to a result."""
        if self.options.op != Sum:
            return
        method = weakref.WeakMethod(self._before_grad)

        def hook_of(parameter: torch.Tensor) -> Callable[[Any], None]:
            key = weakref.ref(parameter)

            def hook(_: Any) -> None:
                before_grad, parameter = method(), key()
                if before_grad is not None and parameter is not None:
                    before_grad(parameter)

            return hook

        for parameter in self._passes_left:
            if parameter.requires_grad and parameter not in self._results:
                self._results[parameter] = parameter.register_hook(
                    hook_of(parameter))

    def _drop_results(self) -> None:
        while self._results:
            self._results.popitem()[1].remove()

    def _before_grad(self, parameter: torch.Tensor) -> None:
        """backward() is about to add to a .grad that may be a result."""
        hook = self._results.get(parameter)
        if hook is None:
            return
        if not _is_clear(grad_of(parameter)):
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was computed onto "
                "one that has been reduced in this step, which with op=Sum "
                "would be summed again; call all backward() of a step before "
                "synchronize() and before the gradients are read, clear the "
                "gradients in between, or use op=Average")
        hook.remove()
        del self._results[parameter]

    def _too_often(self, parameter: torch.Tensor) -> str:
        what = (f"the gradient of {self._names[parameter]!r} was computed more "
                f"than backward_passes_per_step={self.backward_passes_per_step}"
                " times before step(); ")
        if _in_checkpoint():
            return what + (
                "the parameter is used in several parts of the model that "
                "torch.utils.checkpoint computes again, and each computes its "
                "gradient apart; pass use_reentrant=False to checkpoint()")
        return what + ("increase backward_passes_per_step to accumulate "
                       f"gradients locally; {_OTHER_OPTIMIZER_HINT}")

    def _suffix(self) -> str:
        return f":{self._count + 1}" if self._count else ""

    def _start(self, parameter: torch.Tensor) -> None:
        try:
            self._pending[parameter] = self._reducer.start(
                parameter, self._names[parameter] + self._suffix())
        except AssertionError:
            # All ranks are here; without this the step could not be ended.
            self.abandon()
            raise

    def _bucket_of(self, parameter: torch.Tensor) -> Optional[Bucket]:
        return (None
                if self._buckets is None else self._buckets.of(parameter))

    def _start_bucket(self, bucket: Bucket) -> None:
        try:
            bucket.gather()
        except AssertionError:
            self.abandon()
            raise
        self._pending[bucket] = self._reducer.start_bucket(
            bucket, bucket.name + self._suffix())

    # --- Access by the program --------------------------------------------------

    def _accessed(self, parameter: torch.Tensor, value: Any) -> None:
        """Called before the program reads or sets parameter.grad, while
        gradients are pending."""
        if _in_backward():
            self._accessed_in_backward(parameter)
        elif self._complete:
            if value is READ or _is_clear(value):
                self._synchronize(_BY_ACCESS)
                self._keep_results()
            elif parameter in self._pending:
                raise AssertionError(
                    f"the gradient of {self._names[parameter]!r} was replaced on "
                    "this rank while it was reduced, by another one than zeros; "
                    "call synchronize() before you set .grad, or read .grad, "
                    "which waits for the ranks' result")
            # Otherwise the value is this rank's gradient, reduced with the rest.
        elif parameter not in self._read_early:
            # More passes may follow, or this is the step's last one.
            self._read_early[parameter] = _fingerprint(grad_of(parameter))

    def _accessed_in_backward(self, parameter: torch.Tensor) -> None:
        """In a hook of the program's."""
        finish = self._pending.get(parameter)
        if finish is not None:
            self._pending[parameter] = _nothing
            finish()
        elif self._passes_left.get(parameter, 1) <= 0:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was accessed in "
                "backward(), while it waits for the others of its bucket; do "
                "this after backward(), or leave gradient_as_bucket_view out")

    def _check_unchanged(self, parameter: torch.Tensor) -> None:
        """Raises AssertionError if the program has changed a gradient that is
        not reduced yet."""
        seen = self._read_early.get(parameter)
        if seen is None:
            return
        grad = grad_of(parameter)
        if grad is not None and not _same(seen, _fingerprint(grad)):
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was changed on this "
                "rank before it was reduced, after fewer backward passes than "
                f"backward_passes_per_step={self.backward_passes_per_step}; "
                "call synchronize() before you change gradients, and step() "
                "within skip_synchronize()")

    # --- The end of a step ------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether gradients have been computed and not synchronized."""
        return bool(self._pending) and not self._asleep

    def _first_pending(self) -> str:
        first = next(iter(self._pending))
        return first.name if isinstance(first, Bucket) else self._names[first]

    def synchronize(self) -> None:
        """See DistributedOptimizer()."""
        self._synchronize(_BY_PROGRAM)
        self._keep_results()

    @not_compiled
    def _synchronize(self, how: int) -> None:
        self._guards.release()
        first_error: Optional[Exception] = None
        doubtful = False
        try:
            doubtful = self._start_the_rest(how)
        except Exception as error:  # pylint: disable=broad-except
            first_error = error
        first_error = self._finish_all() or first_error
        self._read_early.clear()
        self._reset_passes()
        self._count += 1
        self._steps += 1
        self._synchronized = how
        if first_error is not None:
            self._forget()
            raise first_error
        self._reducer.settle()
        self._fill_buckets()
        self._read = ({p: _fingerprint(grad_of(p)) for p in self._names
                       if how == _BY_ACCESS} if doubtful else None)

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

    def _start_the_rest(self, how: int) -> bool:
        """Returns whether some rank waits because its program read gradients,
        and some rank without a gradient could not notice whether its own did."""
        if not self.distributed:
            return False
        unaware = how == _BY_STEP and not self._pending
        was_asleep = self._wake()
        self.follow_groups()
        self._watch()  # in case some were unfrozen
        if was_asleep or not self._pending:
            self._follow_job()
        for parameter in self._read_early:
            self._check_unchanged(parameter)
        for bucket in self._buckets or ():
            if bucket not in self._pending and bucket.active():
                self._start_bucket(bucket)
        alone = [
            p for p in self._passes_left
            if p.requires_grad and self._bucket_of(p) is None
        ]
        # By name: the optimizers of the ranks may have another order.
        doubtful = self._reducer.learn_layouts(
            sorted(alone, key=self._names.__getitem__),
            f"{self._prefix}:layouts{self._suffix()}",
            self._pending, how == _BY_ACCESS, unaware)
        for parameter in alone:
            if (self._pending.get(parameter) is None
                    and self._reducer.is_used(parameter)):
                self._start(parameter)
        return doubtful

    def _check_all_waited(self) -> None:
        """Raises AssertionError on all ranks if the program has changed results
        on one and may not have done so on another."""
        changed = 0
        for i, (parameter, seen) in enumerate(self._read.items()):
            now = _fingerprint(grad_of(parameter))
            if not (seen is None and now is None or
                    now is not None and _same(seen, now)):
                changed = i + 1
                break
        self._read = None
        number = torch.tensor([changed], device="cpu")
        changed = int(synchronize(
            allreduce_async_(number, None,
                             f"{self._prefix}:changed{self._suffix()}", Max,
                             process_set=self.options.process_set)))
        if changed:
            self.end_step()
            raise AssertionError(
                "the gradient of "
                f"{list(self._names.values())[changed - 1]!r} was changed between "
                "backward() and step() on a rank, while another rank had "
                "computed no gradient in this step, and so had nothing to wait "
                "for when its program read .grad; call synchronize() on all "
                "ranks before you change gradients, and step() within "
                "skip_synchronize()")

    def before_step(self) -> None:
        """step() is about to use the gradients."""
        if self._superseded:
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
                raise ValueError(
                    "step() after synchronize() would sum the gradients, which "
                    "are sums already; call step() within the context "
                    "optimizer.skip_synchronize()")
        if self._synchronized != _BY_ACCESS:
            self._synchronize(_BY_STEP)
        if self._read is not None:
            self._check_all_waited()

    def before_closure(self) -> None:
        """A closure is about to compute gradients."""
        if self._pending:
            self.synchronize()
        self.end_step()

    def end_step(self) -> None:
        """step() has used the gradients, or zero_grad() has cleared them."""
        self._synchronized = _NOT
        self._count = 0
        self._read = None
        self._drop_results()

    def before_zero_grad(self) -> None:
        """Raises AssertionError while gradients are being reduced."""
        self.wake_anew()
        if self._pending:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or "
                f"synchronize(), while gradients are being reduced ("
                f"{self._first_pending()!r} among them); call step() or "
                f"synchronize() first; {_OTHER_OPTIMIZER_HINT}")
        self._watch()  # those that were unfrozen since the last step
        self.end_step()

    @contextlib.contextmanager
    def zeroing(self) -> Any:
        """Around the optimizer's own zero_grad(): keeps gradients in their
        buckets."""
        self.before_zero_grad()
        if self._buckets is None:
            yield
            return
        self._buckets.detach()
        yield
        self._buckets.zero()

    def reduced_loss(self, loss: Any) -> Any:
        """The ranks' losses, reduced as their gradients are."""
        if not self.distributed:
            return loss
        return self._reducer.reduced_loss(loss, f"{self._prefix}:loss")

    def set_passes(self, passes: int) -> None:
        """How many backward passes are accumulated from the next step on."""
        self.backward_passes_per_step = passes
        self.options.backward_passes_per_step = passes
        self._reset_passes()

    def _reset_passes(self) -> None:
        self._complete = False
        for parameter in self._passes_left:
            self._passes_left[parameter] = self.backward_passes_per_step
        for bucket in self._buckets or ():
            bucket.reset()

    def abandon(self) -> None:
        """Ends a step whose epoch is over: waits for the reductions that are
        under way, whatever their outcome, and starts no others. The gradients
        are undefined then."""
        self._guards.release()
        self._finish_all()
        self._read_early.clear()
        self._reset_passes()
        self._forget()
        self.end_step()

    # --- What the first step has taught -------------------------------------------

    def _fill_buckets(self) -> None:
        """Moves gradients that were reduced alone into buckets."""
        if self._buckets is None:
            return
        fresh = [
            p for p in self._passes_left
            if p not in self._settled and p.requires_grad
            and p.grad is not None
        ]
        self._settled.update(fresh)
        places = [p for p in fresh if self._reducer.fits_bucket(p)]
        self._buckets.add(places, self._names, self._reducer.order_of)

    def _forget(self) -> None:
        """Begins again as in the first step."""
        self._steps = 0
        self._reducer.forget()
        if self._buckets is not None:
            self._buckets.drop()
            self._settled.clear()

    def _follow_job(self) -> None:
        """Forgets what other ranks may not know."""
        joins = _native.library().counts["join"]
        if self._epoch != basics.joins():
            # Buckets of an earlier epoch are not in this epoch's shared memory,
            # and its ranks were others.
            self._epoch, self._joins = basics.joins(), joins
            self._forget()
        elif self._joins != joins:
            self._joins = joins
            if not self._all_know_the_same():
                self._forget()

    def _all_know_the_same(self) -> bool:
        """Compares what the ranks know, in one small allreduce."""
        known = [self._reducer.knowledge(self.options.names)]
        known += [bucket.layout(self.options.names)
                  for bucket in self._buckets or ()]
        if self._reducer.has_state:
            known.append(self._steps)
        digest = zlib.crc32(repr(known).encode())
        both = torch.tensor([digest, -digest], device="cpu")
        highest, lowest = synchronize(
            allreduce_async_(both, None, f"{self._prefix}:known", Max,
                             process_set=self.options.process_set)).tolist()
        return highest == -lowest


def _nothing() -> None:
    """Ends a reduction that has ended."""


def _is_clear(grad: Optional[torch.Tensor]) -> bool:
    """Whether it is None or has zeros only."""
    if grad is None:
        return True
    values = grad.coalesce().values() if grad.is_sparse else grad
    return not values.detach().bool().any()


def _in_backward() -> bool:
    """Whether this thread is within backward(), in a hook."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(_nothing)
        return True
    except RuntimeError:
        return False


def _in_checkpoint() -> bool:
    """Whether this thread is in the backward() that reentrant checkpointing
    makes within another one."""
    return any(frame.f_code.co_filename == _CHECKPOINT
               for frame, _ in traceback.walk_stack(None))


_CHECKPOINT = inspect.getfile(torch.utils.checkpoint)


def _fingerprint(grad: Optional[torch.Tensor]) -> Any:
    """What changes if the values do: (the tensor's version, two sums)."""
    if grad is None:
        return None
    with torch.no_grad():
        values = grad.coalesce().values() if grad.is_sparse else grad
        return grad._version, values.sum(), values.abs().sum()


def _same(a: Any, b: Any) -> bool:
    # A version that has not changed proves nothing: .grad.data has another one.
    return a is not None and all(
        bool((x == y) | ((x != x) & (y != y))) for x, y in zip(a[1:], b[1:]))
