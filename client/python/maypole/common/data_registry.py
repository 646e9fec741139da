"""Tells a training job where the dispatchers and workers of a data service are.

The service itself is tf.data's (maypole.tensorflow.data) and not in this module.

The training job and the computing job share one file, the configuration. It
names the registry, a server in one process of the computing job. Dispatchers
and workers register there; all other processes wait for them.

    registry = Registry(dispatchers=1, workers_per_dispatcher=2, key=new_key(),
                        address=own_address())
    client = RegistryClient(registry.addresses(), registry.key)
    client.register_dispatcher(0, "grpc://10.0.0.1:5050")
    client.wait_for_dispatcher_registration(0, timeout=60)

Protocol: multiprocessing.connection over TCP: both sides prove that they know
the key (HMAC); then each message is a JSON list. A request is [function,
arguments ...]; the answer is ["ok", result] or ["error", text].

Thread contract: any thread may use a Registry; only one thread at a time may use a client.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, Callable

from maypole.common import hosts

_log = logging.getLogger("maypole.data")

# How long a request for something that has not happened yet is held.
_WAIT_SECONDS = 1.0
_STOP_SECONDS = 10.0
# How long a client may take to prove that it knows the key and to send its
# request, and how many clients there may be at a time.
_REQUEST_SECONDS = 10.0
_MAX_CLIENTS = 1024
# Pause between two attempts to accept a client, or to reach the registry.
_RETRY_SECONDS = 0.1
# A registry that has not answered for this long has ended.
_GONE_SECONDS = 5.0


def new_key() -> bytes:
    """A secret for one registry."""
    return os.urandom(32)


def write_private(filename: str, text: str) -> None:
    """Writes a file atomically, readable only by its owner, replacing any of this name. Raises OSError."""
    # A new file of mode 0600, whatever another user has put there.
    descriptor, new = tempfile.mkstemp(
        dir=os.path.dirname(filename) or ".",
        prefix=os.path.basename(filename) + ".")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, filename)


def own_address(towards: str = "192.0.2.1") -> str:
    """The address at which the host `towards`, or by default any other host, reaches this one."""
    return hosts.own_address(towards) or "127.0.0.1"  # a host without a network


@contextlib.contextmanager
def _time_limit(peer: Any, seconds: float) -> Iterator[None]:
    """Ends the peer's connection after `seconds`: reads see the end of file."""
    with socket.socket(fileno=os.dup(peer.fileno())) as copy:

        def end() -> None:
            try:
                copy.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has ended
                pass

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


