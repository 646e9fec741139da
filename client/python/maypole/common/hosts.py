"""What a process needs to start daemons on a host: addresses of interfaces, and what a daemon announces."""

import fcntl
import socket
import struct
from typing import Optional

_SIOCGIFADDR = 0x8915  # netdevice(7)


def address_of(interface: str) -> Optional[str]:
    """The first IPv4 address of this host's network interface, else its first global IPv6 address, else None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        except OSError:
            pass
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as lines:  # address, index, prefix, scope, flags, name
            for address, _, _, scope, _, name in map(str.split, lines):
                if name == interface and scope == "00":
                    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
    except FileNotFoundError:  # a kernel without IPv6
        pass
    return None


def own_address(towards: str) -> Optional[str]:
    """The address at which the host `towards` (a name or an address) reaches this one; None if there is no route.

    An IPv4 address if there is a route by IPv4: a name may have addresses of both kinds.
    """
    try:
        ways = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM) if towards else []
    except OSError:  # the name is unknown
        return None
    for family, kind, _, _, address in sorted(ways, key=lambda way: way[0] != socket.AF_INET):
        with socket.socket(family, kind) as asking:
            try:
                asking.connect(address)  # sends nothing
                return str(asking.getsockname()[0])
            except OSError:
                continue
    return None


def parse_announcement(line: str) -> dict[str, str]:
    """Parses "metrics=127.0.0.1:1 socket=/a path" to {"socket": "/a path", "metrics": "127.0.0.1:1"}.

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
