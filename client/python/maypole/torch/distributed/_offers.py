"""Reports to ranks that receive from any rank what the others have sent to them.

send() submits its operation at once, and a recv() that names the sender matches it by name (_point_to_point.py). recv()
from any rank must first learn which ranks have sent. So it subscribes: it connects to each other rank of the group,
which answers with the number of messages it has sent to the subscriber with this tag, and again at each further
message. The receiver takes the next message of a rank that has sent more than it has received, as if the program had
named it.

    receiver                                 sender
    {"group": g, "rank": r, "tag": t}   ->
                                        <-   {"group": g, "rank": s, "tag": t, "sent": 3}   at once, and at each send
                                        <-   {"leaves": true}                               when it leaves in good order

Programs that receive only from named ranks pay for no more than a listening socket in each process. The first send, or
the first receive from any rank, starts the thread, which sleeps in select() until something arrives. A connection that
ends without "leaves" means a death: the receive becomes one from the rank that died, and the library fails that
operation with the rank's name.

The addresses, and a secret that a subscriber must show, come from the store of torch.distributed.

Thread contract: any thread.
"""

import contextlib
import hmac
import json
import logging
import os
import secrets
import selectors
import socket
import threading
from typing import Any, Callable, NamedTuple, Optional

from maypole.common import basics, hosts, process_sets
from maypole.common.exceptions import HorovodInternalError
from maypole.common.operations import Pending

_log = logging.getLogger("maypole.torch.distributed")
# In place of a count.
LEFT, DIED = -1, -2

_SECRET_BYTES = 16
_CONNECT_SECONDS = 30
# How often the thread looks whether the membership epoch is over, while a receive waits and nothing arrives: a child
# of a rank that has died may hold its connections open.
_LOOK_SECONDS = 0.5
# A subscription has about a hundred bytes.
_LONGEST_LINE = 65536
# Limit of connections that have not shown the secret; beyond it the oldest is closed.
_MOST_STRANGERS = 64


class Listener(NamedTuple):
    """Who hears of messages with a tag.

    ranks: the group's, in the job. heard: called with a rank and how many messages it has sent, or that it has LEFT or
    DIED. waits: whether a receive waits for a message.
    """

    ranks: list[int]
    heard: Callable[[int, int], None]
    waits: Callable[[], bool]


