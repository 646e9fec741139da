"""The conformance suite on the fake driver.

usage: fake_test.py MORE_OF_MAYPOLE_FAKE_CUDA (tests/gpu/fake/config.h)
"""

import os
import subprocess
import sys
import tempfile

PROGRAM = "tests/gpu/conformance/conformance"
DRIVER = "tests/gpu/fake"

with tempfile.TemporaryDirectory(prefix="mpg", dir="/tmp") as state:
    settings = "memory=512M,state=%s,%s" % (state, sys.argv[1])
    env = dict(os.environ, LD_LIBRARY_PATH=DRIVER, MAYPOLE_FAKE_CUDA=settings)
    sys.exit(subprocess.call([PROGRAM, "--gtest_brief=1"], env=env))
