"""Rank 1 ends while rank 0 waits for an operation: MXNet's error has Maypole's text."""

import os

import mxnet as mx

import maypole.mxnet as hvd
import rank

hvd.init()
hvd.allreduce(mx.nd.ones(3)).wait_to_read()
if hvd.rank() == 1:
    os._exit(3)
try:
    hvd.allreduce(mx.nd.ones(3), name="lost").asnumpy()
except mx.MXNetError as error:
    rank.record(text=str(error))
