"""A training job that reads from tf.data's service, whose configuration is in the file CONFIG (its argument)."""

import sys

import tensorflow as tf

import maypole.tensorflow as hvd
import rank
from maypole.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

ELEMENTS = 400


def read(dataset):
    return [int(x) for x in dataset]


def main():
    hvd.init()
    config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
    assert TfDataServiceConfig.from_dict(config.to_dict()) == config
    dataset = tf.data.Dataset.range(ELEMENTS).map(lambda x: x * 3)
    shared = each = None
    if config.dispatcher_side == "compute":
        shared = read(dataset.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True))
        each = read(dataset.send_to_data_service(config, hvd.rank()))
        hvd.allgather_object(None)  # the others may still read
    else:
        with tf_data_service(config, hvd.rank()) as address:
            if config.dispatchers == 1:
                shared = read(dataset.apply(tf.data.experimental.service.distribute(
                    "distributed_epoch", address, job_name="epoch")))
            else:
                each = read(dataset.apply(tf.data.experimental.service.distribute("distributed_epoch", address)))
            hvd.allgather_object(None)  # the others read from a dispatcher of mine
    rank.record(shared=shared, each=each)
    if hvd.rank() == 0:
        config.compute_client().shutdown()
    hvd.shutdown()


main()
