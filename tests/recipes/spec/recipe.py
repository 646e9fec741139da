"""Recipe: a training program as a point in a space of named dimensions.

    recipe = Recipe(optimizer="Adam", scheduler="StepLR", made="before").normal()
    json.dumps(recipe.differences())      # {"optimizer": "Adam", ...}: only what is not the simplest
    Recipe.of({"optimizer": "Adam"})      # back

DIMENSIONS has every dimension with its values; the first is the simplest one and the default. normal() resets a
dimension to its default where the others make it meaningless or where no reference is defined, so that any
combination of values leads to a program. REFUSABLE has the values that Maypole may refuse with an error; a program
without any of them must end equal to one process, except for those that refusable() has.

Thread contract: values that never change.
"""

import dataclasses
from typing import Any, Dict, List, Tuple

STEPS, EPOCHS = 4, 2

# In a comment: what a program with this value does.
DIMENSIONS: Dict[str, Tuple[Any, ...]] = {
    # --- the model
    # words: an embedding with sparse gradients. tied: one matrix in two layers.
    "model": ("dense", "convolution", "embedding", "words", "batch_norm", "tied"),
    "dtype": ("float64", "float32", "bfloat16"),
    "grad_dtype": ("same", "float32"),  # of the gradients of bfloat16 parameters; newest torch
    # transposed: strides of the first matrix are those of its transpose.
    "memory": ("plain", "channels_last", "transposed"),
    # fixed: the first parameter has no gradient. until, since: it has none until, or from, the third step on. one_rank:
    # it has none on the last rank.
    "frozen": ("no", "fixed", "until", "since", "one_rank"),
    # Who uses a branch of the model. some: another rank in each step. late: nobody until the third step, then the
    # last rank. seldom: rank 0 in every third step. nobody: it is never used. idle: everybody uses it, but in each
    # step another rank computes no gradient at all.
    "usage": ("all", "some", "late", "seldom", "nobody", "idle"),
    "checkpoint": ("no", "reentrant", "plain"),
    "compiled": (False, True),
    # --- the optimizer
    "optimizer": ("SGD", "momentum", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "Adagrad", "RMSprop",
                  "Rprop", "ASGD", "LBFGS", "SparseAdam"),
    "kernel": ("default", "foreach", "loop", "fused"),
    # two: biases are a group of their own. added: the branch is added to the wrapped optimizer.
    "groups": ("one", "two", "added"),
    "closure": (False, True),
    # Another optimizer around it (lookahead, sam), or in the DistributedOptimizer (inner_...).
    "outer": ("none", "lookahead", "sam", "inner_lookahead", "inner_sam"),
    # --- what wraps it, in which order
    "scheduler": ("none", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "CosineAnnealingLR",
                  "LambdaLR", "MultiplicativeLR", "PolynomialLR", "OneCycleLR", "CyclicLR",
                  "CosineAnnealingWarmRestarts", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau", "SWALR"),
    "made": ("after", "before"),  # the scheduler, in relation to the DistributedOptimizer
    # equal: all ranks make the same model. broadcast: rank 0's, before or after wrapping. resume: a checkpoint is
    # loaded on all ranks, or on rank 0, which broadcasts; before or after wrapping. resume_some: the optimizer's
    # state is loaded on rank 0 only. unequal: other weights on each rank; unequal_rate: other learning rates.
    "start": ("equal", "broadcast", "broadcast_first", "resume", "resume_first", "resume_root", "resume_root_first",
              "resume_some", "unequal", "unequal_rate"),
    # What happens after the first epoch. states: states go through torch.save and back. rebuilt: into new objects.
    # average: a deep copy of the model is evaluated. The others: model, optimizer and scheduler are copied in this
    # way, and the copies are trained further; optimizer: a copy of the optimizer is made and dropped.
    "copied": ("no", "states", "rebuilt", "average", "optimizer", "deepcopy", "pickle", "save"),
    # by_rank: each rank gives its parameters other names.
    "named": (True, False, "by_rank"),
    # The optimizer has its parameters in another order on each rank.
    "shuffled": (False, True),
    # --- options of DistributedOptimizer
    "op": ("Average", "Sum", "Adasum"),
    "buckets": ("no", "one", "small"),
    "compression": ("none", "fp16", "bf16", "powersgd"),  # powersgd: only compared between ranks
    "predivide": (1.0, 2.0),
    "subset": (False, True),  # the optimizer is of a process set without the last rank
    "as_dense": (False, True),  # sparse_as_dense
    # --- the step
    # two: two micro-batches, the second without the branch. losses: two losses with a backward() each.
    "passes": ("one", "two", "losses"),
    "declared": (True, False),  # backward_passes_per_step is right
    "synchronize": (False, True),
    # early: without synchronize().
    "clip": ("no", "norm", "value", "early_norm", "early_value"),
    # model: model.zero_grad(). hand: p.grad = None. after: optimizer.zero_grad() after step().
    "zero_grad": ("default", "none", "zeros", "model", "hand", "after"),
    # halved: a gradient is multiplied in place after synchronize(); early: before it. written: the branch, which is
    # not used, gets a gradient without backward(), another one on each rank. kept: in the third step the last rank
    # multiplies a tensor that was a gradient in the step before.
    "by_hand": ("no", "halved", "written", "early", "kept"),
    # A gradient scaler; in the third step the gradients of the last rank overflow. early: without synchronize().
    "scaler": ("no", "yes", "early"),
    # A second model with its optimizer. after: step by step, one after the other. interleaved: both backward(), then
    # both step(). crossed...: in an order that differs between ranks; crossed_forward: only the forward passes.
    # shared: one loss, of the sum of both models. adversarial: a loss of the second model, beside the first one's
    # values, and then one of both, for the first model, while the second is frozen (adversarial_open: it is not).
    "second": ("none", "after", "interleaved", "crossed", "crossed_interleaved", "crossed_forward", "shared",
               "adversarial", "adversarial_open"),
    "same_names": (False, True),  # the parameters of both have the same names
    # --- events
    # join: the last rank has fewer batches. first: it has none in the first epoch; ever: none at all. one_skips: a
    # rank skips a batch. The epoch ends with join(), and broadcasts from the rank that joined last, unless
    # joined is "bare".
    "uneven": ("no", "join", "first", "ever", "one_skips"),
    "joined": ("broadcast", "bare"),
    # before: all ranks skip a batch. after: after backward(), without step().
    "skipped": ("no", "before", "after"),
    # An elastic job, of which the last rank dies in the middle of a step. death: the others go on, and another process
    # may come late. replaced: they wait for it before the seventh step.
    "elastic": ("no", "death", "replaced"),
}

# What may end with an error on every rank. With (dimension, value) of a program in it, an error is an allowed end.
REFUSABLE = {
    ("start", "resume_some"), ("start", "unequal"), ("start", "unequal_rate"),
    ("frozen", "one_rank"), ("named", "by_rank"), ("shuffled", True),
    ("declared", False),
    ("second", "interleaved"), ("second", "crossed"), ("second", "crossed_interleaved"),
    ("second", "adversarial_open"),
    ("skipped", "after"),
    ("joined", "bare"),
    ("by_hand", "kept"),
    ("checkpoint", "reentrant"),
}

# Those whose effect is not proportional to the gradient: a rounding error of a small gradient is a large one of the step.
_NORMALIZING = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "Adagrad", "RMSprop", "Rprop", "LBFGS",
                "SparseAdam"}
