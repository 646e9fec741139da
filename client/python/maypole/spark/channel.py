"""Messages between the driver and its Spark tasks, authenticated by the job's key.

Each side begins with a nonce of 32 bytes. Then each message is a frame:

    length of the body (8 bytes, little endian) | HMAC-SHA256 (32 bytes) | body, pickled

The HMAC is over the frame's number and the body; its key is derived from the job's key, both nonces and the direction.
So a party that does not know the key can neither forge, change, repeat nor drop a frame, and nothing is unpickled
before its HMAC is checked. Frames are not encrypted. The key comes to the tasks in the function that Spark sends
them.

Thread contract: a Channel belongs to one thread.
"""

import hashlib
import hmac
import os
import pickle
import socket
import struct
from typing import Any, Optional

_HEAD = struct.Struct("<Q")
_NUMBER = struct.Struct("<Q")
_NONCE_BYTES = 32
_MAC_BYTES = 32
_MOST_BEFORE_PROOF = 65536  # length of the first frame: its sender has proved nothing yet
_PART = 1 << 20
# Detects a host that has gone without closing its connections after about 20 s.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20000))


class Refused(ConnectionError):
    """The peer does not know the job's key, or its data is damaged."""


class Channel:
    """One connection. is_driver: which of the two sides this is."""

    def __init__(self, connection: socket.socket, key: bytes, is_driver: bool):
        self._socket = connection
        self._key = key
        self._is_driver = is_driver
        self._nonce = os.urandom(_NONCE_BYTES)
        self._keys: Optional[tuple[bytes, bytes]] = None  # for frames that we send, for frames that we receive
        self._sent = self._received = 0
        self._buffer = bytearray()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.sendall(self._nonce)

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection, which the peer will notice."""
        self._socket.close()

    @property
    def proved(self) -> bool:
        """Whether the peer has proved that it knows the key, by sending a frame."""
        return self._received > 0

    def send(self, *message: Any) -> None:
        """Sends a message; blocks until the kernel has all of it. Raises OSError if the connection has ended.

        A task may send only after it has received the driver's nonce (meet()).
        """
        body = pickle.dumps(message, protocol=4)
        assert self._keys is not None
        mac = _mac(self._keys[0], self._sent, body)
        self._sent += 1
        self._socket.sendall(_HEAD.pack(len(body)) + mac)
        self._socket.sendall(body)

    def meet(self) -> None:
        """Waits for the peer's nonce. Raises ConnectionError if the connection ends before that."""
        while self._keys is None:
            self._read()
            self._take_nonce()

    def receive(self) -> list[tuple[Any, ...]]:
        """Reads once, and returns the messages that have arrived; call it when the socket is readable.

        Raises ConnectionError at the end of the connection, Refused if a frame is not the peer's.
        """
        self._read()
        self._take_nonce()
        messages = []
        while self._keys is not None:
            body = self._take_frame()
            if body is None:
                break
            messages.append(pickle.loads(body))
        return messages

    def _read(self) -> None:
        part = self._socket.recv(_PART)
        if not part:
            raise ConnectionError("the connection has ended")
        self._buffer += part

    def _take_nonce(self) -> None:
        if self._keys is not None or len(self._buffer) < _NONCE_BYTES:
            return
        theirs = bytes(self._buffer[:_NONCE_BYTES])
        del self._buffer[:_NONCE_BYTES]
        nonces = self._nonce + theirs if self._is_driver else theirs + self._nonce
        of_driver, of_task = (
            hmac.new(self._key, side + nonces, hashlib.sha256).digest() for side in (b"driver", b"task"))
        self._keys = (of_driver, of_task) if self._is_driver else (of_task, of_driver)

    def _take_frame(self) -> Optional[bytes]:
        begin = _HEAD.size + _MAC_BYTES
        if len(self._buffer) < begin:
            return None
        length, = _HEAD.unpack_from(self._buffer)
        if not self.proved and length > _MOST_BEFORE_PROOF:
            raise Refused("the peer does not know the job's key")
        if len(self._buffer) < begin + length:
            return None
        mac, body = bytes(self._buffer[_HEAD.size:begin]), bytes(self._buffer[begin:begin + length])
        assert self._keys is not None
        if not hmac.compare_digest(mac, _mac(self._keys[1], self._received, body)):
            raise Refused("the peer does not know the job's key")
        del self._buffer[:begin + length]
        self._received += 1
        return body


def _mac(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.new(key, _NUMBER.pack(number) + body, hashlib.sha256).digest()


def connect(addresses: list[tuple[str, int]], key: bytes, seconds: float) -> tuple[Channel, str]:
    """Connects a task to the driver at the first address that accepts; returns the channel and that address's host.

    Raises a ConnectionError that names the addresses and why each failed.
    """
    failures = []
    for host, port in addresses:
        try:
            connection = socket.create_connection((host, port), seconds)
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
            continue
        channel = Channel(connection, key, is_driver=False)
        channel.meet()
        connection.settimeout(None)
        return channel, host
    raise ConnectionError("this Spark task cannot reach the driver's maypole.spark.run: " + "; ".join(failures))
