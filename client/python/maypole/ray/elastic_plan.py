"""Decides on which nodes the ranks of an elastic job run, when they are replaced, and when the job ends. Pure.

The rules are those of maypolerun (client/launcher/elastic/elastic_driver.h); the
difference is that Ray tells which nodes live, so there is no list of hosts that
are wanted but cannot be reached.

    node       entered when                        left when
    STARTING   it is found, or its cool-down over  its agent is ready, or fails
    READY      ranks may run there                 it or a rank on it fails, or it is not found any more
    COOLING    it or a rank on it has failed       the cool-down is over
    LEAVING    it is not found any more            its ranks have ended

Which processes are in the job's epoch, and with which ranks, is the
coordinator's decision.

Thread contract: a value. Times are the caller's, in seconds.
"""

import enum
from typing import NamedTuple, Optional

LEAVE_GRACE = 30.0  # from SIGTERM to the end by force
FINISH_GRACE = 5.0  # from the first rank that has finished to SIGTERM to the others
FORGET_AFTER = 600.0  # a node that has been well so long starts from the shortest cool-down again
SHORT_LIFE = 60.0
HOPELESS = 3


class State(enum.Enum):
    """What the plan does with a node."""

    STARTING = 1
    READY = 2
    COOLING = 3
    LEAVING = 4


class Action(NamedTuple):
    """What the job's driver is to do.

    kind: start_node, stop_node (node); start (rank process `number` on `node`); ask (to leave), kill (`number`);
    tell (text).
    """

    kind: str
    node: str = ""
    number: int = -1
    text: str = ""


class _Node:

    def __init__(self) -> None:
        self.slots = 0
        self.state = State.COOLING  # until it is started
        self.cool_until = 0.0
        self.started_at = 0.0
        self.failed_at: Optional[float] = None
        self.failures = 0
        self.short_failures = 0
        self.has_agent = False
        self.listed = True


class _Process:

    def __init__(self, node: str, slot: int, now: float):
        self.node = node
        self.slot = slot
        self.started_at = now
        self.asked_at: Optional[float] = None


