"""Elastic training without a framework; docs/elastic.md, docs/arrays.md.

For example:

    import maypole as hvd

    @hvd.elastic.run
    def train(state):
        while state.step < 1000:
            state.weights -= ...
            state.step += 1
            state.commit()

    train(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank,
                                  weights=weights, step=0))
"""

from maypole.common.elastic import ObjectState, State, request_departure, reset, run, run_fn

__all__ = [
    "ObjectState", "State", "request_departure", "reset", "run", "run_fn",
]
