"""Measures the settings, each with its cases, each with rounds of turns.

Writes the results as lines of JSON, so results from before a failure are
not lost:

  {"kind": "run", "machine": ..., "versions": ...}
  {"kind": "setting", "setting": "1x2", "missing": {contestant: reason}}
  {"kind": "case", "setting": "1x2", "what": "4", "operations": 50, ...,
   "pingpong_ns": [before each round, and after the last],
   "memcpy_gbs": [of each round], "others": cores that others used,
   "in_arena": {column: part of its reductions that moved no copies}, "us": {column: [[times of a turn], ...]}}
  {"kind": "waiting", "setting": "1x2", "cores": {contestant: ...}}
  {"kind": "wire", "setting": "2x2-1g", "iperf3_bps": [before, after]}
  {"kind": "example", ...}: see example.py
"""

import contextlib
import json
import os
import sys
import time
from typing import Dict, Iterable, List, Optional

import namespaces
from contest import limits
from contest.conductor import Contestant, Failed
from contest.plan import COLUMNS, CasePlan, Column, Setting, case_plan, label
from contest.processes import machine_seconds

_SETUP_SECONDS = 0.2  # a socket that has just connected is not asleep yet


class RawFile:
    """Lines of JSON; complete up to the last line at any time."""

    def __init__(self, path: str):
        self._file = open(path, "w", encoding="utf-8")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def add(self, kind: str, **values) -> None:
        text = json.dumps(dict({"kind": kind}, **values),
                          separators=(",", ":"))
        self._file.write(text + "\n")
        self._file.flush()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def short(value: float) -> float:
    """Rounds to four digits, more than such a measurement has."""
    return float("%.4g" % value)


class Measurement:

    def __init__(self, raw: RawFile, machine: limits.Machine, tree: str,
                 contestants: List[str], quick: bool,
                 turns: Optional[int] = None):
        self._raw = raw
        self._machine = machine
        self._tree = tree
        self._contestants = contestants
        self._quick = quick
        self._turns = turns  # of every case, instead of the plan's
        self._round = 0  # of the pattern: never the same twice
        self.failures: List[str] = []

    def setting(self, setting: Setting, whats: Iterable[str]) -> None:
        with contextlib.ExitStack() as stack:
            net = None
            if setting.nodes > 1:
                net = stack.enter_context(namespaces.Namespaces(setting.rate))
                if setting.rate is not None:
                    limits.shape(net, setting.rate)
                self._wire = [self._iperf3(net)]
            team = self._start(setting, net, stack)
            for what in whats:
                plan = case_plan(what, setting, self._quick)
                self._case(setting, plan, team)
            self._raw.add("waiting", setting=setting.key, cores={
                name: short(c.waiting()) for name, c in team.items()})
            if net is not None:
                self._wire.append(self._iperf3(net))
                self._raw.add("wire", setting=setting.key,
                              iperf3_bps=[short(w) for w in self._wire])

    def _iperf3(self, net) -> float:
        return limits.iperf3(net, 1 if self._quick else 4)

    def _start(self, setting: Setting, net, stack) -> Dict[str, Contestant]:
        """Starts the contestants; returns those that could be started."""
        say(f"{setting.title}: starting {', '.join(self._contestants)}")
        started = []
        for name in self._contestants:
            contestant = Contestant(name, setting, self._tree, net)
            stack.callback(contestant.stop)
            contestant.start()
            started.append(contestant)
        team, missing = {}, {}
        for contestant in started:
            try:
                contestant.await_ranks()
                team[contestant.name] = contestant
            except Failed as e:
                contestant.stop()
                missing[contestant.name] = self._note(setting, e)
        time.sleep(_SETUP_SECONDS)
        self._raw.add("setting", setting=setting.key, missing=missing)
        return team

    def _note(self, setting: Setting, failure: Failed) -> str:
        text = str(failure)
        self.failures.append(f"{setting.title}: {text}")
        say("FAILED " + self.failures[-1])
        return text

    def _case(self, setting: Setting, plan: CasePlan,
              team: Dict[str, Contestant]) -> None:
        columns = [c for c in COLUMNS if plan.what in c.whats
                   and c.contestant in team
                   and team[c.contestant].has(c.storage)]
        case = _Case(setting, plan, columns)
        start = time.monotonic()
        for number, column in enumerate(columns):
            self._try(case, team, column,
                      lambda c, n=number, col=column: c.open(n, col, plan))
        if plan.warmups == 0:
            self._all_turns(case, team, 0, keep=False)
        turns = self._turns or plan.turns
        others = _Others(team, self._machine)
        for turn in range(turns):
            case.pingpong.append(short(self._machine.pingpong()))
            case.memcpy.append(short(self._machine.memcpy()))
            self._all_turns(case, team, turn, keep=True)
        case.pingpong.append(short(self._machine.pingpong()))
        case.others = others.cores()
        for number, column in enumerate(columns):
            part = self._try(case, team, column,
                             lambda c, n=number: c.close_case(n))
            if column.storage == "arena" and part is not None:
                case.arena[column.key] = short(part)
        self._raw.add("case", **case.raw())
        say(f"{setting.key} {label(plan.what)}: {turns} rounds of "
            f"{len(columns)} columns in {time.monotonic() - start:.1f} s; "
            + case.summary())

    def _all_turns(self, case: "_Case", team: Dict[str, Contestant],
                   turn: int, keep: bool) -> None:
        """Each column has one turn; the first one changes from round to round."""
        plan = case.plan
        count = len(case.columns)
        for i in range(count):
            number = (i + turn) % count
            column = case.columns[number]
            first = self._round
            self._round += plan.warmups + plan.measured
            times = self._try(case, team, column, lambda c: c.turn(
                number, first, plan.warmups, plan.measured))
            if keep and times is not None:
                case.times[column.key].append([short(t) for t in times])

    def _try(self, case: "_Case", team: Dict[str, Contestant], column: Column,
             what):
        """Returns None if the contestant has been dropped."""
        contestant = team.get(column.contestant)
        if contestant is None:
            return None
        try:
            return what(contestant)
        except Failed as e:
            del team[column.contestant]
            contestant.stop()
            self._raw.add("failed", setting=case.setting.key,
                          what=case.plan.what, contestant=column.contestant,
                          reason=self._note(case.setting, e))
            return None


