"""A job of run_elastic(): processes come and go.

Each slot is a Spark job of one task, which is submitted again when Spark has given it up. So a lost executor or Python
worker ends one slot, and what comes back is a new process, wherever Spark finds room. A process that fails is started
again by its task.
"""

import signal
import time
from typing import Any, Optional

from maypole.common.elastic import ASKED_TO_LEAVE
from maypole.runner import job as runner_job
from maypole.runner import messages
from maypole.runner.errors import RankError
from maypole.spark import places, slots
from maypole.spark.job import Base, Settings, Waiting, how_it_ended
from maypole.spark.tasks import Event, SparkJob, Task

_POLL_SECONDS = 0.5
_RESTART_SECONDS = 1.0
_MOST_RESTART_SECONDS = 60.0
# A program that fails so often in a row, each time within _EARLY_SECONDS, cannot work.
_EARLY_FAILURES = 3
_EARLY_SECONDS = 60.0
_FINISH_SECONDS = 5.0  # from the end of the first process to SIGTERM for those that wait for an epoch


class Slot:
    """One task's place in the job. `task` is None while Spark looks for room."""

    def __init__(self, number: int):
        self.number = number
        self.task: Optional[Task] = None
        self.spark_job: Optional[SparkJob] = None
        self.process: Optional[int] = None  # number of the process that runs
        self.since = 0.0  # when it was started
        self.early_failures = 0  # one after the other
        self.start_at: Optional[float] = None  # a process, or the Spark job if there is no task

    def number_of_process(self) -> int:
        """Of the process that runs, or has just ended."""
        assert self.process is not None
        return self.process


