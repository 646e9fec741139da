"""What programs put around an optimizer: Lookahead, SAM, a gradient scaler; written as they are published.

    optimizer = Lookahead(torch.optim.SGD(...))       # k steps ahead, one back
    optimizer = SAM(parameters, torch.optim.SGD, lr=0.1)
    scaler.scale(loss).backward(); scaler.unscale_(optimizer); scaler.step(optimizer); scaler.update()

They know nothing of ranks.
"""

import torch


class Lookahead(torch.optim.Optimizer):
    """After every second step the slow weights move halfway to the fast ones, which begin there again."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.defaults = optimizer.defaults
        self.state = optimizer.state
        self.count = 0
        self.slow = None
        self._zero_grad_profile_name = "Lookahead.zero_grad"
        self._optimizer_step_pre_hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {})
        self._optimizer_step_post_hooks = getattr(optimizer, "_optimizer_step_post_hooks", {})

    def _parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def step(self, closure=None):
        if self.slow is None:
            self.slow = [p.detach().clone() for p in self._parameters()]
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self.count += 1
        if self.count % 2 == 0:
            with torch.no_grad():
                for slow, fast in zip(self.slow, self._parameters()):
                    slow.add_(fast - slow, alpha=0.5)
                    fast.copy_(slow)
        return loss

    def zero_grad(self, *args, **kwargs):
        self.optimizer.zero_grad(*args, **kwargs)


class Ascent:
    """The two halves of sharpness-aware minimization: up along the gradient, and back."""

    def __init__(self, parameters, rho=0.05):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.rho = rho

    @torch.no_grad()
    def up(self):
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.sqrt(sum((g.double()**2).sum() for g in grads)) + 1e-12
        self.before = [p.detach().clone() for p in self.parameters]
        for p in self.parameters:
            if p.grad is not None:
                p.add_(p.grad * (self.rho / norm).to(p.dtype))

    @torch.no_grad()
    def down(self):
        for p, before in zip(self.parameters, self.before):
            p.copy_(before)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization as an optimizer whose step() needs a closure, after a backward()."""

    def __init__(self, parameters, base, **options):
        super().__init__(parameters, dict(options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        ascent = Ascent([p for group in self.param_groups for p in group["params"]])
        ascent.up()
        self.zero_grad()
        loss = closure()
        ascent.down()
        self.base_optimizer.step()
        return loss


class Scaler:
    """As torch's GradScaler, which torch 1.13 has for GPUs only."""

    def __init__(self):
        self.factor = 1024.0
        # By the optimizer's id, since the last update(): whether an infinity was found.
        self._per_optimizer_states = {}

    def scale(self, loss):
        return loss * self.factor

    @torch.no_grad()
    def unscale_(self, optimizer):
        found = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    found |= not bool(torch.isfinite(p.grad).all())
                    p.grad.mul_(1.0 / self.factor)
        self._per_optimizer_states[id(optimizer)] = found

    def step(self, optimizer):
        if id(optimizer) not in self._per_optimizer_states:
            self.unscale_(optimizer)
        if not self._per_optimizer_states[id(optimizer)]:
            optimizer.step()

    def update(self):
        if any(self._per_optimizer_states.values()):
            self.factor *= 0.5
        self._per_optimizer_states.clear()

    def get_scale(self):
        return self.factor

    def state_dict(self):
        return {"factor": self.factor}

    def load_state_dict(self, state):
        self.factor = state["factor"]


def scaler():
    """torch's, if it works on CPUs."""
    try:
        return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    except (AttributeError, TypeError):
        return Scaler()
