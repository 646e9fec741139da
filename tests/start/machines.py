"""Machines that share nothing but a wire and a disk (needs root).

    with Machines(["n0", "n1"]) as machines:
        machines[0].run(["hostname"])          # prints n0
        machines[1].start(["sleep", "9"])      # a process in the background
        machines.dir                           # a directory that both see

A machine is a process that sleeps in a network, host name, mount and PID
namespace of its own. Every process there, even a detached one, is its descendant
(`Machine.processes()`), has the machine's host name, /etc/hosts and /tmp, and ends
with it. All end with the test, even when the test is killed with SIGKILL: the
kernel ends the sleeper with its parent, and the namespaces have no names that could
stay behind.
"""

import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import harness

V4 = ["10.213.78.%d/24" % n for n in (1, 2)]
V6 = ["fd4d:6179:706f:6c65::%d/64" % n for n in (1, 2)]

_SLEEPER = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pause()"


def available():
    """None, or the reason why machines cannot be made here."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for program in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(program, path=harness.environment()["PATH"]) is None:
            return program + " is not installed"
    made = subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"],
                          capture_output=True, text=True, env=harness.environment())
    return None if made.returncode == 0 else "cannot make namespaces: " + made.stderr.strip()


# A /tmp of its own, in which only $DIR and the programs are the outer one's.
_OWN_TMP = """\
mount -t tmpfs none /mnt && mkdir /mnt/outer && mount --bind /tmp /mnt/outer &&
mount -t tmpfs -o mode=1777 none /tmp || exit
for p in $SHARED; do mkdir -p "/tmp/$p" && mount --bind "/mnt/outer/$p" "/tmp/$p" || exit; done
umount /mnt/outer /mnt || exit
"""


def _shared(directory):
    """The names in /tmp that all machines see."""
    paths = [directory, os.path.realpath(harness.ROOT), os.path.realpath(harness.LIBRARY), harness.PYTHON]
    return sorted({p.split("/")[2] for p in paths if p.startswith("/tmp/")})


def hosts_of(names, addresses):
    """An /etc/hosts in which every machine finds every other."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for name, own in zip(names, addresses):
        lines += ["%s %s" % (ipaddress.ip_interface(a).ip, name) for a in own]
    return "\n".join(lines) + "\n"


class Machine:
    def __init__(self, name, hosts, binds, directory):
        """`binds`: [(directory made in `directory`, where it is shown)]."""
        self.name = name
        self._started = []
        hosts_file = os.path.join(directory, "hosts." + name)
        with open(hosts_file, "w") as f:
            f.write(hosts)
        mounts = [(hosts_file, "/etc/hosts")]
        for source, target in binds:
            os.makedirs(os.path.join(directory, source), exist_ok=True)
            mounts.append((os.path.join(directory, source), target))
        script = _OWN_TMP + "".join('mount --bind "$%d" "$%d" && ' % (2 * i + 2, 2 * i + 3) for i in range(len(mounts)))
        script += 'hostname "$1" && ip link set lo up && exec %s -c "%s"' % (harness.PYTHON, _SLEEPER)
        self._unshare = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount", "--pid",
             "--mount-proc", "--fork", "--kill-child", "sh", "-c", script, "sh", name]
            + [str(path) for pair in mounts for path in pair],
            env=harness.environment({"SHARED": " ".join(_shared(directory))}), stdin=subprocess.DEVNULL)
        self.pid = harness.wait_until(self._sleeper, 10, "machine %s to be up" % name)

    def _sleeper(self):
        if self._unshare.poll() is not None:
            raise AssertionError("cannot make machine " + self.name)
        table = harness.processes()
        return next((p for p, (parent, argv) in table.items()
                     if parent == self._unshare.pid and _SLEEPER in argv), None)

    def command(self, argv, cwd=None):
        inside = ["nsenter", "-t", str(self.pid), "--net", "--uts", "--mount", "--pid"]
        return inside + (["--wd=" + cwd] if cwd else []) + ["--"] + [str(a) for a in argv]

    def start(self, argv, cwd=None, **kwargs):
        kwargs.setdefault("env", harness.environment())
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        self._started.append(subprocess.Popen(self.command(argv, cwd), **kwargs))
        return self._started[-1]

    def run(self, argv, cwd=None, timeout=60, **kwargs):
        """The completed process, its output as text."""
        kwargs.setdefault("env", harness.environment())
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(self.command(argv, cwd), capture_output=True, text=True, timeout=timeout, **kwargs)

    def processes(self):
        """{pid: argv} of all processes on this machine."""
        table = harness.processes()
        return {p: table[p][1] for p in harness.descendants(self.pid) if p in table}

    def end(self):
        self._unshare.kill()
        self._unshare.wait()
        harness.wait_until(lambda: not harness.alive(self.pid), 10, "machine %s to end" % self.name)
        for process in self._started:
            process.wait()


class Machines:
    """One machine, or two joined by a wire."""

    def __init__(self, names, addresses=None, hosts=None, binds=None):
        """`addresses`: each machine's, as "ADDRESS/BITS" (default: one IPv4
        address each); `hosts`, `binds`: each machine's (see Machine)."""
        self.names = names
        self.addresses = addresses or [[V4[i]] for i in range(len(names))]
        self._hosts = hosts or [hosts_of(names, self.addresses)] * len(names)
        self._binds = binds or [()] * len(names)
        self._machines = []
        self.dir = None

    def __getitem__(self, i):
        return self._machines[i]

    def __len__(self):
        return len(self._machines)

    def __enter__(self):
        self._old = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.dir = tempfile.mkdtemp(prefix="mpm", dir="/tmp")
        os.chmod(self.dir, 0o755)
        try:
            for name, hosts, binds in zip(self.names, self._hosts, self._binds):
                self._machines.append(Machine(name, hosts, binds, self.dir))
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _ip(self, machine, *args):
        subprocess.run(["nsenter", "-t", str(machine.pid), "--net", "ip"] + list(args),
                       check=True, env=harness.environment())

    def _connect(self):
        if len(self) == 2:
            self._ip(self[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
                     "netns", str(self[1].pid))
        else:
            self._ip(self[0], "link", "add", "eth0", "type", "dummy")
        for machine, own in zip(self._machines, self.addresses):
            for address in own:
                nodad = ["nodad"] if ":" in address else []
                self._ip(machine, "addr", "add", address, "dev", "eth0", *nodad)
            self._ip(machine, "link", "set", "eth0", "up")

    def __exit__(self, *_):
        for machine in self._machines:
            machine.end()
        shutil.rmtree(self.dir, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._old)