class Registry:
    """Serves the addresses until shutdown().

    address: this host's address, on which it listens.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int,
                 key: bytes, address: str):
        self.key = key
        self._dispatchers = dispatchers
        self._workers_per_dispatcher = workers_per_dispatcher
        self._changed = threading.Condition()
        self._address_of: dict[int, str] = {}
        self._workers_of: dict[int, set[int]] = {
            i: set() for i in range(dispatchers)}
        self._ended = False  # the answer for those who wait
        self._stopping = False
        self._listener = connection.Listener((address, 0), backlog=64)
        self._address = self._listener.address
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True,
                                          name="maypole-data-registry")
        self._acceptor.start()

    def addresses(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """The addresses at which clients reach it, by interface."""
        return {"any": [self._address]}

    def shutdown(self) -> None:
        """Answers those who wait for the end, then stops serving."""
        with self._changed:
            self._ended = self._stopping = True
            self._changed.notify_all()
        self._stop_accepting()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _stop_accepting(self) -> None:
        try:  # so that accept() returns
            socket.create_connection(self._address, 1).close()
        except OSError:
            pass
        self._acceptor.join(_STOP_SECONDS)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer = self._listener.accept()
            except OSError:  # out of descriptors, or the peer has gone
                with self._changed:
                    if self._stopping:
                        return
                    self._changed.wait(_RETRY_SECONDS)
                continue
            with self._changed:
                if self._stopping:
                    peer.close()
                    return
                self._threads = [t for t in self._threads if t.is_alive()]
                if len(self._threads) >= _MAX_CLIENTS:  # the client tries again
                    peer.close()
                    continue
                self._threads.append(threading.Thread(
                    target=self._serve, args=(peer,), daemon=True,
                    name="maypole-data-registry-peer"))
                self._threads[-1].start()

    def _serve(self, peer: Any) -> None:
        """Answers one request of one client, which must know the key."""
        try:
            with peer:
                with _time_limit(peer, _REQUEST_SECONDS):
                    # In this thread, so that a silent stranger does not keep others waiting.
                    connection.deliver_challenge(peer, self.key)
                    connection.answer_challenge(peer, self.key)
                    function, *arguments = json.loads(peer.recv_bytes())
                peer.send_bytes(json.dumps(
                    self._answer(function, arguments)).encode())
        except (OSError, EOFError, ValueError,
                multiprocessing.AuthenticationError) as error:
            _log.info("a client of the data registry was lost: %r", error)

    def _answer(self, function: str, arguments: list[Any]) -> list[Any]:
        functions: dict[str, Callable[..., Any]] = {
            "register_dispatcher": self._register_dispatcher,
            "register_worker": self._register_worker,
            "dispatcher": self._dispatcher,
            "workers": self._workers,
            "shutdown": self._end,
            "ended": self._wait_for_end,
        }
        try:
            return ["ok", functions[function](*arguments)]
        except (KeyError, TypeError, ValueError) as error:
            return ["error", f"{function}{tuple(arguments)}: {error}"]

    def _check(self, dispatcher: int) -> None:
        if not 0 <= dispatcher < self._dispatchers:
            raise ValueError(f"dispatcher {dispatcher}: expected a number below "
                             f"{self._dispatchers}")

    def _register_dispatcher(self, dispatcher: int, address: str) -> None:
        self._check(dispatcher)
        with self._changed:
            known = self._address_of.setdefault(dispatcher, address)
            if known != address:
                raise ValueError(f"dispatcher {dispatcher} is {known} already")
            self._changed.notify_all()

    def _register_worker(self, dispatcher: int, worker: int) -> None:
        self._check(dispatcher)
        with self._changed:
            self._workers_of[dispatcher].add(worker)
            self._changed.notify_all()

    def _dispatcher(self, dispatcher: int) -> Any:
        self._check(dispatcher)
        self._wait(lambda: dispatcher in self._address_of)
        return self._address_of.get(dispatcher)

    def _workers(self, dispatcher: int) -> list[int]:
        self._check(dispatcher)
        wanted = self._workers_per_dispatcher
        self._wait(lambda: len(self._workers_of[dispatcher]) >= wanted)
        return [len(self._workers_of[dispatcher]), wanted]

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait_for_end(self) -> bool:
        self._wait(lambda: self._ended)
        return self._ended

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._ended,
                                   _WAIT_SECONDS)
            if self._ended and not condition():
                raise ValueError("the computing job has ended (shutdown)")


class RegistryClient:
    """Calls a registry.

    Functions that wait raise TimeoutError. All raise ConnectionError if the
    registry cannot be reached; those that wait do so after their timeout, or at
    once if the key is wrong.
    """

    def __init__(self, addresses: Mapping[str, Sequence[tuple[str, int]]],
                 key: bytes):
        self._addresses = [(host, port) for some in addresses.values()
                           for host, port in some]
        self._key = key

    def own_address(self) -> str:
        """The address at which the registry's host, and hosts near it, reach this host."""
        return own_address(self._addresses[0][0])

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Announces a dispatcher's address (grpc://host:port)."""
        self._call("register_dispatcher", dispatcher_id, address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int,
                                         timeout: float) -> str:
        """Waits for a dispatcher; returns its address."""
        return self._await(f"dispatcher {dispatcher_id}", timeout,
                           lambda: self._call("dispatcher", dispatcher_id))

    def register_worker_for_dispatcher(self, dispatcher_id: int,
                                       worker_id: int) -> None:
        """Announces that a worker serves a dispatcher."""
        self._call("register_worker", dispatcher_id, worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int,
                                                timeout: float) -> None:
        """Waits for all workers of a dispatcher."""

        def complete() -> bool:
            here, wanted = self._call("workers", dispatcher_id)
            return here >= wanted

        self._await(f"the workers of dispatcher {dispatcher_id}", timeout,
                    complete)

    def shutdown(self) -> None:
        """Ends the computing job."""
        self._call("shutdown")

    def wait_for_shutdown(self) -> None:
        """Waits until a client has called shutdown(), without a time limit.

        Also returns when the registry has been gone for _GONE_SECONDS.
        """
        try:
            while not _retried(lambda: self._call("ended"),
                               time.monotonic() + _GONE_SECONDS):
                pass
        except ConnectionError as error:
            _log.warning("the data registry is gone: %s", error)

    @staticmethod
    def _await(what: str, timeout: float, ask: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            answer = _retried(ask, deadline)
            if answer:
                return answer
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"waited {timeout:g} s for {what} of the data service: "
                    "does its job run, and has it enough processes?")

    def _call(self, *request: Any) -> Any:
        errors, cause = [], None
        for address in self._addresses:
            try:
                with connection.Client(address, authkey=self._key) as peer:
                    peer.send_bytes(json.dumps(request).encode())
                    kind, answer = json.loads(peer.recv_bytes())
                    break
            except (OSError, EOFError,
                    multiprocessing.AuthenticationError) as error:
                errors.append(f"{address[0]}:{address[1]}: {error}")
                cause = error
        else:
            raise ConnectionError("the data registry cannot be reached: "
                                  + "; ".join(errors)) from cause
        if kind != "ok":
            raise ValueError(answer)
        return answer


def _retried(ask: Callable[[], Any], deadline: float) -> Any:
    """Calls ask(), and retries until the deadline while the registry cannot be reached.

    Its host may be busy, or the network briefly down.
    """
    while True:
        try:
            return ask()
        except ConnectionError as error:
            wrong_key = isinstance(error.__cause__,
                                   multiprocessing.AuthenticationError)
            if wrong_key or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)
