"""The Debian packages and the wheel on clean machines: installed by apt and pip, first jobs, services, upgrade, purge."""

import os
import re
import shutil
import subprocess
import time
import unittest

import installed
import machine

WHEN = 1700000000
_SOURCES = "deb [trusted=yes] file:/srv/packages ./\n"
_SECRET = "--secret_file=/etc/maypole/secret"

# Fits a line with two ranks; prints when a rank has done its first step.
TRAIN = """
import numpy, time, maypole as hvd
hvd.init()
random = numpy.random.default_rng(hvd.rank())
weights = numpy.zeros(8)
for step in range(200):
    inputs = random.normal(size=(16, 8))
    gradient = inputs.T @ (inputs @ weights - inputs.sum(1)) / 16
    weights -= 0.1 * hvd.allreduce(gradient, name="gradient")
    if step == 0:
        print("FIRST %.2f" % time.time())
print("ERROR %.6f of %d" % (abs(weights - 1).max(), hvd.size()))
"""

# Runs until the file /srv/stop is there. Each step needs the coordinator, because its operation has a new name.
LOOP = """
import numpy, os, time, maypole as hvd
hvd.init()
step, stop = 0, 0
while not stop:
    step += 1
    stop = hvd.allreduce(numpy.array([float(os.path.exists("/srv/stop"))]), op=hvd.Max, name="step%d" % step)[0]
    with open("/srv/loop/steps", "w") as file:
        file.write(str(step))
    time.sleep(0.02)
print("STEPS %d" % step)
"""

# A rank of LOOP: its number, and the socket of its agent.
_RANK = ("cd /srv/loop; runuser -u alice -- env MAYPOLE_AGENT=%s MAYPOLE_RANK=%d MAYPOLE_SIZE=2 MAYPOLE_LOCAL_RANK=0 MAYPOLE_LOCAL_SIZE=1 "
         "MAYPOLE_JOB=loop MAYPOLE_TOKEN=0123456789abcdef0123456789abcdef python3 -u /srv/loop.py >/srv/loop/out.%d 2>&1 &")


class SameInputsTest(unittest.TestCase):
    def test_the_same_inputs_give_the_same_packages(self):
        made = []
        for _ in range(2):
            directory = installed.directory()
            self.addCleanup(shutil.rmtree, directory)
            made.append({})
            for package, path in installed.make_debs(directory, WHEN).items():
                with open(path, "rb") as f:
                    made[-1][package] = f.read()
        self.assertEqual(len(made[0]), 4)
        self.assertEqual(*made)


class AptTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = installed.directory()
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.original = os.path.join(cls.dir, "debian")
        machine.make(cls.original)

    def machine(self):
        """A clean machine with a user alice, and the packages as a source of apt."""
        made = machine.Machine(self.original, os.path.join(self.dir, self.id().rpartition(".")[2]))
        self.addCleanup(made.remove)
        packages = made.path + "/srv/packages"
        os.mkdir(packages)
        installed.make_debs(packages, WHEN, level=0)
        index = subprocess.run(["dpkg-scanpackages", "."], cwd=packages, check=True, capture_output=True, text=True).stdout
        made.write("/srv/packages/Packages", index)
        made.write("/etc/apt/sources.list.d/packages.list", _SOURCES)
        made.write("/srv/train.py", TRAIN)
        made.write("/srv/loop.py", LOOP)
        made.run("apt-get update && useradd --create-home alice && install -d -o alice /srv/loop")
        return made

    def check_training(self, said):
        errors = re.findall(r"ERROR (\S+) of 2", said)
        self.assertEqual(len(errors), 2, said)
        self.assertLess(max(map(float, errors)), 0.01)

    def left(self, made):
        """The paths of Maypole that are on a machine, other than those of this test."""
        found = made.run("find / -xdev -name '*maypole*' ! -path '/srv/*' ! -path '/proc/*' ! -path '/sys/*'").split()
        # Of journald and pam, apt's lists, and the file in which debconf or dpkg note what they did.
        return [path for path in found if not path.startswith(("/var/lib/apt/lists/", "/var/log/"))]

    def test_apt_first_job_purge(self):
        made = self.machine()
        before = set(made.run("dpkg-query -W -f '${Package}\n'").split())
        began = time.time()
        made.run("apt-get install --yes maypole")
        ready = time.time()
        said = made.run("runuser -u alice -- maypolerun -np 2 python3 /srv/train.py")
        first = max(float(t) for t in re.findall(r"FIRST (\S+)", said))
        print("apt install: %.1f s, first step: %.1f s after its start" % (ready - began, first - began))
        self.check_training(said)
        self.assertIn("python3-maypole", made.run("dpkg-query -W -f '${Package}\n'").split())
        # Services without systemd: enabled, not started.
        made.run("apt-get install --yes maypole-coordinator maypole-worker")
        self.assertEqual(made.run("stat -c '%a %U' /etc/maypole/secret"), "600 root\n")
        made.run("apt-get purge --yes --autoremove maypole python3-maypole maypole-coordinator maypole-worker")
        self.assertEqual(self.left(made), [])
        made.run("getent passwd maypole", status=2)
        after = set(made.run("dpkg-query -W -f '${Package}\n'").split())
        self.assertEqual({name for name in after - before if "maypole" in name}, set())

    def test_the_wheel(self):
        made = self.machine()
        made.run("apt-get install --yes --no-install-recommends python3-venv")
        name = os.path.basename(installed.make_wheel(made.path + "/srv"))
        began = time.time()
        made.run("runuser -u alice -- sh -c 'python3 -m venv ~/env && ~/env/bin/pip install --no-index /srv/%s'" % name)
        code = "import maypole as hvd; hvd.init(); print('RANKS', hvd.allgather_object(hvd.rank()))"
        said = made.run('runuser -u alice -- sh -c \'~/env/bin/maypolerun -np 2 ~/env/bin/python -c "%s"\'' %
                        code.replace("'", '\\"'))
        print("venv, pip install and a job: %.1f s" % (time.time() - began))
        self.assertEqual(said.count("RANKS [0, 1]"), 2, said)

    # --- The services ---------------------------------------------------------

    def pid(self, made, service):
        return made.run("systemctl show --property=MainPID --value %s" % service).strip()

    def steps(self, made):
        return int(made.wait("cat /srv/loop/steps | grep ."))

    def check_loop_goes_on(self, made):
        seen = self.steps(made)
        made.wait("[ $(cat /srv/loop/steps) -gt %d ]" % (seen + 20))

    def test_services(self):
        made = self.machine()
        made.run("apt-get install --yes --no-install-recommends systemd-sysv dbus iproute2 python3-numpy "
                 "maypole-worker maypole-coordinator python3-maypole")
        os.mkdir(made.path + "/srv/newer")
        installed.make_debs(made.path + "/srv/newer", WHEN, revision="2", level=0)
        made.boot()
        made.run("systemctl is-active maypole-coordinator maypole-worker")
        made.run("systemd-analyze verify --man=no maypole-coordinator.service maypole-worker.service")
        addresses = re.findall(r"^LISTEN +\d+ +\d+ +(\S+):\d+", made.run("ss -Hltn | cat"), re.M)
        self.assertEqual(set(addresses), {"127.0.0.1"})
        self.assertEqual(made.run("stat -c '%a %U' /run/maypole-coordinator/secret"), "400 maypole\n")
        self.check_training(made.run("runuser -u alice -- maypolerun --agent -np 2 python3 /srv/train.py"))
        self.assertIn("1 job", made.run("maypolectl status " + _SECRET))
        made.run("runuser -u alice -- maypolectl status", status=1)

        # A job on two nodes, of which one is an agent of its own.
        made.run("systemd-run --unit=other maypole-worker --socket=/run/other.sock --node=other --metrics= "
                 "--coordinator=127.0.0.1:4001 " + _SECRET)
        made.wait("test -S /run/other.sock")
        made.run("".join(_RANK % (socket, rank, rank) for rank, socket in enumerate(["/run/maypole/agent.sock", "/run/other.sock"])))
        self.check_loop_goes_on(made)
        # The unit lets an executor write where its job's user may.
        made.run("maypolectl timeline loop " + _SECRET)
        made.wait("grep -q step /srv/loop/maypole-timeline-loop-*.json")
        made.run("maypolectl timeline loop --stop " + _SECRET)
        before = self.pid(made, "maypole-coordinator")
        made.run("systemctl restart maypole-coordinator")
        self.assertNotEqual(self.pid(made, "maypole-coordinator"), before)
        self.check_loop_goes_on(made)

        # The agent is killed: another one starts, and the job goes on.
        before = self.pid(made, "maypole-worker")
        made.run("kill -KILL " + before)
        made.wait("systemctl is-active maypole-worker && [ $(systemctl show --property=MainPID --value maypole-worker) != %s ]" % before)
        self.check_loop_goes_on(made)
        made.wait("test -S /run/maypole/agent.sock")
        self.check_training(made.run("runuser -u alice -- maypolerun --agent -np 2 python3 /srv/train.py"))

        # An upgrade restarts nothing.
        before = [self.pid(made, "maypole-coordinator"), self.pid(made, "maypole-worker")]
        said = made.run("apt-get install --yes /srv/newer/*.deb")
        self.assertIn("maypole-worker: the service still runs the version from before. A restart ends its jobs", said)
        self.assertIn("maypole-coordinator: the service still runs the version from before. This one ends no job", said)
        self.assertEqual([self.pid(made, "maypole-coordinator"), self.pid(made, "maypole-worker")], before)
        self.check_loop_goes_on(made)
        made.run("touch /srv/stop")
        made.wait("grep STEPS /srv/loop/out.0 && grep STEPS /srv/loop/out.1")
        made.run("systemctl restart maypole-worker && systemctl stop other")
        self.check_training(made.run("runuser -u alice -- maypolerun --agent -np 2 python3 /srv/train.py"))

        # A stop, a wrong flag, and the end.
        made.run("systemctl stop maypole-worker")
        self.assertEqual(made.run("systemctl show --property=Result --value maypole-worker"), "success\n")
        made.run("echo --no_such_flag >>/etc/maypole/worker.conf; systemctl start maypole-worker; true")
        made.wait("systemctl is-failed maypole-worker")
        self.assertIn("no_such_flag", made.run("journalctl --unit=maypole-worker --no-pager"))
        self.assertEqual(made.run("systemctl show --property=NRestarts --value maypole-worker"), "0\n")
        made.run("apt-get purge --yes maypole-worker")
        made.run("test -e /etc/maypole/secret")  # the coordinator still needs it
        made.run("systemctl is-active maypole-coordinator")
        made.run("apt-get purge --yes maypole-coordinator python3-maypole maypole")
        self.assertEqual([path for path in self.left(made) if not path.startswith("/run/systemd/")], [])
        made.run("grep -qs maypole /proc/[0-9]*/comm", status=1)


if __name__ == "__main__":
    unittest.main()
