"""Daemons of this version and of an invented next one in one cluster.

    with builds.Daemons(coordinator=builds.NEXT, agents=[builds.THIS, builds.NEXT]) as d: ...

NEXT is this build, whose daemons claim to speak the next version as well.
"""

import os
import re

import daemons
import harness


class Build:
    def __init__(self, root, flags=()):
        self.root = root
        self.flags = list(flags)  # of its daemons


THIS = Build(harness.ROOT)
NEXT = Build(harness.ROOT, ["--newest_protocol=%d" % (int(harness.protocol_version()) + 1)])


class Daemons(daemons.Daemons):
    """A coordinator of one build, and the agents of each node of theirs."""

    def __init__(self, coordinator, agents):
        self._coordinator, self._agents = coordinator, agents
        super().__init__(len(agents))

    def start_coordinator(self, flags):
        return self._start_of(self._coordinator, "coordinator/maypole-coordinator", flags + ["--log_level=info"])

    def start_worker(self, node, flags):
        build = self._agents[node]
        self._start_of(build, "worker/maypole-worker", flags + ["--network=127.0.0.1"])

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
        """{node: version of its last session}, as coordinators have logged it."""
        return {node: int(version) for node, version in
                re.findall(r"event=session_(?:opened|taken_over) .*node=(\S+) .*protocol=(\d+)", self.log())}
