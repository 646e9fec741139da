"""Operations that end only together, in an order that differs by rank, on TensorFlow pools of two threads.

Operation i needs the previous value in a chain, and each rank has its own order: a kernel that blocked its thread would
keep the chain from continuing, and two such kernels would stop the job. Records the sums, by way of running.
"""

import random

import tensorflow as tf

import maypole.tensorflow as hvd
import rank
from maypole.tensorflow import _nodes

COUNT = 200


def sums(value):
    """The sums of COUNT allreduces, in their order by name."""
    order = list(range(COUNT))
    random.Random(hvd.rank()).shuffle(order)
    found = {}
    for i in order:
        value = value + 1.0
        found[i] = hvd.allreduce(tf.cast(hvd.rank_op(), tf.float32) * 0.0 + (value - value) + float(i), op=hvd.Sum,
                                 name="crossed.%d" % i)
    return [found[i] for i in range(COUNT)]


def unused(value):
    """As sums(), but nobody uses the results: the operations must run nevertheless."""
    sums(value)
    return value


def main():
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(2)
    hvd.init()
    in_function = [float(t) for t in tf.function(sums)(tf.constant(0.0))]
    before = hvd_completed()
    tf.function(unused)(tf.constant(0.0))
    ran = hvd_completed() - before
    with tf.Graph().as_default():
        with _nodes.together():
            fetches = sums(tf.compat.v1.placeholder_with_default(0.0, []))
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=2,
                                          use_per_session_threads=True)
        with tf.compat.v1.Session(config=config) as session:
            in_session = [float(x) for x in session.run(fetches)]
    rank.record(function=in_function, session=in_session, ran=ran, version=tf.__version__)
    hvd.shutdown()


def hvd_completed():
    from maypole.common import basics
    return basics.counter("completed")


main()
