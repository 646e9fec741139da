"""Optimizers and schedulers by the names of the recipe's dimensions."""

import torch

from wrappers import SAM, Lookahead

_OPTIMIZERS = {
    "SGD": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": ("Adam", {"lr": 0.01, "amsgrad": True}),
    "AdamW": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "Adamax": ("Adamax", {"lr": 0.01}),
    "NAdam": ("NAdam", {"lr": 0.01}),
    "RAdam": ("RAdam", {"lr": 0.01}),
    "Adadelta": ("Adadelta", {"lr": 1.0}),
    "Adagrad": ("Adagrad", {"lr": 0.1}),
    "RMSprop": ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "Rprop": ("Rprop", {"lr": 0.01}),
    "ASGD": ("ASGD", {"lr": 0.05}),
    "LBFGS": ("LBFGS", {"lr": 0.5, "max_iter": 3}),
    "SparseAdam": ("SparseAdam", {"lr": 0.01}),
}


def _groups(recipe, model, rank):
    named = [(name, p) for name, p in model.named_parameters()
             if p.requires_grad or recipe.optimizer != "SparseAdam"]
    if recipe.groups == "added":
        named = [(name, p) for name, p in named if not name.startswith("branch")]
    if recipe.shuffled and rank % 2 == 1:
        named.reverse()
    if recipe.groups == "two":
        # An empty group is an error of torch.
        biases = [p for name, p in named if name.endswith("bias")]
        others = [p for name, p in named if not name.endswith("bias")]
        if biases and others:
            return [{"params": others}, {"params": biases, "lr": 0.02}]
    return [{"params": [p for _, p in named]}]


def make_optimizer(recipe, model, rank=0):
    name, options = _OPTIMIZERS[recipe.optimizer]
    options = dict(options)
    if recipe.kernel != "default":
        options.update({"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}[recipe.kernel])
    base = getattr(torch.optim, name)
    if recipe.start == "unequal_rate":
        options["lr"] *= 1 + rank
    groups = _groups(recipe, model, rank)
    if recipe.outer == "inner_sam":
        return SAM(groups, base, **options)
    optimizer = base(groups, **options)
    return Lookahead(optimizer) if recipe.outer == "inner_lookahead" else optimizer


def _half(step):  # pickle takes no lambda
    return 0.5**step


def _ninety(step):
    return 0.9


def make_scheduler(recipe, optimizer):
    """None, or the scheduler; lr changes in every second step or more often."""
    s = torch.optim.lr_scheduler
    name = recipe.scheduler
    if name == "none":
        return None
    if name == "SWALR":
        return torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.001, anneal_epochs=3)
    if name == "SequentialLR":
        return s.SequentialLR(optimizer, [s.ConstantLR(optimizer, 0.5, 2), s.ExponentialLR(optimizer, 0.9)], [2])
    if name == "ChainedScheduler":
        return s.ChainedScheduler([s.ConstantLR(optimizer, 0.5, 2), s.ExponentialLR(optimizer, 0.9)])
    cycles = recipe.optimizer in ("momentum", "Adam", "AdamW")
    arguments = {
        "StepLR": {"step_size": 2, "gamma": 0.5},
        "MultiStepLR": {"milestones": [1, 3, 5], "gamma": 0.5},
        "ConstantLR": {"factor": 0.5, "total_iters": 3},
        "LinearLR": {"start_factor": 0.3, "total_iters": 5},
        "ExponentialLR": {"gamma": 0.8},
        "CosineAnnealingLR": {"T_max": 5},
        "LambdaLR": {"lr_lambda": _half},
        "MultiplicativeLR": {"lr_lambda": _ninety},
        "PolynomialLR": {"total_iters": 9, "power": 2.0},
        "OneCycleLR": {"max_lr": 0.1, "total_steps": 20, "cycle_momentum": cycles},
        "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "cycle_momentum": recipe.optimizer == "momentum"},
        "CosineAnnealingWarmRestarts": {"T_0": 3},
        "ReduceLROnPlateau": {"patience": 0, "factor": 0.5},
    }[name]
    return getattr(s, name)(optimizer, **arguments)


def advance(scheduler):
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)  # never better
    elif scheduler is not None:
        scheduler.step()
