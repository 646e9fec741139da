"""The driver's side of a job on Spark: listens for the tasks, and runs their Spark jobs.

Thread contract: the thread that called run() calls everything, except the bodies of SparkJob's threads, which only
put events into a queue.
"""

import collections
import functools
import os
import selectors
import socket
import threading
import time
from typing import Any, Callable, NamedTuple, Optional

from maypole.spark import channel, requirements, task

_PROOF_SECONDS = 10.0
_JOIN_SECONDS = 20.0


class Task:
    """A task that has sent "hello". number: its process's number, which the job's launcher sets."""

    def __init__(self, link: channel.Channel, hello: dict[str, Any]):
        self.link = link
        self.index: int = hello["index"]
        self.host: str = hello["host"]
        self.space = (hello["host"], hello["space"])  # tasks with equal values can share a node's agent
        self.worker_pid: int = hello["pid"]
        self.pid: Optional[int] = None  # of the rank's process
        self.number: Optional[int] = None

    def send(self, *message: Any) -> None:
        """Sends a message. A broken connection is noticed by reading from it."""
        try:
            self.link.send(*message)
        except OSError:
            pass


class Event(NamedTuple):
    """An event of a task, or of a Spark job, which has no task here.

    kind: "hello", "started", "output", "ended": a task has sent `values`. "lost": its connection has ended;
    the error. "job": a Spark job has ended; its number, and the text of its error, "" if it has none.
    """

    kind: str
    task: Optional[Task]
    values: tuple[Any, ...] = ()

    @property
    def its_task(self) -> Task:
        """The task of an event that is not "job"."""
        assert self.task is not None, self.kind
        return self.task


class Listener:
    """Accepts connections of tasks; next_events() returns their messages as events."""

    def __init__(self, bind: str, key: bytes):
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._listener = socket.create_server((bind, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self._key = key
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._unknown: dict[channel.Channel, float] = {}  # since when
        self._tasks: dict[channel.Channel, Task] = {}
        self._queue: collections.deque[Event] = collections.deque()
        self._lock = threading.Lock()  # of _closed and the wake pipe
        self._closed = False

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._listener.getsockname()[1]

    def put(self, event: Event) -> None:
        """Adds an event, from any thread. Does nothing after close()."""
        with self._lock:
            self._queue.append(event)
            if not self._closed:
                os.write(self._wake_write, b"x")

    def send_all(self, *message: Any) -> None:
        """Sends a message to all connected tasks."""
        for known in self._tasks.values():
            known.send(*message)

    def close(self) -> None:
        """Ends all connections, whereupon the tasks end their ranks."""
        with self._lock:
            self._closed = True
        for link in [*self._unknown, *self._tasks]:
            link.close()
        self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def next_events(self, seconds: float) -> list[Event]:
        """Returns the events that have arrived; waits for them for at most `seconds`."""
        events: list[Event] = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._wake_read:
                os.read(self._wake_read, 4096)
            else:
                events += self._receive(key.data)
        while self._queue:
            events.append(self._queue.popleft())
        limit = time.monotonic() - _PROOF_SECONDS
        for link in [link for link, since in self._unknown.items() if since < limit]:
            self._drop(link)
        return events

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(True)
            link = channel.Channel(connection, self._key, is_driver=True)
        except OSError:
            return  # the peer has gone again
        self._unknown[link] = time.monotonic()
        self._selector.register(link.fileno(), selectors.EVENT_READ, link)

    def _drop(self, link: channel.Channel) -> None:
        self._selector.unregister(link.fileno())
        self._unknown.pop(link, None)
        self._tasks.pop(link, None)
        link.close()

    def _receive(self, link: channel.Channel) -> list[Event]:
        known = self._tasks.get(link)
        try:
            messages = link.receive()
        except OSError as error:
            self._drop(link)
            return [Event("lost", known, (str(error),))] if known is not None else []
        events = []
        for kind, *values in messages:
            if kind == "hello" and known is None:
                del self._unknown[link]
                known = self._tasks[link] = Task(link, values[0])
            elif kind == "started" and known is not None:
                known.pid = values[0]
            events.append(Event(kind, known, tuple(values)))
        return events


class SparkJob:
    """A Spark job whose tasks run task.main(); its end is an event "job"."""

    def __init__(self, context: Any, plan: task.Plan, indices: list[int], barrier: bool, group: str, name: int,
                 put: Callable[[Event], None]):
        """indices: one for each task. name: returned in the event."""
        self._context = context
        self._group = group

        def body() -> None:
            text = ""
            try:
                context.setJobGroup(group, "Maypole on Spark", interruptOnCancel=True)
                rows = context.parallelize(indices, len(indices))
                rows = rows.barrier() if barrier else rows
                rows.mapPartitions(functools.partial(task.main, plan)).collect()
            except Exception as error:  # mostly from py4j; the driver's thread raises it
                text = reason(error)
            put(Event("job", None, (name, text)))

        thread = getattr(requirements.need("pyspark"), "InheritableThread", threading.Thread)
        self._thread = thread(target=body, name=f"maypole-spark-{name}", daemon=True)
        self._thread.start()

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def cancel(self) -> None:
        """Ends its tasks."""
        if self.runs():
            self._context.cancelJobGroup(self._group)

    def join(self) -> None:
        """Waits for its end, for at most _JOIN_SECONDS: the thread is a daemon thread."""
        self._thread.join(_JOIN_SECONDS)


def reason(error: BaseException) -> str:
    """Returns the line of Spark's long message that says why a job has failed."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    if "No module named 'maypole'" in text:
        return ("Python of the Spark executors cannot import maypole: install Maypole on all hosts, in the Python that "
                "PYSPARK_PYTHON names")
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File "))
    ]
    for sign in ("ExecutorLostFailure", "Python worker exited", "Reason:"):
        lines = [line for line in lines if sign in line] or lines
    return (lines or [type(error).__name__])[0].rpartition("org.apache.spark.SparkException: ")[2][:600]
