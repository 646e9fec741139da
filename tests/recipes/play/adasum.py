"""The reference of DistributedOptimizer(op=Adasum): a training for each rank in one process, step by step.

Every rank makes its own step with its own optimizer. The steps are combined by Adasum in a binary tree, whose left part
has the largest power of two of ranks that is smaller than their number; a and b become

    (1 - a.b / 2a.a) a + (1 - a.b / 2b.b) b

for each parameter; a term whose divisor is 0 is 0. Steps that cancel give 0.

Thread contract: one thread.
"""

import torch

from training import Training, elastic_step, end_moment
from worlds import Alone


def combined(steps):
    """The Adasum of a list of tensors."""
    if len(steps) == 1:
        return steps[0]
    left = 1
    while 2 * left < len(steps):
        left *= 2
    a, b = combined(steps[:left]), combined(steps[left:])
    dot, aa, bb = float((a * b).sum()), float((a * a).sum()), float((b * b).sum())
    step = (1 - (dot / (2 * aa) if aa else 0)) * a + (1 - (dot / (2 * bb) if bb else 0)) * b
    # Steps of clipped gradients may be opposite. What they leave is rounding, and so is its direction, which the next
    # combination would take for a step's.
    return step if float((step * step).sum()) > 1e-20 * (aa + bb) else torch.zeros_like(step)


def moments(recipe, members):
    trainings = [Training(recipe, Alone(members, [rank])) for rank in members]
    before = None
    for now in zip(*(training.moments() for training in trainings)):
        parameters = [training.trainees[0].parameters() for training in trainings]
        if before is not None and now[0].label[-1].isdigit():
            _combine(before, parameters, len(members))
        before = _copies(parameters[0])
        yield trainings[0].moment(now[0].label)


def _copies(parameters):
    return [p.detach().double().clone() for p in parameters]


@torch.no_grad()
def _combine(before, parameters, size):
    """Gives everybody the step of the first `size` ranks."""
    for start, *ranks in zip(before, *parameters):
        step = combined([p.double() - start for p in ranks[:size]])
        for p in ranks:
            p.copy_(start + step)


def elastic_moments(recipe, sizes):
    """As training.elastic_moments()."""
    trainings = [Training(recipe, Alone([0])) for _ in range(max(sizes))]
    trainees = [training.begin() for training in trainings]
    for step, size in enumerate(sizes):
        before = _copies(trainees[0].parameters())
        for rank, trainee in enumerate(trainees):
            # One that is not in the job does something, so that its scheduler goes on.
            trainee.world = Alone(list(range(size)), [rank % size])
            elastic_step(trainee, step)
        _combine(before, [trainee.parameters() for trainee in trainees], size)
    yield end_moment(trainings[0], sizes)
