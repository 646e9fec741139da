"""A fault: how it is injected, what ranks must see, and how soon.

A `Fault` injects itself into a `Scene`, checks the consequences, and returns
the measurements as an `Outcome`. The tests run each fault once or more;
measure.py runs it many times and writes docs/failures.md.
"""

import dataclasses
import re
from typing import Callable, Dict, Optional, Sequence


@dataclasses.dataclass
class Outcome:
    """The measurements of one run.

    seconds: how long after the fault the ranks got their error. The key is
    their name on the page ("others", "victim", "other node"), the value the
    time of the slowest of them.
    texts: the error of such a rank; None: no error.
    pause: the longest pause of the other job; None if there is no other job.
    """

    seconds: Dict[str, float] = dataclasses.field(default_factory=dict)
    texts: Dict[str, Optional[str]] = dataclasses.field(default_factory=dict)
    pause: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """name: unique, words and dashes. what: what happens, for the page. sees:
    the consequences for the job, for the page. layouts: nodes x ranks on each.
    run(scene, layout, self) -> Outcome. bound: seconds within which every rank
    that gets an error must get it. own_daemons: the fault damages the daemons,
    so they are not shared. witness: False if no other job can continue. long:
    not in the plain run of tests; long_layouts: not in the plain run with these
    layouts. times: how often it is measured. scene: its kind ("wire",
    "data wire", "two wires", "ucx", "full logs"; see topic.py).
    """

    name: str
    topic: str
    what: str
    sees: str
    layouts: Sequence[str]
    run: Callable
    bound: float
    own_daemons: bool = False
    witness: bool = True
    worker_flags: Sequence[str] = ()
    coordinator_flags: Sequence[str] = ()
    args: Sequence = ()
    long: bool = False
    long_layouts: Sequence[str] = ()
    times: int = 20
    scene: str = ""


def check_seconds(fault, outcome):
    for who, seconds in outcome.seconds.items():
        if not 0 <= seconds < fault.bound:
            raise AssertionError("%s: %s knew after %.3f s, which should be below %g s" % (
                fault.name, who, seconds, fault.bound))


def expect(pattern, text, who):
    """Checks that the regular expression matches the whole text."""
    if text is None or not re.fullmatch(pattern, text):
        raise AssertionError("%s was told\n  %s\nexpected\n  %s" % (who, text, pattern))
