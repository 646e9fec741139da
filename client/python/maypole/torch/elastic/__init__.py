"""Elastic training with PyTorch: docs/elastic.md.

For example:

    import maypole.torch as hvd

    hvd.init()
    model, optimizer = ..., hvd.DistributedOptimizer(...)
    sampler = hvd.elastic.ElasticSampler(dataset)

    @hvd.elastic.run
    def train(state):
        while state.epoch < 10:
            for i, (x, y) in enumerate(DataLoader(dataset, 32, sampler=sampler)):
                ...                                # a step
                state.sampler.record_batch(i, 32)
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0))
"""

from maypole.common.elastic import ObjectState, State, request_departure, reset, run_fn
from maypole.torch.elastic.running import run
from maypole.torch.elastic.sampler import ElasticSampler
from maypole.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler", "ObjectState", "State", "TorchState", "request_departure", "reset", "run", "run_fn",
]
