"""The registry of faults: what is done, what ranks must see, how soon.

A `Fault` injects itself in a `Scene` and checks what follows; it returns an
`Outcome`, what was measured. The tests run each fault once or more, measure.py
runs it many times and makes docs/failures.md.
"""

import dataclasses
import re
from typing import Callable, Dict, Optional, Sequence


@dataclasses.dataclass
class Outcome:
    """What one run has shown.

    seconds: how long after the fault each rank knew; by what it is called on
    the page ("others", "victim", "other node"): the slowest of these ranks.
    texts: what such a rank was told; None: no error.
    pause: the longest time the other job stood still, None if there was none.
    """

    seconds: Dict[str, float] = dataclasses.field(default_factory=dict)
    texts: Dict[str, Optional[str]] = dataclasses.field(default_factory=dict)
    pause: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """name: unique, words and dashes. what: for the page, what happens. sees:
    for the page, what that means for the job. layouts: nodes x ranks on each.
    run(scene, layout, self) -> Outcome. bound: seconds after which every rank
    that is told must know. own_daemons: it hurts them, so they serve it alone.
    witness: False where no job can go on. long: not in the plain run of tests;
    long_layouts: nor in these.
    times: how often it is measured. scene: which kind ("wire", "data wire",
    "full logs"; see topic.py).
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
    """The whole text, as a regular expression."""
    if text is None or not re.fullmatch(pattern, text):
        raise AssertionError("%s was told\n  %s\nexpected\n  %s" % (who, text, pattern))
