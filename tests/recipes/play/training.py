"""Training: plays a recipe in a world, as a user's script would.

    for moment in Training(recipe, world).moments():
        moment.label, moment.values, moment.digest

A moment is the state after a step (label 'epoch.step') or after something else that changes it. values: parameters,
buffers and learning rates, which one process has, too. digest: of the bits of these and of the optimizer's state, for
comparison between ranks.

Trainee is a model with its optimizer and scheduler; some recipes have two.

Thread contract: one thread.
"""

import collections
import copy
import hashlib
import io
import pickle

import torch

import models
from optimizers import advance, make_optimizer, make_scheduler
from recipe import EPOCHS, STEPS
from worlds import Alone, batches, is_idle, uses_branch
from wrappers import Ascent, Lookahead, scaler

Moment = collections.namedtuple("Moment", "label values digest")
# count: steps so far, in all epochs. turn: which of the epoch's batches that a rank has.
Now = collections.namedtuple("Now", "epoch turn count")


class _Alone:
    """The world of the process that has written the checkpoint, which was no job."""

    batch_norm = torch.nn.BatchNorm1d


class Trainee:
    def __init__(self, recipe, world, number):
        self.recipe, self.world, self.number = recipe, world, number
        self.known = {}
        self.ahead = {}  # losses that were computed before backward(), by part
        self.scaler = scaler() if recipe.scaler != "no" else None
        self.frozen = []
        self.partner = None  # another trainee, whose model's result is added to this one's
        self.is_detached = False  # the partner's result is
        self.kept = None
        unequal = recipe.start.startswith(("broadcast", "resume_root")) or recipe.start == "unequal"
        seed = recipe.data + 77 * number
        self.model = models.make(recipe, world.seed(seed) if unequal else seed, world.batch_norm,
                                 world.distributed and world.rank == world.hvd.size() - 1)
        self._build()
        if recipe.compiled:
            self.model = torch.compile(self.model, backend="eager")

    # --- Before the first step

    def _build(self):
        recipe, world = self.recipe, self.world
        self.optimizer = make_optimizer(recipe, self.model, world.rank)
        start = recipe.start
        if start.endswith("_first"):
            self._begin(start[:-len("_first")])
        self.scheduler = make_scheduler(recipe, self.optimizer) if recipe.made == "before" else None
        self.optimizer = world.wrap(self.optimizer, self._names(), recipe)
        if recipe.groups == "added":
            self.optimizer.add_param_group({"params": list(self.model.branch.parameters())})
        if recipe.made == "after":
            self.scheduler = make_scheduler(recipe, self.optimizer)
        if not start.endswith("_first"):
            self._begin(start)
        if start.startswith("resume") and self.scheduler is not None:
            if start.startswith("resume_root"):
                if world.rank == 0:
                    self.scheduler.load_state_dict(self._checkpoint()["scheduler"])
                self.scheduler.load_state_dict(world.shared(self.scheduler.state_dict()))
            else:
                self.scheduler.load_state_dict(self._checkpoint()["scheduler"])
        self.outer = Lookahead(self.optimizer) if recipe.outer == "lookahead" else self.optimizer

    def _names(self):
        if not self.recipe.named:
            return None
        prefix = "" if self.recipe.same_names or not self.number else "second."
        if self.recipe.named == "by_rank":
            prefix = f"rank{self.world.rank}."
        return [(prefix + name, p) for name, p in self.model.named_parameters()
                if self.recipe.groups != "added" or not name.startswith("branch")]

    def _begin(self, start):
        """Gives all ranks the weights and state that the recipe's start says."""
        recipe, world = self.recipe, self.world
        if start == "broadcast":
            world.broadcast(self.model, self.optimizer if recipe.outer == "none" else None)
        elif start == "resume" or start.startswith("resume_root") and world.rank == 0:
            saved = self._checkpoint()
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
        elif start == "resume_some":
            saved = self._checkpoint()
            self.model.load_state_dict(saved["model"])
            if world.rank == 0:
                self.optimizer.load_state_dict(saved["optimizer"])
        if start == "resume_root":
            world.broadcast(self.model, self.optimizer)

    def _checkpoint(self):
        """What an earlier training of one process has left."""
        recipe = self.recipe
        model = models.make(recipe, recipe.data + 500 + self.number, _Alone.batch_norm)
        optimizer = make_optimizer(recipe, model)
        scheduler = make_scheduler(recipe, optimizer)
        for step in range(2):
            optimizer.zero_grad()
            x, y = models.batch(recipe, 9, step)
            ((model(x, True) - y)**2).mean().backward()
            optimizer.step()
            advance(scheduler)
        if scheduler is None:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        return pickle.loads(pickle.dumps({
            "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler and scheduler.state_dict()}))

    # --- A step

    def parameters(self):
        return list(self.model.parameters())

    def losses(self, now, part=0):
        """The losses of the part-th micro-batch, of those rows that this world has; none if no rank computes one."""
        recipe, world = self.recipe, self.world
        count = len(world.members)
        shares = []
        for rank in world.own:
            index = world.members.index(rank)
            mine = batches(recipe, now.epoch, index, count)
            if now.turn >= len(mine) or is_idle(recipe, now.count, index, count):
                continue
            branch = uses_branch(recipe, now.count, index, count) and not (recipe.passes == "two" and part == 1)
            x, y = models.batch(recipe, self.number, now.epoch, mine[now.turn], part, rank)
            factor = float("inf") if recipe.scaler != "no" and now.count == 2 and index == count - 1 else 1.0
            shares.append((x, y, branch, factor))
        if not shares:
            return []
        model = self.model if self.partner is None else self.with_partner
        if len({branch for _, _, branch, _ in shares}) == 1:
            # One pass over all rows.
            out = model(torch.cat([x for x, *_ in shares]), shares[0][2]).split(models.ROWS)
        else:
            out = [model(x, branch) for x, _, branch, _ in shares]
        errors = [((o - y)**2).mean() * factor for o, (_, y, _, factor) in zip(out, shares)]
        waves = [o.sin().mean() * factor for o, (_, _, _, factor) in zip(out, shares)]
        kinds = (errors, waves) if recipe.passes == "losses" else (errors,)
        return [sum(values) * world.scale(recipe) for values in kinds]

    def with_partner(self, x, branch):
        other = self.partner.model(x, branch)
        return self.model(x, branch) + (other.detach() if self.is_detached else other)

    def zero_grad(self):
        how = self.recipe.zero_grad
        if how == "default":
            self.optimizer.zero_grad()
        elif how in ("none", "zeros"):
            self.optimizer.zero_grad(set_to_none=how == "none")
        elif how == "model":
            self.model.zero_grad()
        elif how == "hand":
            for p in self.parameters():
                p.grad = None

    def parts(self):
        return range(2 if self.recipe.passes == "two" else 1)

    def forward(self, now):
        """What backward() would do first."""
        for part in self.parts():
            self.ahead[part] = self.losses(now, part)

    def backward(self, now):
        """Gradients of one step, by one or more backward passes."""
        recipe = self.recipe
        for part in self.parts():
            losses = self.ahead.pop(part, None)
            losses = self.losses(now, part) if losses is None else losses
            for loss in losses:
                if self.scaler is not None:
                    loss = self.scaler.scale(loss)
                loss.backward(retain_graph=len(losses) > 1)
        self.complete(now)

    def complete(self, now):
        """What follows after the last backward()."""
        recipe = self.recipe
        if recipe.by_hand == "written":
            self._write_gradient(now)
        self.world.complete(self.parameters(), self.known)
        if recipe.by_hand == "kept":
            if self.kept is not None and now.count == 2 and self.world.is_last():
                self.kept.mul_(2.0)
            self.kept = None

    def _write_gradient(self, now):
        world = self.world
        weight = self.model.branch.weight
        if not weight.requires_grad:
            return
        active = [r for r in world.own
                  if now.turn < len(batches(self.recipe, now.epoch, world.members.index(r), len(world.members)))]
        total = sum(models.filled_gradient(weight, 0.1 * (rank + 1)).detach() for rank in active)
        weight.grad = total * world.scale(self.recipe)

    def update(self):
        """From the end of backward() to the end of step()."""
        recipe, world, optimizer = self.recipe, self.world, self.optimizer
        if recipe.synchronize:
            world.synchronize(optimizer)
        if self.scaler is not None and (recipe.scaler == "yes" or recipe.clip != "no"):
            self.scaler.unscale_(optimizer)
        if recipe.by_hand in ("halved", "early"):
            with torch.no_grad():
                self.model.head.weight.grad.mul_(0.5)
        if recipe.clip.endswith("norm"):
            torch.nn.utils.clip_grad_norm_(self.parameters(), 0.2)
        if recipe.clip.endswith("value"):
            torch.nn.utils.clip_grad_value_(self.parameters(), 0.05)
        if recipe.synchronize:
            with world.synchronized(optimizer):
                self._step()
        else:
            self._step()
        if self.scaler is not None:
            self.scaler.update()
        if recipe.by_hand == "kept":
            self.kept = self.model.head.weight.grad
        if recipe.zero_grad == "after":
            optimizer.zero_grad()

    def _step(self):
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
        else:
            self.outer.step()

    def with_closure(self, now):
        def closure():
            self.zero_grad()
            losses = self.losses(now)
            for loss in losses:
                loss.backward()
            if self.recipe.by_hand == "written":
                self._write_gradient(now)
            self.world.complete(self.parameters(), self.known)
            return losses[0] if losses else 0.0

        self.outer.step(closure)

    def with_ascent(self, now):
        """A step of sharpness-aware minimization, from outside."""
        self.zero_grad()
        self.backward(now)
        self.world.synchronize(self.optimizer)
        ascent = Ascent(self.parameters())
        ascent.up()
        self.optimizer.zero_grad()
        self.backward(now)
        ascent.down()
        self.optimizer.step()

    def with_inner_ascent(self, now):
        self.zero_grad()
        self.backward(now)

        def closure():
            losses = self.losses(now)
            for loss in losses:
                loss.backward()
            self.world.complete(self.parameters(), self.known)
            return losses[0] if losses else 0.0

        self.optimizer.step(closure)

    # --- Copies

    def copy(self):
        how = self.recipe.copied
        if how not in ("average", "optimizer", "states"):
            self.known = {}  # every parameter is used in the next step
        if how in ("states", "rebuilt"):
            self._through_states(how == "rebuilt")
        elif how == "average":
            copied = copy.deepcopy(self.model)
            x, _ = models.batch(self.recipe, 5)
            copied(x, True).sum().backward()
        elif how == "optimizer":
            copy.deepcopy(self.optimizer)
        else:
            parts = (self.model, self.optimizer, self.scheduler)
            if how == "deepcopy":
                parts = copy.deepcopy(parts)
            elif how == "pickle":
                parts = pickle.loads(pickle.dumps(parts))
            else:
                file = io.BytesIO()
                torch.save(parts, file)
                file.seek(0)
                parts = _load(file)
            self.model, self.optimizer, self.scheduler = parts
            self.outer = self.optimizer

    def _through_states(self, rebuilt):
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler and self.scheduler.state_dict()}, file)
        file.seek(0)
        saved = _load(file)
        if rebuilt:
            recipe, self.recipe = self.recipe, self.recipe.replace(start="equal")
            self.model = models.make(recipe, recipe.data + 900, self.world.batch_norm)
            self._build()
            self.recipe = recipe
            for p, frozen in zip(self.parameters(), self.frozen):
                p.requires_grad_(not frozen)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved["scheduler"])

    # --- State

    def freeze(self, count):
        """What the recipe's dimension `frozen` changes before the count-th step."""
        first = self.parameters()[0]
        if self.recipe.frozen in ("until", "since"):
            first.requires_grad_((count >= 2) == (self.recipe.frozen == "until"))
        self.frozen = [not p.requires_grad for p in self.parameters()]

    def state(self):
        """(values, everything): dicts of lists of numbers, and of tensors."""
        values = {name: tensor.detach() for name, tensor in self.model.state_dict().items()}
        values = {name.replace("_orig_mod.", ""): tensor for name, tensor in values.items()}
        if self.scaler is not None:
            values["scale"] = torch.tensor(self.scaler.get_scale(), dtype=torch.float64)
        for i, group in enumerate(self.optimizer.param_groups):
            values[f"lr{i}"] = torch.as_tensor(group["lr"], dtype=torch.float64)
        everything = dict(values)
        if self.recipe.op != "Adasum":  # there each rank has its own state
            for i, p in enumerate(self.parameters()):
                for name, value in self.optimizer.state.get(p, {}).items():
                    everything[f"state.{i}.{name}"] = value
        return values, everything


