"""One test for each fault and layout of a list; scenes are shared where possible.

    topic.main(FAULTS)

Arguments select faults by name. MAYPOLE_TEST_LONG=1 runs the long faults instead
of the others. MAYPOLE_TEST_TIMES: how often each is run (1).
"""

import contextlib
import os
import sys
import unittest

import pypi_torch
import scene
import wire

LONG = os.environ.get("MAYPOLE_TEST_LONG") == "1"
TIMES = int(os.environ.get("MAYPOLE_TEST_TIMES", "1"))


class Scenes:
    """Scenes by number of nodes, made on first use."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._shared = {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return self._stack.__exit__(*exc)

    @contextlib.contextmanager
    def of(self, fault, layout):
        """A scene for one run of the fault."""
        nodes = scene.read_layout(layout)[0]
        flags = (tuple(fault.worker_flags), tuple(fault.coordinator_flags))
        if fault.own_daemons:
            with scene.Scene(nodes, *flags, witness=fault.witness) as s:
                yield s
            return
        key = (fault.scene, nodes) + flags
        if key not in self._shared:
            if fault.scene in wire.DATA_OVER:
                new = wire.WireScene(wire.DATA_OVER[fault.scene], *flags)
            else:
                env = pypi_torch.ucx_environment() if fault.scene == "ucx" else None
                new = scene.Scene(nodes, *flags, log="/dev/full" if fault.scene == "full logs" else None, env=env)
            self._shared[key] = self._stack.enter_context(new)
        yield self._shared[key]


def run_once(scenes, fault, layout):
    """Runs the fault once and returns its Outcome."""
    with scenes.of(fault, layout) as s:
        return fault.run(s, layout, fault)


def report(fault, layout, outcome):
    print("%s %s: %s%s" % (
        fault.name, layout, ", ".join("%s %.1f ms" % (who, 1e3 * s) for who, s in outcome.seconds.items()),
        "" if outcome.pause is None else "; other job's pause %.0f ms" % (1e3 * outcome.pause)), flush=True)
    if os.environ.get("MAYPOLE_TEST_TEXTS"):
        for who, text in outcome.texts.items():
            print("    %s: %s" % (who, text), flush=True)


def chosen(faults, names):
    """Yields the (fault, layout) pairs to run."""
    for fault in faults:
        for layout in fault.layouts:
            long = fault.long or layout in fault.long_layouts
            if (fault.name in names) if names else (long == LONG):
                yield fault, layout


def make_case(chosen_ones):
    class FaultsTest(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.scenes = Scenes()
            cls.scenes.__enter__()
            cls.addClassCleanup(lambda: cls.scenes.__exit__(None, None, None))

    def test_of(fault, layout):
        def test(self):
            for _ in range(TIMES):
                report(fault, layout, run_once(self.scenes, fault, layout))
        return test

    for fault, layout in chosen_ones:
        setattr(FaultsTest, "test_%s_%s" % (fault.name.replace("-", "_"), layout), test_of(fault, layout))
    return FaultsTest


def main(faults, skip=None):
    """skip: if given, the reason why none of the faults can be run here."""
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    unknown = set(names) - {f.name for f in faults}
    if unknown:
        sys.exit("no such fault: %s" % ", ".join(sorted(unknown)))
    case = make_case(chosen(faults, names))
    if skip:
        case = unittest.skip(skip)(case)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
