"""Builds of Maypole that take part in a job, and daemons of several of them.

    new = builds.THIS
    with builds.Daemons(coordinator=new, agents=[new, builds.earlier()]) as d: ...

PRETENDING is this build, whose daemons speak no newer version than 10. earlier() is
the commit that the file earlier_commit names, which knows of no other version than
10: it is built from the repository's history, once, beside the temporary files.
"""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
import unittest

import daemons
import harness

FILES = ["client/libmaypole.so", "coordinator/maypole-coordinator", "worker/maypole-worker"]


class Build:
    def __init__(self, root, flags=(), agent_flags=()):
        self.root = root
        self.flags = list(flags)  # of its daemons
        self.agent_flags = list(agent_flags)

    def rank_environment(self):
        """For ranks that use this build's package and library."""
        said = harness.environment(root=self.root)
        path = os.path.join(self.root, "client", "python") + os.pathsep + os.path.join(harness.ROOT, "tests", "testing")
        return ["env", "PYTHONPATH=" + path, "MAYPOLE_LIBRARY=" + said["MAYPOLE_LIBRARY"]]


THIS = Build(harness.ROOT)
PRETENDING = Build(harness.ROOT, ["--newest_protocol=10"])


class Daemons(daemons.Daemons):
    """A coordinator of one build, and the agents of each node of theirs."""

    def __init__(self, coordinator, agents):
        self._coordinator, self._agents = coordinator, agents
        super().__init__(len(agents))

    def start_coordinator(self, flags):
        return self._start_of(self._coordinator, "coordinator/maypole-coordinator", flags + ["--log_level=info"])

    def start_worker(self, node, flags):
        build = self._agents[node]
        self._start_of(build, "worker/maypole-worker", flags + build.agent_flags + ["--network=127.0.0.1"])

    def _start_of(self, build, program, flags):
        return self.daemon(os.path.join(build.root, program), flags + build.flags)

    def replace_coordinator(self, build):
        """Kills the coordinator, and starts that of another build at its address."""
        self.processes[0].kill()
        self.processes[0].wait()
        self._coordinator = build
        self.start_coordinator(["--secret_file=" + os.path.join(self.dir, "secret"), "--metrics=", "--listen=" + self.listen])
        self.processes[0] = self.processes.pop()  # in the place of the one before


    def versions(self):
        """{node: version of its last session}, as coordinators have logged it; the earlier build does not."""
        return {node: int(version) for node, version in
                re.findall(r"event=session_(?:opened|taken_over) .*node=(\S+) .*protocol=(\d+)", self.log())}


def _skip(why):
    print("skipped: " + why)  # unittest alone says it only with -v
    raise unittest.SkipTest(why)


def _run(words, within, env, why):
    done = subprocess.run(words, cwd=within, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        _skip("%s: %s ended with status %d: %s" % (why, words[0], done.returncode, done.stderr[-2000:]))
    return done.stdout.strip()


def _is_at(tree, commit, env):
    if not os.path.exists(tree):
        return False
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, env=env, capture_output=True, text=True)
    return said.stdout.strip() == commit


def earlier():
    """The earlier build. Raises SkipTest where it cannot be made: there is no git, no history, or no bazel."""
    named = os.path.realpath(os.path.join(harness.ROOT, "tests", "upgrade", "earlier_commit"))
    with open(named) as f:
        commit = f.read().strip()
    why = "the earlier commit %s cannot be built here" % commit[:12]
    for program in ("git", "bazel"):
        if shutil.which(program) is None:
            _skip("%s: %s is missing" % (why, program))
    # Bazel's tests have no home directory, in which bazel keeps what it builds.
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir}
    repository = _run(["git", "rev-parse", "--show-toplevel"], os.path.dirname(named), env, why)
    _run(["git", "cat-file", "-e", commit + "^{commit}"], repository, env,
         why + " (a repository without its whole history? git fetch --unshallow)")
    # By its path, bazel finds again what it has built of it before.
    tree = os.path.join(tempfile.gettempdir(), "maypole-%d-%s" % (os.getuid(), commit[:12]))
    if not _is_at(tree, commit, env):
        shutil.rmtree(tree, ignore_errors=True)  # of a repository that is no more
        _run(["git", "worktree", "prune"], repository, env, why)
        _run(["git", "worktree", "add", "--detach", tree, commit], repository, env, why)
    words = ["bazel", "build", "-c", "opt"] + ["//%s:%s" % os.path.split(f) for f in FILES]
    # It has worked once: an error is one of this test.
    done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise AssertionError("%s: %s" % (why, done.stderr[-4000:]))
    built = _run(["bazel", "info", "-c", "opt", "bazel-bin"], tree, env, why)
    root = os.path.join(tree, "out", "upgrade")  # out/ is not in the repository
    shutil.rmtree(root, ignore_errors=True)
    for path in FILES:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        shutil.copy(os.path.join(built, path), os.path.join(root, path))
    shutil.copytree(os.path.join(tree, "client", "python", "maypole"), os.path.join(root, "client", "python", "maypole"))
    return Build(root)
