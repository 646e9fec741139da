"""Rank 1 dies: the operations of rank 0 that wait for it, eager and in a function, end with an error that says so."""

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
    if hvd.rank() == 1:
        os._exit(3)
    errors = [failure(lambda: hvd.allreduce(tf.constant(1.0))), failure(tf.function(lambda: hvd.allgather([1.0])))]
    rank.record(kinds=[type(error).__name__ for error in errors], texts=[str(error) for error in errors])


main()
