"""Runs one part of a job in a machine of systems_test: its coordinator, or a node's agent with one rank.

    system_roles.py coordinator             prints address=ADDRESS; serves until standard input ends
    system_roles.py node ADDRESS NODE       an agent of the coordinator, and rank NODE of two
    system_roles.py status ADDRESS          prints what maypolectl reports

All use TLS; /srv/certs has the certificates. The programs are the wheel's.
"""

import os
import re
import subprocess
import sys

ENV = "/srv/env/bin/"
TOKEN = "0123456789abcdef0123456789abcdef"


def tls(who):
    return ["--secret_file=/srv/secret"] + ["--tls_%s=/srv/certs/%s" % (kind, name) for kind, name in (
        ("ca", "ca.pem"), ("cert", who + ".pem"), ("key", who + ".key"))]


class Daemon:
    """A program that announces what it serves; it ends with the block."""

    def __init__(self, *argv):
        read, write = os.pipe()
        self._process = subprocess.Popen([ENV + argv[0], "--announce_fd=%d" % write, *argv[1:]], pass_fds=[write])
        os.close(write)
        with os.fdopen(read) as f:
            self.announced = dict(re.findall(r"(\w+)=(\S*)", f.readline()))

    def __enter__(self):
        return self.announced

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(30)


def coordinator():
    with Daemon("maypole-coordinator", "--listen=127.0.0.1:0", "--metrics=", *tls("coordinator")) as announced:
        print("address=" + announced["listen"], flush=True)
        sys.stdin.read()


def node(address, number):
    with Daemon("maypole-worker", "--coordinator=" + address, "--node=node" + number, "--network=127.0.0.1",
                "--socket=/srv/agent" + number, "--metrics=127.0.0.1:0", *tls("node")) as announced:
        variables = dict(AGENT=announced["socket"], RANK=number, SIZE="2", LOCAL_RANK="0", LOCAL_SIZE="1", JOB="both",
                         TOKEN=TOKEN)
        env = dict(os.environ, **{"MAYPOLE_" + name: value for name, value in variables.items()})
        subprocess.run([ENV + "python3", "/srv/train.py"], env=env, check=True)


def status(address):
    subprocess.run([ENV + "maypolectl", "--coordinator=" + address, *tls("admin"), "status"], check=True)


{"coordinator": coordinator, "node": node, "status": status}[sys.argv[1]](*sys.argv[2:])
