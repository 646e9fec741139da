"""A job of run_elastic(), whose processes come and go.

Each slot is a Spark job of one task, which is resubmitted when Spark has given it up. So a lost executor or Python
worker ends only one slot, and a new process replaces its process wherever Spark finds room. maypolerun's policy
decides here as well (maypole.common.elastic_driver): to it, a task is a host of one slot, listed while Spark runs it.
"""

import time
from typing import Any, Optional

from maypole.common import driver
from maypole.common.elastic_driver import Action, ElasticDriver
from maypole.runner import job as runner_job
from maypole.runner import messages
from maypole.runner.errors import RankError
from maypole.spark import slots
from maypole.spark.job import Base, Settings, Waiting, how_it_ended
from maypole.spark.tasks import Event, SparkJob, Task

_POLL_SECONDS = 0.5
_SUBMIT_SECONDS = 1.0  # from the end of a slot's Spark job to the next one
_COOLDOWN = (1, 60)  # as maypolerun
_NOT_STARTED = 127  # as shells have it


class Slot:
    """One task's slot in the job. `task` is None while Spark looks for room."""

    def __init__(self, number: int):
        self.number = number
        self.host = ""  # as the policy names it, while there is a task
        self.task: Optional[Task] = None
        self.spark_job: Optional[SparkJob] = None
        self.process: Optional[int] = None  # number of the process that runs
        self.submit_at: Optional[float] = None