class ElasticJob(Base):
    """start: how many tasks must be there for the first processes to start."""

    def __init__(self, context: Any, settings: Settings, start: int, least: int, most: int, reset_limit: Optional[int],
                 elastic_timeout: int):
        self._slots = [Slot(number) for number in range(most)]
        super().__init__(context, settings, most, True, elastic_timeout)
        self._start_at = start
        self._least = least
        self._most = most
        self._reset_limit = reset_limit
        self._elastic_timeout = elastic_timeout
        self._processes = 0
        self._resets = 0
        self._started = False
        self._enough_at = time.monotonic()  # when there were enough processes for the last time
        self._finished_at: Optional[float] = None
        self._asked_to_finish = False
        self._answers: dict[int, Optional[dict[str, Any]]] = {}  # by process
        self._spark_error = ""

    def run(self) -> list[Any]:
        """The results of the processes that were there at the end, by rank."""
        for slot in self._slots:
            self._submit(slot)
        waiting = Waiting(self, self._start_at)
        while not self._done():
            now = time.monotonic()
            for event in self.listener.next_events(min(_POLL_SECONDS, self._next_start(now))):
                self._on(event)
            self.check_coordinator()
            if not self._started:
                hosts = [slot.task.host for slot in self._slots if slot.task is not None]
                self._started = len(hosts) >= self._start_at
                if not self._started:
                    waiting.check(hosts, self._last_error())
            self._on_time(time.monotonic())
        return runner_job.results_of(self._answers)

    def close(self) -> None:
        """Ends the Spark jobs and all that belongs to the job."""
        for slot in self._slots:
            if slot.task is None and slot.spark_job is not None:
                slot.spark_job.cancel()  # it waits for room
        super().close()

    def _last_error(self) -> str:
        return f"; the last Spark job failed: {self._spark_error}" if self._spark_error else ""

    def _done(self) -> bool:
        return self._finished_at is not None and all(slot.process is None for slot in self._slots)

    def _next_start(self, now: float) -> float:
        return max(0.0,
                   min((slot.start_at for slot in self._slots if slot.start_at is not None), default=now + 60) - now)

    def _submit(self, slot: Slot) -> None:
        slot.start_at = None
        group = f"{self.plan.job}.{slot.number}"
        ended = [slot.spark_job] if slot.spark_job is not None else []
        slot.spark_job = SparkJob(self.context, self.plan, [slot.number], False, group, slot.number, self.listener.put)
        self.spark_jobs = [known for known in self.spark_jobs if known not in ended] + [slot.spark_job]

    def _on_time(self, now: float) -> None:
        """What is due."""
        running = sum(slot.process is not None for slot in self._slots)
        if running >= self._least or not self._started or self._finished_at is not None:
            self._enough_at = now
        elif now - self._enough_at >= self._elastic_timeout:
            raise TimeoutError(
                f"there were less than min_num_proc={self._least} processes for {self._elastic_timeout} s "
                f"(elastic_timeout): {running} run; the cluster has {slots.describe(self.context)}{self._last_error()}")
        if self._finished_at is not None:
            if now - self._finished_at >= _FINISH_SECONDS and not self._asked_to_finish:
                self._asked_to_finish = True
                for slot in self._slots:
                    if slot.process is not None and slot.task is not None:
                        slot.task.send("leave", None)
            return
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at > now:
                continue
            slot.start_at = None
            if slot.task is None:
                if slot.spark_job is None or not slot.spark_job.runs():
                    self._submit(slot)
            elif self._started and slot.process is None:
                self._start(slot, slot.task, now)

    def _start(self, slot: Slot, task: Task, now: float) -> None:
        slot.process, slot.since = self._processes, now
        task.number = self._processes
        self._processes += 1
        task.send(
            "run", {
                **places.forwarded(), "PYTHONUNBUFFERED": "1",
                "MAYPOLE_START_TIMEOUT": str(self.rank_timeout),
                **(self.settings.env or {}),
                **places.elastic_variables(self._least, self._most, task.host)
            })

    def _on(self, event: Event) -> None:
        if event.kind == "job":
            self._on_spark_end(self._slots[event.values[0]], event.values[1])
            return
        task = event.its_task
        slot = self._slots[task.index]
        if event.kind == "hello":
            if slot.task is not None:  # Spark has lost it, and its connection has not broken yet
                self._lose(slot, slot.task, "Spark has started its task again")
            slot.task, slot.start_at = task, None
        elif slot.task is not task:
            return
        elif event.kind == "output":
            self.output.write(slot.number_of_process(), *event.values)
        elif event.kind == "lost":
            self._lose(slot, task, f"the connection of its Python worker (pid {task.worker_pid}) has closed")
        elif event.kind == "ended":
            self._on_end(slot, task, *event.values)

    def _on_spark_end(self, slot: Slot, error: str) -> None:
        self._spark_error = error or self._spark_error
        if self._finished_at is None:
            slot.start_at = time.monotonic() + _RESTART_SECONDS

    def _lose(self, slot: Slot, task: Task, why: str) -> None:
        slot.task = None
        if slot.process is None:
            return
        number, slot.process = slot.process, None
        self.output.end(number)
        if self._finished_at is None:
            cause = f"process {number} (host {task.host}) was lost with its Spark task: {why}"
            self._reset(cause, RankError(cause, number))

    def _on_end(self, slot: Slot, task: Task, status: Optional[int], data: bytes, text: str) -> None:
        number, slot.process = slot.number_of_process(), None
        self.output.end(number)
        answer = messages.decode_answer(data)
        if status == 0:
            if self._finished_at is None:
                self._finished_at = time.monotonic()  # nobody was asked to leave, so the training is finished
            if answer is not None:
                self._answers[number] = answer
            return
        if self._finished_at is not None:
            return
        now = time.monotonic()
        cause = f"process {number} (host {task.host}) {how_it_ended(status, text)}"
        error = runner_job.rank_error(number, cause, answer)
        from_outside = status in (-signal.SIGKILL, -signal.SIGTERM, ASKED_TO_LEAVE)
        is_early = not from_outside and now - slot.since < _EARLY_SECONDS
        slot.early_failures = slot.early_failures + 1 if is_early else 0
        busy = [other for other in self._slots if other.task is not None]
        if all(other.early_failures >= _EARLY_FAILURES for other in busy):
            raise error
        slot.start_at = now + min(_RESTART_SECONDS * 2**slot.early_failures, _MOST_RESTART_SECONDS)
        self._reset(cause, error)

    def _reset(self, cause: str, error: Exception) -> None:
        self._resets += 1
        self.note(f"{cause}; the others go on")
        if self._reset_limit is not None and self._resets > self._reset_limit:
            raise RuntimeError(f"the job has lost processes {self._resets} times, more often than reset_limit="
                               f"{self._reset_limit}; the last one: {cause}") from error
