"""A job of run(), which has all its ranks from start to end."""

import time
from typing import Any, NamedTuple, Optional

from maypole.common import driver
from maypole.runner import job as runner_job
from maypole.runner import messages
from maypole.runner.errors import RankError
from maypole.spark import slots
from maypole.spark.job import Base, Settings, Waiting, how_it_ended
from maypole.spark.tasks import Event, SparkJob, Task

# How long other failures may take to be reported after the first one, which may be their consequence.
_GRACE_SECONDS = 2.0
_REASON_SECONDS = 10.0  # how long Spark may take to report why a task was lost
_POLL_SECONDS = 0.5


class Failure(NamedTuple):
    """A rank that has failed.

    task: the task whose rank has failed. cause: how it ended. answer: its answer before that, or None. weight: the
    larger, the more likely others failed because of it.
    """

    task: Task
    cause: str
    answer: Optional[dict[str, Any]]
    weight: int


def weight(status: Optional[int], answer: Optional[dict[str, Any]]) -> int:
    """A killed process outweighs all others; an error of a collective is a consequence of another rank's failure."""
    if status is None or status < 0:
        return 2
    error = (answer or {}).get("error", "")
    return 0 if error.startswith("maypole.common.exceptions.HorovodInternalError") else 1


class FixedJob(Base):
    """size: number of ranks."""

    def __init__(self, context: Any, settings: Settings, size: int):
        super().__init__(context, settings, size, False, settings.start_timeout)
        self._size = size
        self._tasks: dict[int, Task] = {}
        self._failures: list[Failure] = []
        self._lost: list[Task] = []
        self._answers: dict[int, Optional[dict[str, Any]]] = {}  # by rank
        self._spark_error: Optional[str] = None

    def run(self) -> list[Any]:
        """Runs the job; returns the results by rank. Raises RankError, TimeoutError or RuntimeError."""
        waiting = Waiting(self, self._size)
        self._await_slots(waiting)
        # If Spark starts executors only when tasks wait for them, it has no barrier stages.
        barrier = not slots.grows(self.context)
        self.spark_jobs.append(
            SparkJob(self.context, self.plan, list(range(self._size)), barrier, self.plan.job, 0, self.listener.put))
        self._await_tasks(waiting)
        self._start()
        while len(self._answers) < self._size:
            if self._failed():
                raise self._error()
            self._take(_POLL_SECONDS)
            self.check_coordinator()
        return runner_job.results_of(self._answers)

    def _await_slots(self, waiting: Waiting) -> None:
        """Spark itself would retry a barrier stage without enough slots for many minutes, and then fail."""
        while not slots.grows(self.context):
            there = slots.count(self.context)
            if there is None or there >= self._size:
                return
            if slots.is_local(self.context):
                raise RuntimeError(
                    f"num_proc={self._size} needs {self._size} slots at the same time, but the cluster has "
                    f"{slots.describe(self.context)}: ask for at most {there} processes, or give Spark more")
            waiting.check([])
            time.sleep(_POLL_SECONDS)

    def _await_tasks(self, waiting: Waiting) -> None:
        while len(self._tasks) < self._size:
            self._take(_POLL_SECONDS)
            if self._failed():
                raise self._error()
            waiting.check([task.host for task in self._tasks.values()])

    def _start(self) -> None:
        numbers = driver.number({task.index: task.space for task in self._tasks.values()})
        for task in self._tasks.values():
            place = numbers[task.index]
            self.run_process(task, place.rank, place.variables())

    def _take(self, seconds: float) -> None:
        for event in self.listener.next_events(seconds):
            self._on(event)

    def _on(self, event: Event) -> None:
        if event.kind == "job":
            self._spark_error = event.values[1]
            return
        task = event.its_task
        if event.kind == "hello":
            if task.index in self._tasks:
                task.send("end")  # Spark retries a failed task; we are about to report why it failed
            else:
                self._tasks[task.index] = task
        elif task is not self._tasks.get(task.index):
            return
        elif event.kind == "output":
            self.output.write(_number_of(task), *event.values)
        elif event.kind == "lost":
            if task.number is None:
                del self._tasks[task.index]  # it has not begun; if it does not come back, Spark says why
            elif task.number not in self._answers:
                self._lost.append(task)
        elif event.kind == "ended":
            self._on_end(task, *event.values)

    def _on_end(self, task: Task, status: Optional[int], data: bytes, text: str, _finished: bool) -> None:
        number = _number_of(task)
        self.output.end(number)
        answer = messages.decode_answer(data)
        if status == 0 and (answer is None or "result" in answer):
            self._answers[number] = answer
        else:
            self._failures.append(Failure(task, how_it_ended(status, text), answer, weight(status, answer)))

    def _failed(self) -> bool:
        # Tasks return only when the job is over, so a Spark job that ends earlier has failed.
        return bool(self._failures or self._lost) or self._spark_error is not None

    def _open(self) -> int:
        """The number of ranks that have not ended."""
        return self._size - len(self._answers) - len(self._failures) - len(self._lost)

    def _error(self) -> Exception:
        """Waits for further failures, and chooses the one that caused the others."""
        began = time.monotonic()
        while time.monotonic() < began + _GRACE_SECONDS and self._open() > 0:
            self._take(began + _GRACE_SECONDS - time.monotonic())
        while self._lost and self._spark_error is None and time.monotonic() < began + _REASON_SECONDS:
            self._take(_POLL_SECONDS)
        if self._lost:
            task = self._lost[0]
            why = self._spark_error or "it or its executor was killed, or the host is lost; see the executor's log"
            return RankError(
                f"rank {task.number} ({_where(task)}) was lost with its Spark task: the connection of its Python "
                f"worker (pid {task.worker_pid}) has closed: {why}", task.number)
        if self._failures:
            failure = max(self._failures, key=lambda f: f.weight)  # the first one with the largest weight
            number = _number_of(failure.task)
            return runner_job.rank_error(number, f"rank {number} ({_where(failure.task)}) {failure.cause}",
                                         failure.answer)
        return RuntimeError(f"the Spark job of maypole.spark.run failed: {self._spark_error}")


def _number_of(task: Task) -> int:
    """The number of a task whose process has been started."""
    assert task.number is not None
    return task.number


def _where(task: Task) -> str:
    return (f"pid {task.pid}, " if task.pid else "") + f"host {task.host}"