class ElasticJob(Base):
    """start: how many tasks must run before the first processes start."""

    def __init__(self, context: Any, settings: Settings, start: int, least: int, most: int, reset_limit: Optional[int],
                 elastic_timeout: int):
        self._slots = [Slot(number) for number in range(most)]
        super().__init__(context, settings, most, True, elastic_timeout)
        self._start_at = start
        self._least = least
        self._most = most
        self._policy = ElasticDriver(start, least, most, reset_limit, _COOLDOWN, elastic_timeout)
        self._nodes: dict[int, Slot] = {}  # by the policy's numbers
        self._started = False
        self._answers: dict[int, Optional[dict[str, Any]]] = {}  # by process
        self._spark_error = ""
        self._last_error: Optional[Exception] = None  # of a process

    def run(self) -> list[Any]:
        """Runs the job; returns the results of the processes that were there at the end, by rank."""
        for slot in self._slots:
            self._submit(slot)
        waiting = Waiting(self, self._start_at)
        while not (self._policy.finishing() and self._policy.running() == 0):
            for event in self.listener.next_events(_POLL_SECONDS):
                self._on(event)
            self.check_coordinator()
            if not self._started:
                waiting.check([slot.task.host for slot in self._slots if slot.task is not None],
                              self._last_spark_error())
            self._on_time(time.monotonic())
        return runner_job.results_of(self._answers)

    def close(self) -> None:
        """Ends the Spark jobs and everything else of the job."""
        for slot in self._slots:
            if slot.task is None and slot.spark_job is not None:
                slot.spark_job.cancel()  # it waits for room
        super().close()

    def _last_spark_error(self) -> str:
        return f"; the last Spark job failed: {self._spark_error}" if self._spark_error else ""

    # --- Events

    def _on_time(self, now: float) -> None:
        """Does what is due at this time."""
        for slot in self._slots:
            if slot.submit_at is None or slot.submit_at > now or self._policy.finishing():
                continue
            slot.submit_at = None
            if slot.task is None and (slot.spark_job is None or not slot.spark_job.runs()):
                self._submit(slot)
        if self._started:
            self._perform(self._policy.on_time(now))

    def _submit(self, slot: Slot) -> None:
        group = f"{self.plan.job}.{slot.number}"
        ended = [slot.spark_job] if slot.spark_job is not None else []
        slot.spark_job = SparkJob(self.context, self.plan, [slot.number], False, group, slot.number, self.listener.put)
        self.spark_jobs = [known for known in self.spark_jobs if known not in ended] + [slot.spark_job]

    def _on(self, event: Event) -> None:
        if event.kind == "job":
            self._spark_error = event.values[1] or self._spark_error
            self._slots[event.values[0]].submit_at = time.monotonic() + _SUBMIT_SECONDS
            return
        task = event.its_task
        slot = self._slots[task.index]
        if event.kind == "hello":
            if slot.task is not None:  # Spark has lost the old task, whose connection has not broken yet
                self._lose(slot, "Spark has started its task again")
            slot.task, slot.submit_at, slot.host = task, None, f"{task.host}/task{slot.number}"
            self._list_tasks()
        elif slot.task is not task:
            return
        elif event.kind == "output" and slot.process is not None:
            self.output.write(slot.process, *event.values)
        elif event.kind == "lost":
            self._lose(slot, f"the connection of its Python worker (pid {task.worker_pid}) has closed")
        elif event.kind == "ended" and slot.process is not None:
            self._on_end(slot, slot.process, *event.values)

    def _list_tasks(self) -> None:
        """Lists the tasks to the policy, once there are enough of them."""
        there = {slot.host: 1 for slot in self._slots if slot.task is not None}
        self._started |= len(there) >= self._start_at
        if self._started:
            self._perform(self._policy.on_hosts(there, time.monotonic()))

    def _lose(self, slot: Slot, why: str) -> None:
        task, slot.task = slot.task, None
        assert task is not None
        if slot.process is not None:
            self.output.end(slot.process)
            cause = f"process {slot.process} (host {task.host}) was lost with its Spark task: {why}"
            self._last_error = RankError(cause, slot.process)
            slot.process = None
        for node in [node for node, its_slot in self._nodes.items() if its_slot is slot]:
            del self._nodes[node]
            self._perform(self._policy.on_node_lost(node, f"the Spark task on {task.host} was lost: {why}",
                                                    time.monotonic()))
        self._list_tasks()

    def _on_end(self, slot: Slot, number: int, status: Optional[int], data: bytes, text: str, finished: bool) -> None:
        task, slot.process = slot.task, None
        assert task is not None
        self.output.end(number)
        answer = messages.decode_answer(data)
        how = how_it_ended(status, text)
        if status == 0 and answer is not None:
            self._answers[number] = answer
        elif status != 0:
            after = " after its training" if finished else ""
            self._last_error = runner_job.rank_error(number, f"process {number} (host {task.host}) {how}{after}",
                                                     answer)
        self._perform(self._policy.on_process_end(number, _NOT_STARTED if status is None else status, finished, how,
                                                  time.monotonic()))

    # --- Actions of the policy

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            getattr(self, "_do_" + action.kind)(action)

    def _do_start_node(self, action: Action) -> None:
        (slot,) = (slot for slot in self._slots if slot.task is not None and slot.host == action.text)
        self._nodes[action.node] = slot
        self._perform(self._policy.on_node_ready(action.node, time.monotonic()))

    def _do_stop_node(self, action: Action) -> None:
        del self._nodes[action.node]

    def _do_start_process(self, action: Action) -> None:
        slot = self._nodes[action.node]
        assert slot.task is not None
        slot.process = action.process
        self.run_process(slot.task, action.process, driver.elastic_variables(self._least, self._most))

    def _do_signal_process(self, action: Action) -> None:
        for slot in self._slots:
            if slot.process == action.process and slot.task is not None:
                slot.task.send("leave", None)  # processes of a listed host get no other signal

    def _do_tell(self, action: Action) -> None:
        self.note(action.text)

    def _do_process_failed(self, _action: Action) -> None:
        assert self._last_error is not None
        raise self._last_error

    def _do_end_badly(self, action: Action) -> None:
        if "(elastic_timeout)" in action.text:
            raise TimeoutError(f"{action.text}; the cluster has {slots.describe(self.context)}"
                               f"{self._last_spark_error()}") from self._last_error
        last = self._last_error
        raise RankError(action.text, getattr(last, "rank", None), getattr(last, "traceback", "")) from last
