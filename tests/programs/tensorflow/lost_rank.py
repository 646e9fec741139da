"""Rank 1 dies: the operations of rank 0 that wait for it, eager, in a function and in one that XLA compiles (from
TensorFlow 2.18 on), end with an error that says so, and that an elastic run recognises."""

import os

import tensorflow as tf

import maypole.tensorflow as hvd
import rank


def failure(function):
    try:
        function()
    except tf.errors.OpError as error:
        return error
    raise AssertionError("there was no error")


def main():
    hvd.init()
    hvd.allreduce(tf.constant(1.0))
    compiled = None
    if tuple(int(n) for n in tf.__version__.split(".")[:2]) >= (2, 18):
        compiled = tf.function(lambda: hvd.allreduce([1.0]), jit_compile=True)
        compiled()
    if hvd.rank() == 1:
        os._exit(3)
    errors = [failure(lambda: hvd.allreduce(tf.constant(1.0))), failure(tf.function(lambda: hvd.allgather([1.0])))]
    if compiled is not None:
        errors.append(failure(compiled))
    internal = [hvd.elastic.internal_error(error) for error in errors]
    rank.record(internal=[str(error) for error in internal if error is not None],
                kinds=[type(error).__name__ for error in errors], texts=[str(error) for error in errors])


main()
