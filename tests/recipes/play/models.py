"""The models and batches of recipes.

Every model is a body, which differs, and on its result a head and a branch, which are linear layers. The branch is a
part that a step may leave out. Batches depend only on the recipe's seed, the step, the pass and the rank whose rows
they are, so one process can make those of all ranks.

Models are small, and nothing in them is symmetric: no gradient is exactly zero by mathematics but for rounding.

Thread contract: pure functions; they set torch's seed.
"""

import torch
from torch.utils.checkpoint import checkpoint

ROWS = 3  # of each rank in a batch
_WIDTH = 3  # of what the body returns


class _Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(2, _WIDTH, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.layer(x)).mean((2, 3))


class _Embedding(torch.nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.table = torch.nn.Embedding(6, _WIDTH, sparse=sparse)

    def forward(self, x):
        return torch.tanh(self.table(x).mean(1))


class _Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.there = torch.nn.Linear(4, 4)
        self.back = torch.nn.Linear(4, 4)
        self.back.weight = self.there.weight
        self.last = torch.nn.Linear(4, _WIDTH)

    def forward(self, x):
        return torch.tanh(self.last(torch.tanh(self.back(torch.tanh(self.there(x))))))


def _body(recipe, batch_norm):
    if recipe.model == "convolution":
        return _Convolution()
    if recipe.model in ("embedding", "words"):
        return _Embedding(recipe.model == "words")
    if recipe.model == "tied":
        return _Tied()
    if recipe.model == "batch_norm":
        # No bias before it: its gradient would be zero but for rounding.
        return torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), batch_norm(4), torch.nn.Tanh(),
                                   torch.nn.Linear(4, _WIDTH))
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, _WIDTH), torch.nn.Tanh())


class Model(torch.nn.Module):
    """body, head and branch; forward(x, branch) says whether the branch is used."""

    def __init__(self, recipe, batch_norm):
        super().__init__()
        self.body = _body(recipe, batch_norm)
        self.head = torch.nn.Linear(_WIDTH, 1)
        self.branch = torch.nn.Linear(_WIDTH, 1)
        self.checkpoint = recipe.checkpoint

    def forward(self, x, branch):
        if self.checkpoint == "no":
            hidden = self.body(x)
        else:
            reentrant = self.checkpoint == "reentrant"
            # Reentrant, it computes gradients only if its input has one.
            hidden = checkpoint(self.body, x.requires_grad_() if reentrant else x, use_reentrant=reentrant)
        out = self.head(hidden)
        return out + self.branch(hidden) if branch else out


def make(recipe, seed, batch_norm, is_last=False):
    """A model whose weights follow from the seed. batch_norm: the class for that layer. is_last: for the last rank."""
    torch.manual_seed(seed)
    model = Model(recipe, batch_norm).to(getattr(torch, recipe.dtype))
    if recipe.memory == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    if recipe.memory == "transposed":
        first = next(model.parameters())
        first.data = first.data.t().contiguous().t()
    if recipe.frozen in ("fixed", "until") or recipe.frozen == "one_rank" and is_last:
        next(model.parameters()).requires_grad_(False)
    if recipe.grad_dtype != "same":
        for parameter in model.parameters():
            parameter.grad_dtype = getattr(torch, recipe.grad_dtype)
    if recipe.optimizer == "SparseAdam":  # it takes no dense gradients
        for layer in (model.head, model.branch):
            layer.requires_grad_(False)
    return model


def filled_gradient(parameter, value):
    """A gradient with this value everywhere."""
    return torch.full_like(parameter, value, dtype=getattr(parameter, "grad_dtype", None) or parameter.dtype)


def zero_gradient(parameter, sparse):
    if not sparse:
        return filled_gradient(parameter, 0.0)
    values = parameter.detach().new_zeros((0,) + tuple(parameter.shape[1:]))
    return torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), values, parameter.shape)


def batch(recipe, *at):
    """(x, y): the rows of one rank. at: integers that say whose and when."""
    generator = torch.Generator().manual_seed(hash((recipe.data,) + at) & 0x7FFFFFFF)
    dtype = getattr(torch, recipe.dtype)
    y = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64).to(dtype)
    if recipe.model in ("embedding", "words"):
        return torch.randint(6, (ROWS, 2), generator=generator), y
    shape = (ROWS, 2, 4, 4) if recipe.model == "convolution" else (ROWS, 4)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    if recipe.memory == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    return x, y
