"""Serves, where Maypole cannot be imported, what a training with Maypole has left in DIRECTORY: prints predictions.

DIRECTORY/checkpoint is a MonitoredTrainingSession's: this program freezes its variables into an inference graph.
DIRECTORY/frozen.pb was frozen from the graph of the training.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.tools import freeze_graph

DIR = sys.argv[1]
X = np.arange(6, dtype=np.float32).reshape(2, 3) / 6


def inference():
    x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
    w = tf.compat.v1.get_variable("w", [3, 1])
    return tf.tanh(x @ w, name="prediction")


def frozen_here():
    with tf.Graph().as_default() as graph:
        inference()
        saver = tf.compat.v1.train.Saver()
        tf.io.write_graph(graph.as_graph_def(), DIR, "inference.pbtxt")
        tf.io.write_graph(saver.as_saver_def(), DIR, "saver.pbtxt")
    checkpoint = tf.train.latest_checkpoint(os.path.join(DIR, "checkpoint"))
    freeze_graph.freeze_graph(os.path.join(DIR, "inference.pbtxt"), os.path.join(DIR, "saver.pbtxt"), False, checkpoint,
                              "prediction", "save/restore_all", "save/Const:0", os.path.join(DIR, "frozen_here.pb"), True,
                              "")
    return frozen("frozen_here.pb")


def frozen(name):
    frozen = tf.compat.v1.GraphDef()
    with open(os.path.join(DIR, name), "rb") as f:
        frozen.ParseFromString(f.read())
    return frozen


def served(frozen):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.import_graph_def(frozen, name="")
        return session.run(graph.get_tensor_by_name("prediction:0"), {"x:0": X}).tolist()


try:
    import maypole
except ImportError:
    maypole = None
print(json.dumps({"maypole": maypole is not None, "checkpoint": served(frozen_here()),
                  "graph": served(frozen("frozen.pb"))}))