class ElasticPlan:
    """Events in, actions out: each event's method returns them, in order. After `over` is not empty there are none.

    least, most: ranks. reset_limit: changes; None: any number. patience: how long there may be less than `least` slots.
    """

    def __init__(self, least: int, most: Optional[int], reset_limit: Optional[int], cooldown: tuple[float, float],
                 patience: float):
        self._least = least
        self._most = most
        self._reset_limit = reset_limit
        self._cooldown = cooldown
        self._patience = patience
        self._nodes: dict[str, _Node] = {}
        self._processes: dict[int, _Process] = {}
        self._last_number = -1
        self._changes = 0
        self._begun = False
        self._finished_at: Optional[float] = None
        self._told_to_finish = False
        self._too_few_since: Optional[float] = None
        self._actions: list[Action] = []
        self.over = ""  # why the job cannot go on

    # --- Events

    def on_nodes(self, slots: dict[str, int], now: float) -> list[Action]:
        """These nodes may be used, in the order of preference."""
        changed = False
        for name, number in slots.items():
            node = self._nodes.setdefault(name, _Node())
            changed |= not node.listed or node.slots != number
            node.slots, node.listed = number, True
            self._ask(name, number, now)
        for name, node in self._nodes.items():
            if node.listed and name not in slots:
                changed |= node.state is not State.COOLING  # else its failure was counted
                node.listed = False
                self._leave(name, node, now)
        if changed and self._begun:
            self._count("the nodes of the cluster have changed")
        return self.on_time(now)

    def on_node_ready(self, name: str, now: float) -> list[Action]:
        """The node's executor runs."""
        node = self._nodes[name]
        if node.state is State.STARTING:
            node.state = State.READY
        return self.on_time(now)

    def on_node_lost(self, name: str, why: str, now: float) -> list[Action]:
        """Its agent does not run. Its ranks are killed, and their ends do not matter."""
        node = self._nodes[name]
        node.has_agent = False
        for number, process in self._processes.items():
            if process.node == name:
                process.asked_at = now
                self._actions.append(Action("kill", number=number))
        if node.listed and self._finished_at is None:
            self._fail(name, node, now - node.started_at < SHORT_LIFE, f"node {name}: {why}", now)
        return self.on_time(now)

    def on_end(self, number: int, well: bool, killed: bool, what: str, now: float, finished: bool = False
               ) -> list[Action]:
        """A process has ended.

        killed: from outside, so it says nothing about the program. what: how, for messages. finished: it had
        trained to the end, and nobody begins the training again.
        """
        process = self._processes.pop(number)
        if process.asked_at is not None:
            pass
        elif self._finished_at is not None:
            if not well and not (killed and self._told_to_finish):
                self._end(f"{what}, while others had finished")
        elif well:
            self._finished_at = now
        elif finished:
            self._end(f"{what}, after its training")
        else:
            short = not killed and now - process.started_at < SHORT_LIFE
            self._fail(process.node, self._nodes[process.node], short, what, now)
        return self.on_time(now)

    def on_time(self, now: float) -> list[Action]:
        """What is to be done because time has passed."""
        if not self.over:
            self._kill_late(now)
            if self._finished_at is not None:
                self._finish_others(now)
            else:
                for name, node in self._nodes.items():
                    self._settle(name, node, now)
                self._fill(now)
                self._check_size(now)
        actions, self._actions = self._actions, []
        return actions

    # --- What others ask

    def finishing(self) -> bool:
        """Whether a process has ended well: then none is started any more."""
        return self._finished_at is not None

    def running(self) -> int:
        """How many processes there are."""
        return len(self._processes)

    # --- Nodes

    def _settle(self, name: str, node: _Node, now: float) -> None:
        if node.state is State.LEAVING and not any(p.node == name for p in self._processes.values()):
            if node.has_agent:
                self._actions.append(Action("stop_node", name))
            node.has_agent = False
            node.state = State.COOLING
        if node.state is State.COOLING and now >= node.cool_until and node.listed:
            if node.has_agent:
                node.state = State.READY
            else:
                node.state, node.has_agent, node.started_at = State.STARTING, True, now
                self._actions.append(Action("start_node", name))

    def _leave(self, name: str, node: _Node, now: float) -> None:
        if node.has_agent and node.state is not State.LEAVING:
            node.state = State.LEAVING
            self._tell(f"node {name} is not found any more: its ranks leave at their next commit, or are killed after "
                       f"{LEAVE_GRACE:g} s")
            self._ask(name, 0, now)

    def _fail(self, name: str, node: _Node, short: bool, what: str, now: float) -> None:
        if node.failed_at is not None and now - node.failed_at > FORGET_AFTER:
            node.failures = node.short_failures = 0
        node.failed_at = now
        # What fails while the node cools down is the same failure: processes often end together.
        if node.state is not State.COOLING:
            node.failures += 1
            node.short_failures = node.short_failures + 1 if short else 0
        self._count(what)
        self._check_hope(what)
        if self.over or node.state is State.LEAVING:
            return
        shortest, longest = self._cooldown
        cooldown = min(shortest * 2 ** max(0, min(node.failures - 1, 30)), longest)
        node.state, node.cool_until = State.COOLING, now + cooldown
        self._tell(f"{what}; the job goes on, and node {name} gets a new rank in {cooldown:g} s")

    def _check_hope(self, what: str) -> None:
        """A program that cannot work would be started again for ever."""
        listed = [node for node in self._nodes.values() if node.listed]
        if listed and all(node.short_failures >= HOPELESS for node in listed):
            self._end(f"{what}; ranks have failed {HOPELESS} times on every node, each time within {SHORT_LIFE:g} s of "
                      "their start")

    def _count(self, what: str) -> None:
        self._changes += 1
        if self._reset_limit is not None and self._changes > self._reset_limit:
            self._end(f"{what}; that is change {self._changes} of the job's ranks, and reset_limit is "
                      f"{self._reset_limit}")

    # --- Processes

    def _ask(self, name: str, slot: int, now: float) -> None:
        """Asks the node's processes in slots from `slot` on to leave."""
        for number, process in self._processes.items():
            if process.node == name and process.slot >= slot and process.asked_at is None:
                process.asked_at = now
                self._actions.append(Action("ask", number=number))

    def _kill_late(self, now: float) -> None:
        for number, process in self._processes.items():
            if process.asked_at is not None and now - process.asked_at >= LEAVE_GRACE:
                process.asked_at = now  # once more, if it does not end
                self._actions.append(Action("kill", number=number))

    def _finish_others(self, now: float) -> None:
        assert self._finished_at is not None
        if self._told_to_finish or now - self._finished_at < FINISH_GRACE:
            return
        self._told_to_finish = True  # they may wait for an epoch that nobody starts any more
        for number, process in self._processes.items():
            if process.asked_at is None:
                self._actions.append(Action("ask", number=number))

    def _slots(self) -> int:
        """Where processes run or could be started at once."""
        ready = [node.slots for node in self._nodes.values() if node.state is State.READY]
        return sum(ready) + sum(self._nodes[process.node].state is not State.READY
                                for process in self._processes.values())

    def _fill(self, now: float) -> None:
        if not self._begun and self._slots() < self._least:
            return
        self._begun = True
        for name, node in self._nodes.items():
            taken = {process.slot for process in self._processes.values() if process.node == name}
            for slot in range(node.slots if node.state is State.READY else 0):
                if slot in taken or self._most is not None and self.running() >= self._most:
                    continue
                self._last_number += 1
                self._processes[self._last_number] = _Process(name, slot, now)
                node.started_at = now
                self._actions.append(Action("start", name, self._last_number))

    def _check_size(self, now: float) -> None:
        if self._slots() >= self._least:
            self._too_few_since = None
        elif self._too_few_since is None:
            self._too_few_since = now
        elif now - self._too_few_since >= self._patience:
            self._end(f"only {self._slots()} of at least {self._least} ranks could run for {self._patience:g} s "
                      "(elastic_timeout)")

    def _tell(self, text: str) -> None:
        self._actions.append(Action("tell", text=text))

    def _end(self, why: str) -> None:
        self.over = self.over or why