def _load(file):
    try:
        return torch.load(file, weights_only=False)
    except TypeError:  # an older torch
        return torch.load(file)


def _shared(first, second, now):
    first.partner = second
    if first.scaler is not None:
        second.scaler = first.scaler
    for trainee in (first, second):
        trainee.zero_grad()
    first.backward(now)
    second.complete(now)
    for trainee in (first, second):
        trainee.update()


def _adversarial(generator, judge, now, freezes=True):
    judge.partner, judge.is_detached = generator, True
    generator.partner = judge
    judge.zero_grad()
    judge.backward(now)
    judge.update()
    generator.zero_grad()
    trained = [p for p in judge.parameters() if p.requires_grad] if freezes else []
    for p in trained:
        p.requires_grad_(False)
    generator.backward(now)
    for p in trained:
        p.requires_grad_(True)
    generator.update()


def _adversarial_open(generator, judge, now):
    _adversarial(generator, judge, now, freezes=False)


# A step of two trainees in one graph.
_TOGETHER = {"shared": _shared, "adversarial": _adversarial, "adversarial_open": _adversarial_open}


def elastic_step(trainee, step, in_the_middle=lambda: None):
    """A step of an elastic job; in_the_middle is called between backward() and step()."""
    now = Now(step // STEPS, step % STEPS, step)
    trainee.freeze(step)
    trainee.zero_grad()
    trainee.backward(now)
    in_the_middle()
    trainee.update()
    advance(trainee.scheduler)


def end_moment(training, sizes):
    return training.moment(f"end after {sizes}")


def elastic_moments(recipe, sizes):
    """What one process has after the steps of an elastic job that had so many ranks in each."""
    training = Training(recipe, Alone([0]))
    trainee = training.begin()
    for step, size in enumerate(sizes):
        trainee.world = Alone(list(range(size)))
        elastic_step(trainee, step)
    yield end_moment(training, sizes)


@torch.no_grad()
def nudge(parameters):
    for p in parameters:
        if p.dtype in (torch.float32, torch.float64):  # bfloat16 has a wide tolerance
            p.mul_(1 + 4 * torch.finfo(p.dtype).eps)


class Training:
    def __init__(self, recipe, world):
        self.recipe, self.world = recipe, world
        self.trainees = []

    def begin(self):
        """Makes the first trainee, and returns it."""
        self.trainees = [Trainee(self.recipe, self.world, 0)]
        if not self.world.distributed and self.world.nudged:
            nudge(self.trainees[0].parameters())
        return self.trainees[0]

    def moments(self):
        """Yields each moment. Between two of them is at most one step."""
        recipe, world = self.recipe, self.world
        self.trainees = [Trainee(recipe, world, n) for n in range(1 if recipe.second == "none" else 2)]
        yield self.moment("start")
        if not world.distributed and world.nudged:
            for trainee in self.trainees:
                nudge(trainee.parameters())
        count = 0
        for epoch in range(EPOCHS):
            turns = max(len(batches(recipe, epoch, world.members.index(r), len(world.members))) for r in world.own)
            for turn in range(turns):
                now = Now(epoch, turn, count)
                count += 1
                for trainee in self.trainees:
                    trainee.freeze(now.count)
                if recipe.skipped == "before" and now.count == 1:
                    continue
                self._step(now)
                if recipe.uneven == "no":
                    for trainee in self.trainees:
                        advance(trainee.scheduler)
                yield self.moment(f"{epoch}.{turn}")
            count = (epoch + 1) * STEPS
            if recipe.uneven != "no":
                last = world.join()
                for trainee in self.trainees:
                    if world.distributed and recipe.joined == "broadcast":
                        world.broadcast(trainee.model, trainee.optimizer, last)
                    advance(trainee.scheduler)
                if recipe.joined == "broadcast":
                    yield self.moment(f"{epoch}.joined")
            if epoch == 0 and recipe.copied != "no":
                self.trainees[0].copy()
                yield self.moment("0.copied")

    def _step(self, now):
        recipe = self.recipe
        if recipe.second in _TOGETHER:
            _TOGETHER[recipe.second](*self.trainees, now)
            return
        order = list(self.trainees)
        if recipe.second.startswith("crossed") and self.world.crosses():
            order.reverse()
        if recipe.outer == "sam":
            steps = [lambda t: t.with_ascent(now)]
        elif recipe.outer == "inner_sam":
            steps = [lambda t: t.with_inner_ascent(now)]
        elif recipe.closure:
            steps = [lambda t: t.with_closure(now)]
        else:
            skips = recipe.skipped == "after" and now.count == 1
            steps = [lambda t: (t.zero_grad(), t.backward(now)), lambda t: skips or t.update()]
        if "interleaved" not in recipe.second:
            parts = steps
            steps = [lambda t: [part(t) for part in parts]]
        if recipe.second == "crossed_forward":
            for trainee in order:
                trainee.forward(now)
            order = self.trainees
        for step in steps:
            for trainee in order:
                step(trainee)

    def moment(self, label):
        values, digest = {}, hashlib.blake2b(digest_size=8)
        for trainee in self.trainees:
            own, everything = trainee.state()
            for name, tensor in own.items():
                values[f"{trainee.number}.{name}" if trainee.number else name] = (
                    tensor.to(torch.float64).flatten().tolist())
            for name in sorted(everything):
                digest.update(name.encode())
                digest.update(_bits(everything[name]))
        return Moment(label, values, digest.hexdigest())


def _bits(value):
    if isinstance(value, (list, tuple)):  # LBFGS keeps directions in lists
        return b"".join(map(_bits, value))
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    value = value.detach().contiguous()
    if value.dtype == torch.bfloat16:
        value = value.view(torch.int16)
    return value.numpy().tobytes()
