"""Programs in which each rank has some layers: the schedules of torch.distributed.pipelining."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from training import DEVICE, STEPS

WIDTH = 32
ROWS = 16


def layers(number):
    """The layers of one stage."""
    torch.manual_seed(number)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).to(DEVICE)


def train(schedule, stages, first, last):
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(STEPS):
        x, y = (torch.randn(ROWS, WIDTH, generator=generator).to(DEVICE) for _ in range(2))
        of_step = [] if last else None
        schedule.step(*([x] if first else []), **({"target": y, "losses": of_step} if last else {}))
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.detach() for loss in of_step or []]
    return losses + [p.detach() for p in parameters]


def one_stage(schedule):
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(layers(rank), rank, size, DEVICE)
    return train(schedule(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss), [stage], rank == 0,
                 rank == size - 1)


def two_stages():
    """Each rank has the stages `rank` and `rank + size`."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = [PipelineStage(layers(number), number, 2 * size, DEVICE) for number in (rank, rank + size)]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    return train(schedule, stages, rank == 0, rank == size - 1)


PROGRAMS = {
    "pipeline, GPipe": lambda: one_stage(ScheduleGPipe),
    "pipeline, 1F1B": lambda: one_stage(Schedule1F1B),
    "pipeline, interleaved 1F1B": two_stages,
}
