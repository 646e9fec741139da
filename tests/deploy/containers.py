"""Images and containers for tests, by buildah and podman in a storage of their own, without a registry (needs root).

    with containers.Storage() as storage:
        storage.build("deploy/docker/Dockerfile", "maypole:0.1.0", context)
        storage.run("maypole:0.1.0", "id", options=["--network", "none"])

The base image is named debian:bookworm-slim; mmdebstrap makes it from Debian's packages, once, in the user's cache.
Builds use --isolation=chroot. This machine's cgroups are hidden from podman, which does not know every layout of them.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time

import harness

BASE = "docker.io/library/debian:bookworm-slim"
_PROGRAMS = ("buildah", "podman", "mmdebstrap", "crun")
_HIDE_CGROUPS = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
_SECONDS = 900


def available():
    """None, or the reason why containers cannot be made here."""
    if os.geteuid() != 0:
        return "building images here needs root"
    missing = [p for p in _PROGRAMS if shutil.which(p, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return "not installed: " + ", ".join(missing) if missing else None


def _base():
    cache = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "maypole")
    # A new one each month, with Debian's security updates of then.
    path = os.path.join(cache, "debian-bookworm-%s.tar" % time.strftime("%Y-%m"))
    if not os.path.exists(path):
        os.makedirs(cache, exist_ok=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", path + ".new.tar"], check=True,
                       timeout=_SECONDS)
        os.rename(path + ".new.tar", path)
    return path


class Storage:
    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="mpi", dir="/tmp")
        os.chmod(self.dir, 0o755)
        self._own = ["--root", self.dir + "/storage", "--runroot", self.dir + "/run", "--storage-driver", "overlay"]
        # The default limits are higher than what this process may set.
        self._limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
        try:
            self.command("podman", "import", _base(), BASE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.command("buildah", "rm", "--all", check=False)
        shutil.rmtree(self.dir)

    def command(self, program, *args, check=True):
        done = subprocess.run([program, *self._own, *args], capture_output=True, text=True, timeout=_SECONDS,
                              env=harness.environment(), stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise AssertionError("%s %s\n%s\n%s" % (program, " ".join(args), done.stdout[-3000:], done.stderr[-3000:]))
        return done.stdout

    def build(self, file, tag, context):
        self.command("buildah", "build", "--isolation", "chroot", *self._limits, "-f", file, "-t", tag, context)

    def argv(self, image, *command, options=()):
        """The command that runs a container."""
        podman = ["podman", *self._own, "run", "--rm", "--cgroups=disabled", *self._limits, *options, image, *command]
        return ["unshare", "--mount", "sh", "-c", _HIDE_CGROUPS, "sh", *podman]

    def run(self, image, *command, options=()):
        """The completed process, its output as text."""
        return subprocess.run(self.argv(image, *command, options=options), capture_output=True, text=True, timeout=120,
                              env=harness.environment(), stdin=subprocess.DEVNULL)

    def start(self, image, *command, options=()):
        """A container in the background. The caller ends it, by the process's id, with SIGTERM."""
        return subprocess.Popen(self.argv(image, *command, options=options), env=harness.environment(), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
