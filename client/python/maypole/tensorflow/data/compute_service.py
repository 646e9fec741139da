"""tf.data's service in a training job.

    config = TfDataServiceConfig.read("/shared/config", True)
    with tf_data_service(config, hvd.rank()) as dispatcher:
        dataset = dataset.apply(tf.data.experimental.service.distribute(
            service=dispatcher, processing_mode="distributed_epoch",
            job_name="train"))

The computing job runs `python -m maypole.tensorflow.data.compute_worker`, which
writes the configuration. Its dispatchers and workers are TensorFlow's, whose
protocol has no authentication: keep them in a private network.

Thread contract: one thread.
"""

import binascii
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from maypole.common import basics
from maypole.common.data_registry import RegistryClient, write_private

_POLL_SECONDS = 0.2
_HEARTBEAT_MS = 1000
_SIDES = ("training", "compute")


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """How the training job finds the computing job.

    dispatchers: 1 for all ranks, or one for each rank.
    workers_per_dispatcher: processes of the computing job for each.
    dispatcher_side: "compute" or "training": the job in which dispatchers run.
    addresses, key: of the registry. timeout: seconds to wait for other processes.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose: int = 1) -> RegistryClient:
        """A client of the registry; its shutdown() ends the computing job.

        Args:
            verbose: accepted for compatibility, without effect.
        """
        return RegistryClient(self.addresses, self.key)

    def to_dict(self) -> Mapping[str, Any]:
        """Returns the configuration as values for JSON; from_dict() reverses it."""
        values = {field.name: getattr(self, field.name)
                  for field in dataclasses.fields(self)}
        values["key"] = binascii.hexlify(self.key).decode()
        return values

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "TfDataServiceConfig":
        """Reverses to_dict()."""
        values = dict(config)
        values["key"] = binascii.unhexlify(values["key"])
        values["addresses"] = {
            interface: [(host, port) for host, port in addresses]
            for interface, addresses in values["addresses"].items()}
        return TfDataServiceConfig(**values)

    def write(self, filename: str) -> None:
        """Writes the file atomically, readable only by its owner, because it contains the key."""
        write_private(filename, json.dumps(self.to_dict()))

    @staticmethod
    def read(filename: str,
             wait_for_file_creation: bool = False) -> "TfDataServiceConfig":
        """Reads what write() has written.

        Args:
            filename: a file that TfDataServiceConfig.write() has written.
            wait_for_file_creation: wait, without a time limit, until the file exists.
        """
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(_POLL_SECONDS)
        with open(filename, encoding="utf-8") as file:
            return TfDataServiceConfig.from_dict(json.load(file))


def _check_side(config: TfDataServiceConfig) -> None:
    if config.dispatcher_side not in _SIDES:
        raise ValueError(f"dispatcher_side={config.dispatcher_side!r}: expected "
                         f"one of {', '.join(_SIDES)}")


@contextlib.contextmanager
def _dispatcher(client: RegistryClient, number: int) -> Iterator[None]:
    """Runs a dispatcher and announces it."""
    server = tf.data.experimental.service.DispatchServer()
    try:
        port = server.target.rpartition(":")[2]
        client.register_dispatcher(number, f"grpc://{client.own_address()}:{port}")
        yield
    finally:
        server._stop()


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig,
                    rank: int) -> Iterator[str]:
    """A context that gives the address of the dispatcher for the training rank.

    If dispatchers run on the training side, this rank's dispatcher ends with the `with` block.

    Args:
        compute_config: the data service's configuration.
        rank: the process's rank in the training job.

    Raises:
        TimeoutError: the dispatcher or its workers do not appear.
        ConnectionError: the computing job cannot be reached.
    """
    _check_side(compute_config)
    client = compute_config.compute_client()
    number = rank if compute_config.dispatchers > 1 else 0
    with contextlib.ExitStack() as stack:
        if compute_config.dispatcher_side == "training" and rank == number:
            stack.enter_context(_dispatcher(client, number))
        address = client.wait_for_dispatcher_registration(
            number, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(number,
                                                       compute_config.timeout)
        yield address


def send_to_data_service(dataset: tf.data.Dataset,
                         compute_config: TfDataServiceConfig,
                         rank: int,
                         size: Optional[int] = None,
                         processing_mode: str = "distributed_epoch",
                         reuse_dataset: bool = False,
                         round_robin: bool = False) -> tf.data.Dataset:
    """Returns the dataset, computed by the data service; also a method of tf.data.Dataset.

    Args:
        dataset: a tf.data.Dataset.
        compute_config: the data service's configuration.
        rank: the process's rank in the training job.
        size: the number of ranks.
        processing_mode: as for tf.data.experimental.service.distribute().
        reuse_dataset: all ranks read from one job of the service: with "distributed_epoch" exactly one rank
            gets each element, once. Otherwise each rank reads all elements.
        round_robin: with reuse_dataset: ranks take elements in turn; needs `size`, their number, and an endless
            dataset.

    Raises:
        RuntimeError: dispatchers run on the training side, where they must live as long as the dataset: use
        tf_data_service().
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service: dispatchers run on the training side; use "
            "tf_data_service(), in whose block the dispatcher lives")
    in_turn = reuse_dataset and round_robin
    if in_turn and size is None:
        raise ValueError("send_to_data_service: round_robin=True needs size=, "
                         "the number of ranks")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(tf.data.experimental.service.distribute(
            processing_mode=processing_mode, service=address,
            job_name="job" if reuse_dataset else None,
            consumer_index=rank if in_turn else None,
            num_consumers=size if in_turn else None))


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Runs a process of the computing job, until the registry's shutdown().

    Each process runs a worker, and some of them also a dispatcher.

    Args:
        compute_config: the data service's configuration.
    """
    _check_side(compute_config)
    basics.init()
    rank = basics.rank()
    client = compute_config.compute_client()
    number, place = divmod(rank, compute_config.workers_per_dispatcher)
    with contextlib.ExitStack() as stack:
        if compute_config.dispatcher_side == "compute" and place == 0:
            stack.enter_context(_dispatcher(client, number))
        address = client.wait_for_dispatcher_registration(
            number, compute_config.timeout)
        worker = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(
                dispatcher_address=address.partition("://")[2],
                # TensorFlow inserts the port that it has bound.
                worker_address=f"{client.own_address()}:%port%",
                heartbeat_interval_ms=_HEARTBEAT_MS,
                dispatcher_timeout_ms=int(compute_config.timeout * 1000)))
        stack.callback(worker._stop)
        client.register_worker_for_dispatcher(number, rank)
        client.wait_for_shutdown()