_OUTER_STEPS = {"sam", "inner_sam"}

# Ranks begin differently, and no end is right but an error.
UNEQUAL = ("resume_some", "unequal", "unequal_rate")

_Fields = dataclasses.make_dataclass(
    "_Fields", [("data", int, dataclasses.field(default=0))] +
    [(name, type(values[0]), dataclasses.field(default=values[0])) for name, values in DIMENSIONS.items()], frozen=True)


class Recipe(_Fields):
    """See the head of this file. data: the seed of weights and batches."""

    @staticmethod
    def of(differences: Dict[str, Any]) -> "Recipe":
        """Raises ValueError for what is not a value of a dimension."""
        for name, value in differences.items():
            if name != "data" and value not in DIMENSIONS.get(name, ()):
                raise ValueError(f"recipe: {name}={value!r}, expected one of {DIMENSIONS.get(name, 'the dimensions')}")
        return Recipe(**differences)

    def differences(self) -> Dict[str, Any]:
        """The values that are not the simplest of their dimension."""
        values = {name: getattr(self, name) for name in DIMENSIONS if getattr(self, name) != DIMENSIONS[name][0]}
        return {"data": self.data, **values}

    def replace(self, **values: Any) -> "Recipe":
        return dataclasses.replace(self, **values)

    def refusable(self) -> List[str]:
        """The values that allow an error, as "dimension=value"."""
        values = [f"{name}={value}" for name, value in sorted(REFUSABLE, key=str) if getattr(self, name) == value]
        if self.usage == "idle" and self.changes_early():
            # A rank that has computed nothing cannot know that there is something to wait for.
            values.append("usage=idle")
        if self.second == "crossed_forward" and self.model == "batch_norm":
            values.append("second=crossed_forward")  # statistics are exchanged in forward()
        return values

    def changes_early(self) -> bool:
        """Whether gradients are changed between backward() and step(), without synchronize()."""
        return self.clip.startswith("early") or "early" in (self.by_hand, self.scaler)

    def normal(self) -> "Recipe":
        """The same program without values that have no meaning, or no reference, beside the others."""
        recipe = self
        for _ in range(4 * len(DIMENSIONS)):
            change = next(((name, value) for name, value in _conflicts(recipe) if getattr(recipe, name) != value), None)
            if change is None:
                return recipe
            # One after the other, because a change can end another conflict.
            recipe = recipe.replace(**dict([change]))
        raise AssertionError(f"recipe: the rules contradict each other for {self.differences()}")


