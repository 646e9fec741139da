"""A scene of two nodes with a wire between them that can be cut (needs root).

Each node is a network namespace (tests/testing/namespaces.py). After `cut`, packets from a
node to the other are lost: the neighbour's address maps to a network card that
does not exist. So neither side gets an error, as with a cable that was
pulled somewhere on the way.

    with wire.WireScene() as s:
        s.wire.cut(0)      # packets from node 0 are lost
        s.wire.cut(1)      # packets from node 1 as well
        s.wire.heal()

There are two wires: ADDRESSES (for the coordinator) and DATA. `data` says over
which of them data travels; over "both", DATA is the first. The coordinator is on node 0, and so are the two
ranks of the witness, which does not use the wire.
"""

import itertools
import os
import subprocess

import daemons
import harness
import namespaces
import scene

# By Fault.scene, over which wires data travels.
DATA_OVER = {"wire": "first", "data wire": "second", "two wires": "both"}

NOBODY = "02:00:00:00:00:01"  # no card has this address


class Wire(namespaces.Namespaces):
    _numbers = itertools.count(1)

    def __init__(self):
        super().__init__(wires=2)
        tag = "mp%d.%d" % (os.getpid(), next(self._numbers))  # several at once
        self.names = [tag + side for side in "ab"]

    @staticmethod
    def _ip(*args):
        subprocess.run(["ip"] + list(args), check=True, env=harness.environment())

    def _wires(self, data):
        return (self.DATA, self.data_links) if data else (self.ADDRESSES, self.links)

    def cut(self, node, data=False):
        """From now on, packets that `node` sends over the wire are lost."""
        addresses, links = self._wires(data)
        self._ip("-n", self.names[node], "neigh", "replace", addresses[1 - node], "lladdr", NOBODY, "dev", links[node],
                 "nud", "permanent")

    def heal(self):
        for data in (False, True):
            addresses, links = self._wires(data)
            for node in (0, 1):
                self._ip("-n", self.names[node], "neigh", "flush", "to", addresses[1 - node], "dev", links[node],
                         "nud", "permanent")

    def inside(self, node):
        return ["ip", "netns", "exec", self.names[node]]


class WireDaemons(daemons.Daemons):
    """The coordinator on node 0, an agent on each node."""

    def __init__(self, wire, data, worker_flags, coordinator_flags):
        super().__init__(2, worker_flags, coordinator_flags)
        self.wire = wire
        self.data = {"first": [wire.ADDRESSES], "second": [wire.DATA], "both": [wire.DATA, wire.ADDRESSES]}[data]

    def start_coordinator(self, flags):
        return self.daemon("coordinator/maypole-coordinator",
                           ["--listen=%s:0" % self.wire.ADDRESSES[0]] + flags, self.wire.inside(0))

    def start_worker(self, node, flags):
        self.daemon("worker/maypole-worker", flags + ["--network=" + ",".join(a[node] for a in self.data)], self.wire.inside(node))


class WireScene(scene.Scene):
    def __init__(self, data="first", worker_flags=(), coordinator_flags=()):
        super().__init__(2, worker_flags, coordinator_flags)
        self.wire = Wire()
        self.daemons = WireDaemons(self.wire, data, worker_flags, coordinator_flags)

    def __enter__(self):
        self.wire.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            self.wire.__exit__()
            raise

    def __exit__(self, kind, value, trace):
        try:
            return super().__exit__(kind, value, trace)
        finally:
            self.wire.__exit__()

    def start_witness(self):
        return scene.Witness(self.daemons.sockets, "1x2", wrap=self.wire.inside)

    def job(self, layout, program, args=(), **kwargs):
        return super().job(layout, program, args, wrap=self.wire.inside, **kwargs)
