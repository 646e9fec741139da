"""One node of a job: its agent and its ranks, in this process's namespaces.

usage: node.py SPEC.json   with {"agent": [argv], "socket": path,
"ranks": [{"env": {...}, "argv": [...]}]}
"""

import json
import os
import subprocess
import sys
import time


def main():
    with open(sys.argv[1]) as f:
        spec = json.load(f)
    agent = subprocess.Popen(spec["agent"])
    try:
        deadline = time.monotonic() + 20
        while not os.path.exists(spec["socket"]):
            if agent.poll() is not None or time.monotonic() > deadline:
                sys.exit("the agent does not listen")
            time.sleep(0.01)
        ranks = [subprocess.Popen(r["argv"], env=dict(os.environ, **r["env"])) for r in spec["ranks"]]
        status = max(abs(r.wait()) for r in ranks)
    finally:
        agent.terminate()
        ended = agent.wait()
    sys.exit(status or abs(ended))


if __name__ == "__main__":
    main()
