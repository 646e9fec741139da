"""Memory limits of control groups, version 1 or 2 (needs root).

    with limits.MemoryLimit(64 << 20) as limit:
        subprocess.Popen(limit.wrap() + command)   # limits it and its children
        limit.kills()                              # processes that the OOM killer has killed
"""

import os
import time

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
SH = 'echo $$ >"$0" && exec "$@"'


def available():
    """None, or the reason why no limit can be set here."""
    if os.geteuid() != 0:
        return "memory control groups need root"
    try:
        with MemoryLimit(1 << 30):
            return None
    except OSError as error:
        return "cannot make a memory control group: %s" % error


class MemoryLimit:
    def __init__(self, size):
        self.size = size
        self.old = os.path.isdir(V1)
        self.path = os.path.join(V1 if self.old else V2, "mp%d" % os.getpid())

    def __enter__(self):
        os.mkdir(self.path)
        try:
            self._write("memory.limit_in_bytes" if self.old else "memory.max", self.size)
        except OSError:
            self.__exit__()
            raise
        return self

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def wrap(self):
        """The words before a command that make it run in the group."""
        return ["/bin/sh", "-c", SH, os.path.join(self.path, "cgroup.procs")]

    def take(self, pid):
        """Moves a process into the group; its later children are in it too."""
        with open("/proc/%d/cgroup" % pid) as f:
            lines = dict(line.strip().split(":", 2)[1:] for line in f)
        self.came_from = (V1 + lines["memory"]) if self.old else V2 + lines[""]
        self._write("cgroup.procs", pid)

    def release(self, pid):
        """Moves the process back to its previous group."""
        with open(os.path.join(self.came_from, "cgroup.procs"), "w") as f:
            f.write(str(pid))

    def kills(self):
        with open(os.path.join(self.path, "memory.oom_control" if self.old else "memory.events")) as f:
            return dict(line.split() for line in f)["oom_kill"]

    def __exit__(self, *_):
        for _ in range(500):  # until its last process has been reaped
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.01)
        raise AssertionError("%s has processes still" % self.path)
