"""What a process needs to know to start daemons on a host: the address of an interface, what a daemon announces."""

import fcntl
import socket
import struct
from typing import Optional

_SIOCGIFADDR = 0x8915  # netdevice(7)


def address_of(interface: str) -> Optional[str]:
    """The first IPv4 address of a network interface of this host; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def parse_announcement(line: str) -> dict[str, str]:
    """{"socket": "/a path", "metrics": "127.0.0.1:1"} of "metrics=127.0.0.1:1 socket=/a path".

    A daemon writes such a line to --announce_fd; the path is the rest of the line.
    """
    found = {}
    rest = line.partition("\n")[0]
    while rest:
        word, _, more = (rest, "", "") if rest.startswith("socket=") else rest.partition(" ")
        key, _, value = word.partition("=")
        found[key] = value
        rest = more
    return found
