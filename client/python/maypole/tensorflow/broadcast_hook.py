"""Broadcasts a version 1 graph's variables when its session starts.

    hooks = [BroadcastGlobalVariablesHook(0)]
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...

A MonitoredTrainingSession calls the hook after it has initialized the variables
or restored a checkpoint, so all ranks get the state of a checkpoint that only the root has.

Thread contract: one thread builds the graph and makes the session.
"""

from typing import Any, Optional

import tensorflow as tf

from maypole.tensorflow.functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables when a session has been made.

    Args:
        root_rank: the rank whose values all ranks get.
        device: where the broadcasts run; "" leaves it to TensorFlow.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Optional[Any] = None

    def begin(self) -> None:
        """Adds the operation to the graph, before it is finalized."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Gives all ranks the variables of the root."""
        session.run(self.bcast_op)
