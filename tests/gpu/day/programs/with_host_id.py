"""Runs a Python program with this rank's own NCCL_HOSTID: with_host_id.py PROGRAM [ARGUMENT...]"""

import os
import sys

os.environ["NCCL_HOSTID"] = "day-" + os.environ["MAYPOLE_RANK"]
os.execv(sys.executable, [sys.executable, "-B"] + sys.argv[1:])
