"""µs per operation of maypole.tensorflow beside TensorFlow's own collective, on the same ranks.

    maypolerun -np 2 PYTHON tests/bench/tensorflow_bench.py [--rounds 20]

TensorFlow's collective is the one by which tf.distribute.MultiWorkerMirroredStrategy reduces gradients (a ring over
gRPC on CPUs). Both run in these processes, in turns: a round calls each once, after a barrier. Rank 0 prints the
medians of its rounds; the sums are checked. `grouped`: one call with a list; `separate`: a call for each tensor, in one
tf.function. The tensors of ResNet-50 are its 161 gradients, 97.5 MiB of float32. Loopback only; all ranks must be on
this machine.
"""

import argparse
import json
import os
import statistics
import time

import resnet50

ROUNDS = 20


def join_tensorflow(rank, ports):
    """A strategy whose workers are the ranks. Must come before TensorFlow does anything else."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:%d" % port for port in ports]},
                                          "task": {"type": "worker", "index": rank}})
    import tensorflow as tf
    return tf.distribute.MultiWorkerMirroredStrategy()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ways(hvd, tf, strategy):
    """name -> function of the list of tensors."""

    def theirs(reduce):

        def on_worker(tensors):
            context = tf.distribute.get_replica_context()
            here = [tf.identity(t) for t in tensors]  # on the device of this worker
            return reduce(lambda value: context.all_reduce(tf.distribute.ReduceOp.SUM, value), here)

        return tf.function(lambda tensors: strategy.run(on_worker, args=(tensors,)), autograph=False)

    def each(reduce, tensors):
        return [reduce(t) for t in tensors]

    return {
        "Maypole, separate": tf.function(lambda ts: [hvd.allreduce(t, op=hvd.Sum) for t in ts], autograph=False),
        "Maypole, grouped": tf.function(lambda ts: hvd.grouped_allreduce(ts, op=hvd.Sum), autograph=False),
        "MultiWorkerMirrored, separate": theirs(each),
        "MultiWorkerMirrored, grouped": theirs(lambda reduce, tensors: reduce(tensors)),
    }


def measure(hvd, functions, tensors, rounds):
    """name -> median seconds of a call."""
    total = float(sum(range(1, hvd.size() + 1)))
    seconds = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            hvd.barrier()
            start = time.perf_counter()
            results = function(tensors)
            spent = time.perf_counter() - start
            if turn > 0:  # the first call makes the graph
                seconds[name].append(spent)
                continue
            for result in results:
                assert (result.numpy() == total).all(), (name, result)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    from maypole.common import basics, objects
    basics.init()
    strategy = join_tensorflow(basics.rank(), objects.allgather_object(free_port()))
    import tensorflow as tf

    import maypole.tensorflow as hvd
    shapes = [shape for _, shape in resnet50.parameters()]
    found = {}
    for case, sizes in (("16 B", [(4,)]), ("ResNet-50", shapes)):
        tensors = [tf.fill(size, float(hvd.rank() + 1)) for size in sizes]
        found[case] = measure(hvd, ways(hvd, tf, strategy), tensors, rounds if case == "ResNet-50" else 20 * rounds)
    if hvd.rank() == 0:
        print("TensorFlow %s, %d ranks, load %.1f" % (tf.__version__, hvd.size(), os.getloadavg()[0]))
        print("%-32s %12s %22s %14s" % ("", "16 B, us", "ResNet-50, us/tensor", "ResNet-50, ms"))
        for name in found["16 B"]:
            whole = found["ResNet-50"][name]
            figures = (found["16 B"][name] * 1e6, whole * 1e6 / len(shapes), whole * 1e3)
            print("%-32s %12.0f %22.0f %14.1f" % (name, *figures))
    hvd.barrier()
    hvd.shutdown()
    os._exit(0)  # TensorFlow's gRPC server cannot be stopped


main()