class _Others:
    """The CPU time of other programs on the machine, which distorts figures."""

    def __init__(self, team: Dict[str, Contestant], machine: limits.Machine):
        self._team = dict(team)
        self._machine = machine
        self._start = time.monotonic()
        self._before = self._foreign()

    def _foreign(self) -> float:
        ours = sum(c.cpu_seconds() for c in self._team.values())
        return (machine_seconds() - ours - self._machine.cpu_seconds()
                - sum(os.times()[:2]))

    def cores(self) -> float:
        return max(0.0, (self._foreign() - self._before)
                   / (time.monotonic() - self._start))


class _Case:
    """The results of a case so far."""

    def __init__(self, setting: Setting, plan: CasePlan,
                 columns: List[Column]):
        self.setting = setting
        self.plan = plan
        self.columns = columns
        self.times: Dict[str, List[List[float]]] = {c.key: [] for c in columns}
        self.pingpong: List[float] = []
        self.memcpy: List[float] = []
        self.others = 0.0
        self.arena: Dict[str, float] = {}

    def raw(self) -> Dict:
        plan = self.plan
        return {
            "setting": self.setting.key, "what": plan.what,
            "bytes": plan.bytes, "operations": plan.operations,
            "warmups": plan.warmups, "measured": plan.measured,
            "pingpong_ns": self.pingpong, "memcpy_gbs": self.memcpy,
            "others": short(self.others), "in_arena": self.arena,
            "us": {key: times for key, times in self.times.items() if times},
        }

    def summary(self) -> str:
        """The best round of each column, for the terminal."""
        return f"others {self.others:.2f} cores; " + ", ".join("%s %.5g" % (key, min(min(t) for t in times))
                         for key, times in self.times.items() if times)
