"""A real Slurm of two machines: slurmctld, two slurmd, munged (needs root).

    with slurm_fixture.Slurm() as slurm:
        slurm.run(["srun", "-N2", "-n4", "hostname"])

Slurm believes that the machines n0 and n1 (machines.py) have 4 CPUs each; slurmctld
runs on n0, where `run` and `start` also start their commands. Key, configuration,
state and logs are in a temporary directory, which is removed at the end.
"""

import ipaddress
import os
import shutil

import harness
import machines

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "scancel", "squeue", "sinfo", "munged")

CONF = """\
ClusterName=maypole
SlurmctldHost=n0({addresses[0]})
{ipv6}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
SlurmctldParameters=idle_on_node_suspend
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
LaunchParameters=use_interactive_step
ReturnToService=2
MpiDefault=none
KillWait=2
NodeName=n0 NodeAddr={addresses[0]} CPUs=4 State=UNKNOWN
NodeName=n1 NodeAddr={addresses[1]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def available():
    """None, or the reason why Slurm cannot run here."""
    path = harness.environment()["PATH"]
    missing = [p for p in PROGRAMS if shutil.which(p, path=path) is None]
    if missing:
        return "not installed: %s (slurm-wlm, munge)" % ", ".join(missing)
    return machines.available()


class Slurm:
    def __init__(self, **kwargs):
        """`kwargs`: of the Machines, but names; each's first address is Slurm's."""
        self.machines = machines.Machines(["n0", "n1"], **kwargs)

    def __enter__(self):
        self.machines.__enter__()
        try:
            self.dir = self.machines.dir
            self._configure()
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _path(self, *names):
        return os.path.join(self.dir, *names)

    def _configure(self):
        for name in ("munge", "state", "spool.n0", "spool.n1"):
            os.mkdir(self._path(name), 0o755)
        with open(self._path("munge", "key"), "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(128))
        with open(self._path("slurm.conf"), "w") as f:
            addresses = [str(ipaddress.ip_interface(own[0]).ip) for own in self.machines.addresses]
            ipv6 = "CommunicationParameters=EnableIPv6,DisableIPv4" if ":" in addresses[0] else ""
            f.write(CONF.format(dir=self.dir, addresses=addresses, ipv6=ipv6))
        with open(self._path("cgroup.conf"), "w") as f:
            f.write("CgroupAutomount=no\n")

    def _start(self):
        n0, n1 = self.machines
        self._check(n0.run(["munged", "--force"] + [
            "--%s=%s" % (flag, self._path("munge", file)) for flag, file in (
                ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"),
                ("log-file", "log"), ("seed-file", "seed"))]))
        conf = self._path("slurm.conf")
        self._log = open(self._path("log"), "wb")
        for machine, argv in ((n0, ["slurmctld", "-D", "-f", conf]),
                              (n0, ["slurmd", "-D", "-N", "n0", "-f", conf]),
                              (n1, ["slurmd", "-D", "-N", "n1", "-f", conf])):
            machine.start(argv, stdout=self._log, stderr=self._log)
        harness.wait_until(self._idle, 30, "slurmd of both machines")

    def _idle(self):
        return self.run(["sinfo", "-h", "-N", "-o", "%t"]).stdout.split() == ["idle", "idle"]

    def _check(self, completed):
        if completed.returncode != 0:
            raise AssertionError("%s: %s" % (completed.args, completed.stderr))

    def environment(self, extra=None, root=harness.ROOT):
        env = harness.environment({"SLURM_CONF": self._path("slurm.conf")}, root)
        env.update(extra or {})
        return env

    def run(self, argv, env=None, **kwargs):
        return self.machines[0].run(argv, env=self.environment(env), **kwargs)

    def start(self, argv, env=None, **kwargs):
        return self.machines[0].start(argv, env=self.environment(env), **kwargs)

    def has_pmix(self):
        """Whether `srun --mpi=pmix` is available."""
        listed = self.run(["srun", "--mpi=list"])
        return "pmix" in listed.stdout + listed.stderr

    def processes(self):
        """[argv] of the processes on both machines, without Slurm's own daemons."""
        own = ("munged", "slurmctld", "slurmd", "slurmstepd:")
        return [argv for machine in self.machines for argv in machine.processes().values()
                if not os.path.basename(argv[0].split()[0] if argv[0] else "").startswith(own)]

    def logs(self):
        texts = []
        for name in ("log", "slurmctld.log", "slurmd.n0.log", "slurmd.n1.log"):
            try:
                with open(self._path(name), errors="replace") as f:
                    texts.append("--- %s\n%s" % (name, f.read()[-3000:]))
            except OSError:
                pass
        return "\n".join(texts)

    def __exit__(self, kind, value, trace):
        if kind is not None and self.machines.dir:
            print(self.logs(), flush=True)
        if hasattr(self, "_log"):
            self._log.close()
        self.machines.__exit__()
        return False