class _Peer:
    """A connection that is read in whole lines."""

    def __init__(self, connection: socket.socket, secret: bytes = b""):
        self.connection = connection
        self.missing_secret = secret  # must arrive before the first line
        self.rank: Optional[int] = None
        self.left = False
        self._received = b""
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a line; the thread that reads notices a peer that has gone."""
        with self._lock:
            try:
                self.connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                _log.debug("a subscriber has gone")

    def receive(self) -> Optional[list[dict[str, Any]]]:
        """Returns the messages that have arrived; None at the end of the connection."""
        try:
            data = self.connection.recv(_LONGEST_LINE)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._received += data
        if self.missing_secret:
            if len(self._received) < len(self.missing_secret):
                return [] if data else None
            shown = self._received[:len(self.missing_secret)]
            if not hmac.compare_digest(shown, self.missing_secret):
                return None
            self._received, self.missing_secret = self._received[len(shown):], b""
        *lines, self._received = self._received.split(b"\n")
        if not data and not lines or len(self._received) > _LONGEST_LINE:
            return None
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None


class Offers:
    """Each process in a group has one; it is made and closed with the default group.

    Args:
        rank: this one's, in the job.
        address_of: gives `address` of another rank's Offers.

    Attributes:
        address: what a subscriber needs in order to connect.
    """

    def __init__(self, rank: int, address_of: Callable[[int], str]):
        self._rank = rank
        self._address_of = address_of
        self._lock = threading.Lock()
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._listener = _listen()
        self._listener.setblocking(False)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self._strangers: list[_Peer] = []  # by age; those that have shown the secret leave at the next one
        self._subscribers: dict[tuple[str, int, int], _Peer] = {}  # by group, rank that receives, tag
        self._sent: dict[tuple[str, int, int], int] = {}
        self._peers: dict[int, _Peer] = {}  # the ranks to which this process has subscribed
        self._listeners: dict[tuple[str, int], Listener] = {}  # by group, tag
        self._look: Optional[Pending] = None  # a request that fails if the epoch is over
        self._over = False  # it is
        self.address = json.dumps({
            "host": own_address(),
            "name": socket.gethostname(),
            "port": self._listener.getsockname()[1],
            "secret": self._secret.hex()
        })

    # --- The side that sends --------------------------------------------------

    def sent(self, group: str, to: int, tag: int, count: int) -> None:
        """Records that this rank has sent `count` messages with this tag to the rank `to` of the job."""
        key = (group, to, tag)
        with self._lock:
            self._sent[key] = count = max(count, self._sent.get(key, 0))  # two threads may come in either order
            subscriber = self._subscribers.get(key)
            self._start()
        if subscriber is not None:
            subscriber.send(self._count(key, count))

    def _count(self, key: tuple[str, int, int], count: int) -> dict[str, Any]:
        group, _, tag = key
        return {"group": group, "rank": self._rank, "tag": tag, "sent": count}

    # --- The side that receives -----------------------------------------------

    def subscribe(self, group: str, tag: int, listener: Listener) -> None:
        """Calls listener.heard at each change.

        A thread of this object calls it. A second subscription for a group and tag does nothing.

        Raises:
            HorovodInternalError: a rank cannot be reached.
        """
        with self._lock:
            if (group, tag) in self._listeners:
                return
            self._listeners[group, tag] = listener
            self._start()
        for rank in listener.ranks:
            if rank == self._rank:
                continue
            try:
                self._connected(rank).send({"group": group, "rank": self._rank, "tag": tag})
            except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                listener.heard(rank, DIED if self._epoch_is_over() else LEFT)
            except Exception as error:  # torch's types for a store that is lost differ by its version
                with self._lock:
                    del self._listeners[group, tag]
                self._look_now()  # names a rank that has died
                raise HorovodInternalError(f"rank {rank} of the job cannot be reached: {error}") from None
        self._wake()

    def _look_now(self) -> None:
        """Raises the library's error if operations can only fail, as after a death."""
        process_sets.start_of_members([self._rank]).wait()

    def _epoch_is_over(self) -> bool:
        try:
            self._look_now()
        except HorovodInternalError:
            return True
        return False

    def _connected(self, rank: int) -> _Peer:
        with self._lock:
            peer = self._peers.get(rank)
            if peer is not None:
                return peer
        at = json.loads(self._address_of(rank))
        host = "127.0.0.1" if at["name"] == socket.gethostname() else at["host"]
        try:
            connection = socket.create_connection((host, at["port"]), _CONNECT_SECONDS)
        except ConnectionRefusedError:
            raise
        except OSError as error:
            raise ConnectionError(f"recv() from any rank: rank {rank} ({at['name']}) cannot be reached at "
                                  f"{host}:{at['port']}: {error}") from None
        connection.settimeout(None)
        connection.sendall(bytes.fromhex(at["secret"]))
        peer = _Peer(connection)
        peer.rank = rank
        with self._lock:
            self._peers[rank] = peer
        self._watch(peer)
        return peer

    # --- The thread -----------------------------------------------------------

    def close(self) -> None:
        """Tells subscribers that this rank leaves, and ends the thread; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread, subscribers = self._thread, set(self._subscribers.values())
        for subscriber in subscribers:
            subscriber.send({"leaves": True})
        if thread is not None and thread is not threading.current_thread():
            self._wake()
            thread.join()
        else:
            self._close_all()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._wake_reader, selectors.EVENT_READ, lambda: self._wake_reader.recv(4096))
            self._thread = threading.Thread(target=self._run, name="maypole-offers", daemon=True)
            self._thread.start()

    def _watch(self, peer: _Peer) -> None:
        self._selector.register(peer.connection, selectors.EVENT_READ, lambda: self._read(peer))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the thread has already seen that it must end
            self._wake_writer.send(b"x")

    def _run(self) -> None:
        while not self._closed:
            events = self._selector.select(_LOOK_SECONDS if self._listeners and not self._over else None)
            for function in [key.data for key, _ in events] or [self._look_at_epoch]:
                try:
                    function()
                except Exception:  # raised by a callback; the others are still served
                    _log.exception("a receive from any rank has failed")
        self._close_all()

    def _look_at_epoch(self) -> None:
        """Tells listeners that all ranks have died if the membership epoch is over; then no operation can end."""
        with self._lock:
            listeners = list(self._listeners.values())
        if not any(listener.waits() for listener in listeners):
            return
        try:
            # Asks each second time: a wait in this thread would make the library count it as one that uses it.
            if self._look is None:
                self._look = process_sets.start_of_members([self._rank])
            elif self._look.done():
                look, self._look = self._look, None
                look.wait()
        except HorovodInternalError:
            self._over = True
            for listener in listeners:
                for rank in listener.ranks:
                    listener.heard(rank, DIED)

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        for each in (self._listener, self._wake_reader, self._wake_writer):
            each.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        peer = _Peer(connection, self._secret)
        self._strangers = [each for each in self._strangers if each.missing_secret] + [peer]
        self._watch(peer)
        if len(self._strangers) > _MOST_STRANGERS:
            self._end(self._strangers[0])

    def _read(self, peer: _Peer) -> None:
        messages = peer.receive()
        for message in messages or ():
            if "sent" in message:
                self._tell(message["group"], message["tag"], message["rank"], message["sent"])
            elif "leaves" in message:
                peer.left = True
            else:
                self._answer(peer, (message["group"], message["rank"], message["tag"]))
        if messages is None:
            self._end(peer)

    def _end(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        peer.connection.close()
        peer.missing_secret = b""
        self._gone(peer)

    def _answer(self, peer: _Peer, key: tuple[str, int, int]) -> None:
        with self._lock:
            self._subscribers[key] = peer
            count = self._sent.get(key, 0)
        peer.send(self._count(key, count))

    def _gone(self, peer: _Peer) -> None:
        with self._lock:
            for key in [key for key, each in self._subscribers.items() if each is peer]:
                del self._subscribers[key]
            listeners = list(self._listeners.values())
        if peer.rank is not None:  # not a subscriber
            for listener in listeners:
                listener.heard(peer.rank, LEFT if peer.left else DIED)

    def _tell(self, group: str, tag: int, rank: int, count: int) -> None:
        with self._lock:
            listener = self._listeners.get((group, tag))
        if listener is not None:
            listener.heard(rank, count)


def own_address() -> str:
    """The address at which other hosts reach this one: that of the route to the store's host."""
    return hosts.own_address(os.environ.get("MASTER_ADDR", "")) or socket.gethostname()


def _listen() -> socket.socket:
    """A socket at a free port: on loopback if the job is on this host only, else on all addresses."""
    if basics.cross_size() == 1:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
