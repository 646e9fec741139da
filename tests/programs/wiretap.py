"""An eavesdropper: writes all that crosses an interface to a file, until SIGTERM.

usage: wiretap.py INTERFACE FILE   prints "listening" when it listens
"""

import socket
import sys

ALL_PROTOCOLS = 3
LARGEST_FRAME = 1 << 18


def main():
    interface, path = sys.argv[1:]
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    # The kernel drops what is not read in time.
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 64 << 20)
    tap.bind((interface, 0))
    with open(path, "wb", buffering=0) as file:
        print("listening", flush=True)
        while True:
            file.write(tap.recv(LARGEST_FRAME))


main()
