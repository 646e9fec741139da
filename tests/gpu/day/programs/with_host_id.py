"""Runs a Python program with an NCCL_HOSTID of this rank's own: with_host_id.py PROGRAM [ARGUMENT...]"""

import os
import sys

os.environ["NCCL_HOSTID"] = "day-" + os.environ["MAYPOLE_RANK"]
os.execv(sys.executable, [sys.executable, "-B"] + sys.argv[1:])
