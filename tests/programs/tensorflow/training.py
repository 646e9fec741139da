"""TensorFlow's training layer on all ranks of a job: tapes, optimizers, hooks, SyncBatchNormalization.

Runs every function check_... of the modules named in its arguments, and records their names.
"""

import importlib
import sys

import maypole.tensorflow as hvd
import rank


def main():
    hvd.init()
    done = []
    for module in map(importlib.import_module, sys.argv[1:]):
        for name in sorted(vars(module)):
            if name.startswith("check_"):
                print("rank", hvd.rank(), name, flush=True)
                getattr(module, name)()
                done.append(name)
    rank.record(done=done)
    hvd.shutdown()


main()
