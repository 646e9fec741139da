"""The program of the job that computes data for a training job, by tf.data's service.

    maypolerun -np 4 python3 -m maypole.tensorflow.data.compute_worker CONFIG

Rank 0 writes the file CONFIG, through which the training job finds the service;
it must be on a file system that both jobs see. The job ends when training calls
TfDataServiceConfig.read(CONFIG).compute_client().shutdown().
"""

import argparse
import os
from typing import Optional

from maypole.common import basics, objects
from maypole.common.data_registry import Registry, new_key, own_address
from maypole.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn


def main(dispatchers: int, dispatcher_side: str, configfile: str,
         timeout: int, address: Optional[str] = None) -> None:
    """Runs this process's part of the service; all ranks call it.

    address: the address of rank 0's host; None: the one at which other hosts reach it.
    Raises ValueError unless the number of ranks is a multiple of `dispatchers`.
    """
    basics.init()
    size = basics.size()
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(
            f"--dispatchers {dispatchers}: expected a divisor of the number of "
            f"processes, {size}")
    registry = None
    config = None
    try:
        if basics.rank() == 0:
            registry = Registry(dispatchers, size // dispatchers, new_key(),
                                address or own_address())
            config = TfDataServiceConfig(
                dispatchers, size // dispatchers, dispatcher_side,
                registry.addresses(), registry.key, timeout)
        config = objects.broadcast_object(config, name="maypole.data.config")
        if registry is not None:
            config.write(configfile)
        compute_worker_fn(config)
    finally:
        if registry is not None:
            registry.shutdown()
            if os.path.exists(configfile):
                os.remove(configfile)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs tf.data's service for a training job.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("configfile",
                        help="file to write the configuration to")
    parser.add_argument("--dispatchers", type=int, default=1,
                        help="number of dispatchers")
    parser.add_argument("--dispatcher-side", default="compute",
                        choices=("compute", "training"),
                        help="the job in which the dispatchers run")
    parser.add_argument("--timeout", type=int, default=60,
                        help="seconds to wait for dispatchers and workers")
    parser.add_argument("--address", default=None,
                        help="this host's address on the network over which "
                        "training reads; by default that of its default route")
    return parser.parse_args()


if __name__ == "__main__":
    _given = _arguments()
    main(_given.dispatchers, _given.dispatcher_side, _given.configfile,
         _given.timeout, _given.address)
