"""maypolerun's policy of elastic jobs, for maypole.ray and maypole.spark.

It decides on which hosts processes run, when a process is restarted, and when and how the job ends.
client/launcher/elastic/elastic_driver.h has the rules; libmaypole contains that code (client/elastic_driver.h), and
this module only calls it.

A node is one life of a host in the job. The coordinator decides which processes are in the job's epoch, and
with which ranks.

Thread contract: a value, for one thread at a time. Times are the caller's, in seconds.
"""

import ctypes
import weakref
from typing import Any, NamedTuple, Optional

from maypole import _native

_NO_LIMIT = 2**31 - 1
_KINDS = ("start_node", "stop_node", "start_process", "signal_process", "tell", "process_failed", "end_badly")


class Action(NamedTuple):
    """What the launcher must do.

    kind: start_node (node, on the host `text`), stop_node (node), start_process (process, on node), signal_process
    (process; value: the signal), tell (text), process_failed (process: its end makes the job fail), end_badly (text).
    """

    kind: str
    node: int = -1
    process: int = -1
    value: int = 0
    text: str = ""


class _Settings(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("first_size", "min_size", "max_size", "reset_limit")
               ] + [(name, ctypes.c_double) for name in ("patience", "shortest_cooldown", "longest_cooldown")]


class _Action(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("kind", "node", "process", "value")] + [("text", ctypes.c_char_p)]


class ElasticDriver:
    """Events in, actions out: the method of an event returns the actions, in order.

    Args:
        first: processes of the first start.
        least: the fewest processes from then on.
        most: the most processes; None: any number.
        reset_limit: the most changes; None: any number.
        cooldown: a host's shortest and longest cool-down, in seconds.
        patience: how many seconds there may be fewer than `least` slots.
    """

    def __init__(self, first: int, least: int, most: Optional[int], reset_limit: Optional[int],
                 cooldown: tuple[float, float], patience: float):
        # Not _native.library(): this process is in no job.
        library = ctypes.CDLL(_native.find_library())
        self._next = library.maypole_elastic_driver_next
        for name, *types in (("on_hosts", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
                             ("on_node_ready", ctypes.c_int32), ("on_node_lost", ctypes.c_int32, ctypes.c_char_p),
                             ("on_process_end", ctypes.c_int32, ctypes.c_int32, ctypes.c_int, ctypes.c_char_p),
                             ("on_time",)):
            function = getattr(library, "maypole_elastic_driver_" + name)
            function.argtypes, function.restype = [ctypes.c_void_p, *types, ctypes.c_double], None
        self._library = library
        new, free = library.maypole_elastic_driver_new, library.maypole_elastic_driver_free
        new.restype = ctypes.c_void_p
        settings = _Settings(first, least, _NO_LIMIT if most is None else most,
                             -1 if reset_limit is None else reset_limit, patience, *cooldown)
        self._driver = ctypes.c_void_p(new(ctypes.byref(settings)))
        weakref.finalize(self, free, self._driver)

    def on_hosts(self, slots: dict[str, int], now: float) -> list[Action]:
        """The hosts that may be used, in the order of preference, have been listed."""
        names = (ctypes.c_char_p * len(slots))(*(name.encode() for name in slots))
        numbers = (ctypes.c_int32 * len(slots))(*slots.values())
        return self._call("on_hosts", len(slots), names, numbers, now)

    def on_node_ready(self, node: int, now: float) -> list[Action]:
        """The node is ready: processes may be started there."""
        return self._call("on_node_ready", node, now)

    def on_node_lost(self, node: int, why: str, now: float) -> list[Action]:
        """The node is lost: its processes count as ended."""
        return self._call("on_node_lost", node, _bytes(why), now)

    def on_process_end(self, process: int, status: int, finished: bool, how: str, now: float) -> list[Action]:
        """A process has ended.

        status: the exit code, or the signal as a negative number. finished: it had trained to the end. how: completes
        "process 3 (host a) ".
        """
        return self._call("on_process_end", process, status, finished, _bytes(how), now)

    def on_time(self, now: float) -> list[Action]:
        """Returns what must be done because time has passed."""
        return self._call("on_time", now)

    def finishing(self) -> bool:
        """Whether a process has trained to the end: then no more processes are started."""
        return bool(self._library.maypole_elastic_driver_finishing(self._driver))

    def running(self) -> int:
        """How many processes have not ended."""
        return int(self._library.maypole_elastic_driver_running(self._driver))

    def _call(self, name: str, *arguments: Any) -> list[Action]:
        getattr(self._library, "maypole_elastic_driver_" + name)(self._driver, *arguments)
        actions, found = [], _Action()
        while self._next(self._driver, ctypes.byref(found)):
            actions.append(Action(_KINDS[found.kind], found.node, found.process, found.value,
                                  found.text.decode(errors="replace")))
        return actions


def _bytes(text: str) -> bytes:
    return text.replace("\0", " ").encode(errors="replace")
