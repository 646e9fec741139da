"""Two machines, a and b, that reach each other by a real ssh (needs root).

    with SshMachines() as net:
        job = net.start(["-np", "2", "-H", "a:1,b:1", "--", "hostname"])
        job.wait(30)

a and b are machines.Machine; b runs sshd on a port of its own. Keys, known
hosts and configurations are the test's: nothing of ~/.ssh or /etc/ssh is read
or written. `ssh` on the jobs' PATH is the real one with that configuration.
"""

import os
import shutil
import subprocess

import harness
import machines

PORT = 2207
SSHD = "/usr/sbin/sshd"

_SSHD_CONFIG = """\
Port %(port)d
HostKey %(dir)s/host_key
AuthorizedKeysFile %(dir)s/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
LogLevel VERBOSE
"""

_SSH_CONFIG = """\
UserKnownHostsFile %(dir)s/known_hosts
GlobalKnownHostsFile /dev/null
IdentityFile %(dir)s/user_key
IdentitiesOnly yes
IdentityAgent none
"""


def client_config(directory):
    return _SSH_CONFIG % {"dir": directory}


def available():
    """None, or the reason why this cannot be tested here."""
    for program in ("ssh", "ssh-keygen"):
        if shutil.which(program, path=harness.environment()["PATH"]) is None:
            return program + " is not installed"
    if not os.path.exists(SSHD):
        return "sshd is not installed"
    return machines.available()


def _is_sshd(argv):
    # A session calls itself "sshd: root@notty".
    return os.path.basename(argv[0].split(" ")[0]).rstrip(":") == "sshd"


class Job:
    """One maypolerun on a machine."""

    def __init__(self, net, machine, argv, env, prefix, **kwargs):
        self.net = net
        self.dir = os.path.join(net.dir, "job%d" % net.jobs)
        net.jobs += 1
        os.mkdir(self.dir)
        self.argv = [os.path.join(harness.ROOT, harness.PROGRAMS[0])] + argv
        variables = {"MAYPOLE_TEST_DIR": self.dir, "FROM_THE_HEAD": "two words",
                     "PATH": net.bin + os.pathsep + harness.environment()["PATH"]}
        variables.update(env or {})
        self._out = open(os.path.join(self.dir, "stdout"), "wb")
        self._err = open(os.path.join(self.dir, "stderr"), "wb")
        kwargs.setdefault("cwd", self.dir)
        self.process = machine.start(prefix + self.argv, env=harness.environment(variables),
                                     stdout=self._out, stderr=self._err, **kwargs)

    def maypolerun(self):
        """The pid of maypolerun itself; the direct child is nsenter."""
        table = harness.processes()
        return harness.wait_until(
            lambda: next((p for p in [self.process.pid] + harness.descendants(self.process.pid)
                          if harness.processes().get(p, (0, [""]))[1][0] == self.argv[0]), None),
            10, "maypolerun in %d processes" % len(table))

    def wait(self, seconds=60):
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("the job did not end within %g s:\n%s" % (seconds, self.stderr()))

    def read(self, name, mode="r"):
        with open(os.path.join(self.dir, name), mode) as f:
            return f.read()

    def stdout(self):
        return self.read("stdout")

    def stderr(self):
        return self.read("stderr")

    def await_file(self, name, seconds=60):
        def there():
            if os.path.exists(os.path.join(self.dir, name)):
                return True
            if self.process.poll() is not None:
                raise AssertionError("the job ended before %s appeared:\n%s" % (name, self.stderr()))
            return False
        harness.wait_until(there, seconds, name)
        return self.read(name)

    def touch(self, name):
        with open(os.path.join(self.dir, name), "w"):
            pass

    def close(self):
        harness.kill_tree(self.process)
        self._out.close()
        self._err.close()


class SshMachines(machines.Machines):
    def __init__(self, **kwargs):
        super().__init__(["a", "b"], **kwargs)
        self.jobs = 0
        self._started = []

    def __enter__(self):
        super().__enter__()
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *args):
        for job in self._started:
            job.close()
        super().__exit__(*args)

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w") as f:
            f.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def make_key(self, name):
        path = self.path(name)
        for old in (path, path + ".pub"):
            if os.path.exists(old):
                os.unlink(old)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True,
                       env=harness.environment(), stdin=subprocess.DEVNULL)
        return path

    def _set_up(self):
        # sshd wants it; the machine's own /run goes with it.
        self[1].run(["sh", "-c", "mount -t tmpfs none /run && mkdir -m 755 /run/sshd"]).check_returncode()
        self.bin = self.path("bin")
        os.mkdir(self.bin)
        for key in ("host_key", "user_key"):
            self.make_key(key)
        shutil.copy(self.path("user_key.pub"), self.path("authorized_keys"))
        self.write("sshd_config", _SSHD_CONFIG % {"port": PORT, "dir": self.dir})
        self.write("ssh_config", client_config(self.dir))
        self.write("bin/ssh", '#!/bin/sh\nexec /usr/bin/ssh -F %s "$@"\n' % self.path("ssh_config"), 0o755)
        self.start_sshd()

    def start_sshd(self):
        self.sshd = self[1].start([SSHD, "-D", "-f", self.path("sshd_config"), "-E", self.path("sshd.log")])
        harness.wait_until(self._listens, 10, "sshd to listen")

    def _listens(self):
        if self.sshd.poll() is not None:
            with open(self.path("sshd.log")) as f:
                raise AssertionError("sshd ended: " + f.read())
        with open("/proc/%d/net/tcp" % self[1].pid) as f:
            return any(line.split()[1].endswith(":%04X" % PORT) and line.split()[3] == "0A"
                       for line in f.readlines()[1:])

    def stop_sshd(self):
        for pid, argv in self.inside(1).items():
            if _is_sshd(argv):
                harness.kill(pid)
        self.sshd.wait()

    def start(self, argv, machine=0, env=None, ssh=True, prefix=(), **kwargs):
        """Starts maypolerun; `ssh`: with sshd's port; `prefix`: words before the command."""
        options = ["-p", str(PORT)] if ssh else []
        job = Job(self, self[machine], options + argv, env, list(prefix), **kwargs)
        self._started.append(job)
        return job

    def inside(self, machine):
        """{pid: argv} of all processes on the machine except its first one."""
        space = os.readlink("/proc/%d/ns/pid" % self[machine].pid)
        found = {}
        for pid, (_, argv) in harness.processes().items():
            try:
                if os.readlink("/proc/%d/ns/pid" % pid) == space and pid != self[machine].pid:
                    found[pid] = argv
            except OSError:
                pass  # gone meanwhile
        return found

    def strangers(self, machine):
        """{pid: command line} of the processes there other than sshd."""
        return {pid: " ".join(argv) for pid, argv in self.inside(machine).items() if not _is_sshd(argv)}

    def await_quiet(self, seconds, machine=1):
        """Waits until no process of a job is left on the machine."""
        harness.wait_until(lambda: not self.strangers(machine), seconds,
                           "the end of %s on %s" % (self.strangers(machine), self.names[machine]))
