"""The Debian packages and the wheel on clean machines: apt and pip install them, jobs, services, upgrade, purge."""

import os
import re
import shutil
import subprocess
import tarfile
import time
import unittest

import installed
import machine
import sdist

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

# A rank of LOOP: its agent's socket and its number.
_RANK = ("cd /srv/loop; runuser -u alice -- env MAYPOLE_AGENT={0} MAYPOLE_RANK={1} MAYPOLE_SIZE=2 MAYPOLE_LOCAL_RANK=0 "
         "MAYPOLE_LOCAL_SIZE=1 MAYPOLE_JOB=loop MAYPOLE_TOKEN=0123456789abcdef0123456789abcdef "
         "python3 -u /srv/loop.py >/srv/loop/out.{1} 2>&1 &")
_AGENT_JOB = "runuser -u alice -- maypolerun --agent -np 2 python3 /srv/train.py"


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
        index = subprocess.run(["dpkg-scanpackages", "."], cwd=packages, check=True, capture_output=True, text=True)
        made.write("/srv/packages/Packages", index.stdout)
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
        return [path for path in found if not path.startswith(("/var/lib/apt/lists/", "/var/log/", "/run/systemd/"))]

    def test_apt_first_job_purge(self):
        made = self.machine()
        began = time.time()
        made.run("apt-get install --yes maypole")
        ready = time.time()
        said = made.run("runuser -u alice -- maypolerun -np 2 python3 /srv/train.py")
        first = max(float(t) for t in re.findall(r"FIRST (\S+)", said))
        print("apt install: %.1f s, first step: %.1f s after its start" % (ready - began, first - began))
        self.check_training(said)
        # Services without systemd: enabled, not started.
        made.run("apt-get install --yes maypole-coordinator maypole-worker")
        self.assertEqual(made.run("stat -c '%a %U' /etc/maypole/secret"), "600 root\n")
        made.run("apt-get purge --yes --autoremove maypole python3-maypole maypole-coordinator maypole-worker")
        self.assertEqual(self.left(made), [])
        made.run("getent passwd maypole", status=2)
        made.run("getent group maypole", status=2)

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

    # --- The services, under systemd -------------------------------------------

    def test_the_quickstart_with_the_wheel(self):
        # An unpacked sdist, and the wheel beside it; nobody has installed anything.
        made = machine.Machine(self.original, os.path.join(self.dir, "quickstart"))
        self.addCleanup(made.remove)
        name = sdist.make_sdist(self.dir, installed.source_tree())
        with tarfile.open(os.path.join(self.dir, name)) as archive:
            archive.extractall(made.path + "/srv")
        installed.make_wheel(made.path + "/srv")
        deploy = "/srv/%s/deploy" % name[:-len(".tar.gz")]
        # A third of a thousand packages: minutes, on a busy machine many.
        made.run(deploy + "/setup.sh wheel run", seconds=2400)
        said = made.run(deploy + "/quickstart.sh --wheel --epochs 1 --limit 20000")
        self.assertRegex(said, r"<stdout>:ranks: 4, training time: ")
        self.assertRegex(said, r"node1  maypole_executor_operations_total\S* [1-9]")
        self.assertRegex(said, r"quickstart: done after \d+ s\. Next:  \. out/venv/bin/activate; maypolerun --help\n$")
        made.run("! command -v g++ && ! command -v bazel && ! command -v git")

    def test_services(self):
        made = self.machine()
        made.run("apt-get install --yes --no-install-recommends systemd-sysv dbus iproute2 python3-numpy "
                 "maypole-worker maypole-coordinator python3-maypole")
        os.mkdir(made.path + "/srv/newer")
        installed.make_debs(made.path + "/srv/newer", WHEN, revision="2", level=0)
        made.boot()
        self.check_start(made)
        self.start_loop(made)
        self.check_timeline(made)
        self.check_restart_of_the_coordinator(made)
        self.check_crash_of_the_agent(made)
        self.check_upgrade(made)
        made.run("touch /srv/stop")
        made.wait("grep STEPS /srv/loop/out.0 && grep STEPS /srv/loop/out.1")
        made.run("systemctl restart maypole-worker && systemctl stop other")
        self.check_training(made.run(_AGENT_JOB))
        self.check_stop_and_wrong_flag(made)
        self.check_purge(made)

    def pid(self, made, service):
        return made.run("systemctl show --property=MainPID --value " + service).strip()

    def check_start(self, made):
        made.run("systemctl is-active maypole-coordinator maypole-worker")
        made.run("systemd-analyze verify --man=no maypole-coordinator.service maypole-worker.service")
        addresses = re.findall(r"^LISTEN +\d+ +\d+ +(\S+):\d+", made.run("ss -Hltn | cat"), re.M)
        self.assertEqual(set(addresses), {"127.0.0.1"})
        self.assertEqual(made.run("stat -c '%a %U' /run/maypole-coordinator/secret"), "400 maypole\n")
        self.check_training(made.run(_AGENT_JOB))
        self.assertIn("1 job", made.run("maypolectl status " + _SECRET))
        made.run("runuser -u alice -- maypolectl status", status=1)

    def start_loop(self, made):
        """A job on two nodes, of which one is an agent of its own."""
        made.run("systemd-run --unit=other maypole-worker --socket=/run/other.sock --node=other --metrics= "
                 "--coordinator=127.0.0.1:4001 " + _SECRET)
        made.wait("test -S /run/other.sock")
        made.run(_RANK.format("/run/maypole/agent.sock", 0) + _RANK.format("/run/other.sock", 1))
        self.check_loop_goes_on(made)

    def check_loop_goes_on(self, made):
        seen = int(made.wait("grep . /srv/loop/steps"))
        made.wait("[ $(cat /srv/loop/steps) -gt %d ]" % (seen + 20))

    def check_timeline(self, made):
        """The unit lets an executor write where its job's user may."""
        made.run("maypolectl timeline loop " + _SECRET)
        made.wait("grep -q step /srv/loop/maypole-timeline-loop-*.json")
        made.run("maypolectl timeline loop --stop " + _SECRET)

    def check_restart_of_the_coordinator(self, made):
        before = self.pid(made, "maypole-coordinator")
        made.run("systemctl restart maypole-coordinator")
        self.assertNotEqual(self.pid(made, "maypole-coordinator"), before)
        self.check_loop_goes_on(made)

    def check_crash_of_the_agent(self, made):
        """Another agent starts, for new jobs, too; the old job goes on."""
        before = self.pid(made, "maypole-worker")
        made.run("kill -KILL " + before)
        made.wait("systemctl is-active maypole-worker && "
                  "[ $(systemctl show --property=MainPID --value maypole-worker) != %s ]" % before)
        self.check_loop_goes_on(made)
        made.wait("test -S /run/maypole/agent.sock")
        self.check_training(made.run(_AGENT_JOB))

    def check_upgrade(self, made):
        """It restarts nothing."""
        services = ("maypole-coordinator", "maypole-worker")
        before = [self.pid(made, service) for service in services]
        said = made.run("apt-get install --yes /srv/newer/*.deb")
        for service, what in zip(services, ("This one ends no job", "A restart ends its jobs")):
            self.assertIn("%s: the service still runs the version from before. %s" % (service, what), said)
        self.assertEqual([self.pid(made, service) for service in services], before)
        self.check_loop_goes_on(made)

    def check_stop_and_wrong_flag(self, made):
        made.run("systemctl stop maypole-worker")
        self.assertEqual(made.run("systemctl show --property=Result --value maypole-worker"), "success\n")
        made.run("echo --no_such_flag >>/etc/maypole/worker.conf; systemctl start maypole-worker; true")
        made.wait("systemctl is-failed maypole-worker")
        self.assertIn("no_such_flag", made.run("journalctl --unit=maypole-worker --no-pager"))
        self.assertEqual(made.run("systemctl show --property=NRestarts --value maypole-worker"), "0\n")

    def check_purge(self, made):
        made.run("apt-get purge --yes maypole-worker")
        made.run("test -e /etc/maypole/secret")  # the coordinator still needs it
        made.run("systemctl is-active maypole-coordinator")
        made.run("apt-get purge --yes maypole-coordinator python3-maypole maypole")
        self.assertEqual(self.left(made), [])
        made.run("grep -qs maypole /proc/[0-9]*/comm", status=1)


if __name__ == "__main__":
    unittest.main()