def _conflicts(r: Recipe):
    """(dimension, value) that the other dimensions ask for; the earlier ones matter more."""
    if r.elastic != "no":
        for name in ("closure", "outer", "start", "copied", "subset", "declared", "second", "uneven", "skipped", "shuffled",
                     "compiled", "by_hand"):
            yield name, DIMENSIONS[name][0]
        if r.op == "Adasum":
            yield "optimizer", "SGD"  # whose state the ranks have after a change is another one's
        if r.clip.startswith("early"):
            yield "clip", "no"
        if r.frozen == "one_rank":
            yield "frozen", "no"
        if r.usage in ("late", "seldom"):
            yield "usage", "some"  # what ranks of another epoch know of earlier steps is not defined
        if r.named == "by_rank":
            yield "named", True
        if r.groups == "added":
            yield "groups", "one"
        if r.optimizer == "LBFGS":
            yield "optimizer", "SGD"
        if r.dtype == "bfloat16":
            yield "dtype", "float64"
        if r.zero_grad == "after":
            yield "zero_grad", "default"
    if r.uneven == "no":
        yield "joined", "broadcast"
    if r.joined == "bare":
        yield "copied", "no"
    if r.outer != "none":
        yield "uneven", "no"  # slow weights, or those of an ascent, of a rank that has joined are nobody's to broadcast
    if r.optimizer == "SparseAdam":
        yield "model", "words"
        yield "usage", "idle" if r.usage == "idle" else "all"
        yield "frozen", "no"
        yield "groups", "one"
        yield "by_hand", "no"
        yield "as_dense", r.as_dense and r.buckets == "no"  # in buckets they stay dense, as documented
    if r.model == "words":
        if r.optimizer not in ("SGD", "SparseAdam", "Adagrad"):
            yield "optimizer", "SGD"
        if r.kernel != "default":
            yield "kernel", "default"
        if r.clip not in ("no",):
            yield "clip", "no"  # torch 1.13 clips no sparse gradients
        yield "scaler", "no"
        yield "outer", "none"
        yield "dtype", "float64"
        yield "compression", "none"
        yield "passes", "one"
        yield "op", "Sum" if r.op == "Sum" else "Average"
    else:
        yield "as_dense", False
    if r.model == "batch_norm":
        # Its reference is one forward pass over the whole batch.
        yield "usage", "all" if r.usage not in ("nobody",) else "nobody"
        yield "uneven", "no"
        yield "subset", False
        yield "checkpoint", "no"
        yield "dtype", "float64"
        yield "op", "Sum" if r.op == "Sum" else "Average"
    if r.memory == "channels_last" and r.model != "convolution":
        yield "memory", "plain"
    if r.memory == "transposed" and r.model not in ("dense", "tied", "batch_norm"):
        yield "memory", "plain"
    if r.model in ("embedding", "words") and r.checkpoint == "reentrant":
        yield "checkpoint", "plain"
    if r.frozen != "no" and r.checkpoint == "reentrant":
        yield "checkpoint", "plain"
    if r.optimizer == "LBFGS":
        yield "closure", True
        yield "groups", "one"
        yield "frozen", "no"
        yield "outer", "none"
        yield "scaler", "no"
        yield "named", True
        yield "op", "Average"
        yield "compression", "none"
        yield "usage", "all"
        yield "uneven", "no"
        yield "second", "none" if r.second != "after" else "after"
        if r.start.startswith(("broadcast", "resume")):
            yield "start", "equal"  # broadcast_optimizer_state refuses LBFGS
        if r.copied != "no":
            yield "copied", "no"  # it keeps gradients in its state
        yield "kernel", "default"
        yield "memory", "plain"  # torch 1.13 takes no gradients with strides of their own
    if r.optimizer in _NORMALIZING:
        yield "dtype", "float64"
        yield "compression", "none"
    if r.kernel == "fused" and r.optimizer not in ("SGD", "momentum", "Adam", "AdamW", "Adagrad"):
        yield "kernel", "default"
    if r.dtype == "bfloat16":
        yield "compression", "none"
        yield "outer", "none"
        yield "optimizer", "SGD"
        yield "op", "Average"
    if r.op == "Adasum":
        # Each rank makes its own step; what the ranks have in common is only the step's result.
        yield "synchronize", False
        yield "predivide", 1.0
        yield "buckets", "no"
        yield "compression", "none"
        yield "uneven", "no"
        yield "scaler", "no"
        yield "outer", "none"
        yield "second", "none"
        # Not Adam: two steps of equal length in opposite directions have an Adasum of 0, of which rounding makes a
        # direction in the next level of the tree.
        yield "optimizer", "SGD" if r.optimizer != "momentum" else r.optimizer
        yield "groups", "one" if r.groups == "added" else r.groups
        yield "declared", True
        yield "by_hand", "no"
        yield "shuffled", False
        yield "named", True
        if r.frozen == "one_rank":
            yield "frozen", "no"
        if r.start in ("resume_some", "unequal_rate"):
            yield "start", "resume"
        if r.clip.startswith("early"):
            yield "clip", "no"
        if r.skipped == "after":
            yield "skipped", "no"
        if r.usage == "idle":
            yield "clip", "no"  # nothing to clip is an error of newer torch
    if r.op != "Average":
        yield "predivide", 1.0
    if r.closure:
        # The closure is zero_grad(), forward and backward(); step() reduces.
        yield "synchronize", False
        yield "scaler", "no"
        yield "by_hand", "written" if r.by_hand == "written" and r.optimizer != "LBFGS" else "no"
        yield "skipped", "before" if r.skipped == "before" else "no"
        yield "passes", "one"
        yield "outer", "none" if r.outer in _OUTER_STEPS else r.outer
        yield "clip", "no"
        yield "zero_grad", "default" if r.zero_grad == "after" else r.zero_grad
        yield "second", "none" if r.second not in ("after", "crossed") else r.second
    if r.outer in _OUTER_STEPS:
        yield "scaler", "no"
        yield "clip", "no"
        yield "by_hand", "no"
        yield "skipped", "before" if r.skipped == "before" else "no"
        yield "passes", "one"
        yield "synchronize", False
        yield "zero_grad", "default"
        yield "second", "none" if r.second not in ("after",) else r.second
        yield "copied", "no" if r.copied not in ("average",) else r.copied
        yield "start", "equal" if r.start.startswith("resume") else r.start
        if r.usage == "idle":
            yield "usage", "all"
    if r.outer == "inner_sam" and r.start.startswith("broadcast"):
        yield "start", "equal"
    if r.outer in ("lookahead", "inner_lookahead"):
        yield "copied", "no" if r.copied not in ("average",) else r.copied
        yield "start", "equal" if r.start.startswith("resume") else r.start
    if r.outer != "none":
        yield "groups", "one" if r.groups == "added" else r.groups
        yield "scheduler", "none"
        yield "scaler", "no"
        yield "skipped", "before" if r.skipped == "before" else "no"
    if r.dtype != "bfloat16":
        yield "grad_dtype", "same"
    if r.grad_dtype != "same":
        yield "copied", "no" if r.copied not in ("states", "optimizer") else r.copied  # a copied parameter is without it
    if r.scheduler == "none":
        yield "made", "after"
    if r.scheduler == "CyclicLR":
        # torch 1.13 cannot pickle it.
        yield "start", "equal" if r.start.startswith("resume") else r.start
        yield "copied", "no" if r.copied not in ("average", "optimizer") else r.copied
    if r.optimizer == "Adagrad":
        yield "groups", "one" if r.groups == "added" else r.groups  # it makes its state at the start
    if r.groups == "added" and r.scheduler != "none":
        yield "groups", "one"  # torch's schedulers do not know groups that come later
    if r.groups == "added" and r.copied in ("rebuilt",):
        yield "copied", "no"
    if r.groups == "added" and r.start.startswith("resume"):
        yield "start", "equal"
    if r.scheduler == "SWALR" and r.groups == "two":
        yield "groups", "one"
    if r.clip in ("norm", "value") and r.op != "Adasum":
        yield "synchronize", True
    if r.clip.startswith("early"):
        yield "scaler", "no"
        yield "by_hand", "no" if r.by_hand != "written" else r.by_hand
    if r.by_hand == "early":
        yield "scaler", "no"
        yield "clip", "no"
    if r.scaler == "early":
        yield "clip", "no"
        yield "by_hand", "no"
    if r.usage == "idle" and r.by_hand == "early":
        yield "by_hand", "no"  # there is no gradient to multiply
    if r.changes_early():
        yield "synchronize", False
    if r.by_hand == "kept":
        # It changes gradients while they are reduced, not their sum.
        yield "clip", "no"
        yield "scaler", "no"
        yield "synchronize", False
        yield "by_hand", "no" if r.op == "Adasum" or r.outer in _OUTER_STEPS else "kept"
    if r.by_hand == "halved" or r.scaler == "yes":
        yield "synchronize", True
    if r.by_hand == "written":
        yield "usage", "nobody"
        yield "scaler", "no"
        yield "groups", "one" if r.groups == "added" else r.groups
        yield "zero_grad", "default" if r.zero_grad == "after" else r.zero_grad
    if r.compression == "powersgd":
        yield "buckets", "no"
    if r.compression != "none":
        yield "op", "Average"  # sums make larger steps, and those make large differences of small ones
        yield "scaler", "no"
        yield "clip", "no" if r.clip.endswith("norm") else r.clip
    if r.passes == "one":
        yield "declared", True
    if r.second == "none":
        yield "same_names", False
    if r.second != "none":
        yield "uneven", "no"
        yield "copied", "no"
        yield "skipped", "no"
        yield "start", "broadcast" if r.start.startswith(("resume", "unequal")) else r.start
        yield "named", True
        yield "shuffled", False
        yield "frozen", "no" if r.frozen == "one_rank" else r.frozen
        yield "groups", "one" if r.groups == "added" else r.groups
    if r.uneven != "no":
        yield "passes", "one"
        yield "scaler", "no"
        yield "skipped", "no"
        yield "subset", False
        yield "frozen", "no" if r.frozen == "one_rank" else r.frozen
        yield "start", "equal" if r.start in UNEQUAL else r.start
    if r.subset:
        yield "start", "equal" if r.start in UNEQUAL else r.start
        yield "frozen", "no" if r.frozen == "one_rank" else r.frozen
    if r.skipped != "no":
        yield "zero_grad", "default" if r.zero_grad == "after" else r.zero_grad
    if r.model == "words" and r.buckets != "no":
        yield "zero_grad", "default" if r.zero_grad not in ("default", "after") else r.zero_grad
    if r.copied not in ("no", "average", "optimizer", "states"):
        yield "usage", "all" if r.usage == "seldom" else r.usage  # what a copy knows of earlier steps is not defined
    if r.shuffled:
        yield "named", True  # without names, the order is all there is
        yield "groups", "one" if r.groups == "added" else r.groups
        if r.start.startswith("resume") or r.start.startswith("broadcast"):
            yield "start", "equal"  # states are matched by the parameters' order
        yield "uneven", "no"
        yield "optimizer", "SGD" if r.optimizer == "LBFGS" else r.optimizer
        yield "copied", "no"
    if r.frozen == "one_rank":
        yield "checkpoint", "no"
        yield "copied", "no"
    if r.compiled:
        if r.model == "words":
            yield "compiled", False  # compiled, its gradients are dense
        yield "checkpoint", "no"
        yield "copied", "no"
