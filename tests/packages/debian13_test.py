"""Debian 13 (gcc 14, Python 3.13, no gold): setup.sh's names, the build, the unit tests, and a job, on a clean machine."""

import os
import re
import shutil
import unittest

import installed
import machine

_HOURS = 3 * 3600
# The groups of packages that setup.sh has for the machine on which it runs.
_GROUPS = "sed '/^fail()/,$d' deploy/setup.sh >/tmp/groups; . /tmp/groups; "
_INSTALL = "apt-get install --yes --no-install-recommends "
_UNIT_TESTS = "kind(cc_test, //client/... + //coordinator/... + //worker/...)"

JOB = """
import numpy, maypole as hvd
hvd.init()
print("SUM", hvd.allreduce(numpy.ones(1000), op=hvd.Sum).sum())
"""


class Debian13Test(unittest.TestCase):
    def test_build_unit_tests_and_a_job(self):
        directory = installed.directory()
        self.addCleanup(shutil.rmtree, directory)
        original = os.path.join(directory, "debian")
        machine.make(original, "trixie")
        made = machine.Machine(original, os.path.join(directory, "machine"))
        self.addCleanup(made.remove)
        name = os.path.basename(installed.unpack_sdist(made.path + "/srv"))

        def run(command, seconds=_HOURS):
            return made.run("cd /srv/%s; " % name + command, seconds=seconds)

        run("apt-get update")
        run(_GROUPS + _INSTALL + "--simulate $build $test $run")  # the release has packages of all these names
        run(_GROUPS + _INSTALL + "$build libgtest-dev libgmock-dev googletest libbenchmark-dev libgloo-dev python3-numpy")
        run("deploy/build.sh")
        made.write("/srv/job.py", JOB)
        self.assertEqual(run(". deploy/env.sh; maypolerun -np 2 --nodes 2 python3 /srv/job.py").count("SUM 2000.0"), 2)

        run("bazel query '%s - attr(tags, \"slow|large\", //...)' >/tmp/tests" % _UNIT_TESTS)
        said = run("bazel test -c opt --keep_going $(cat /tmp/tests)")
        tests = len(run("cat /tmp/tests").split())
        self.assertGreater(tests, 100)
        self.assertTrue(re.search(r"Executed %d out of %d tests: %d tests pass\." % (tests, tests, tests), said), said[-5000:])


if __name__ == "__main__":
    unittest.main()
