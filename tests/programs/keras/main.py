"""Runs all cases, or those that are named: main.py [tf.keras] [case ...]"""

import sys
import time

import parts
import rank
import training
from setting import BACKEND, KERAS3, checks, hvd, keras

seconds = {}
for case in training.CASES + parts.CASES:
    wanted = [name for name in sys.argv[1:] if name != "tf.keras"]
    if not wanted or case.__name__ in wanted:
        began = time.monotonic()
        case()
        seconds[case.__name__] = round(time.monotonic() - began, 1)
print(seconds, checks, flush=True)
rank.record(checks=checks[0], seconds=seconds, keras=getattr(keras, "__version__", "2"), backend=BACKEND, keras3=KERAS3)
hvd.shutdown()
