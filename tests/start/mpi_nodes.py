"""Two nodes for Open MPI's mpirun: network namespaces with host names of their own, n0 and n1 (needs root).

    with namespaces.Namespaces() as net:
        nodes = MpiNodes(net, directory)
        subprocess.run(nodes.on_n0(["mpirun", "-np", "4", *nodes.options, "hostname"]))     # n0 n0 n1 n1
"""

import os

# Where mpirun would call ssh.
_RSH_AGENT = """\
#!/bin/sh
shift
exec ip netns exec {namespace} unshare --uts sh -c 'hostname n1; exec sh -c "$0"' "$*"
"""


class MpiNodes:
    """`options`: mpirun's, which place two ranks on each node."""

    def __init__(self, net, directory):
        self._net = net
        agent, hosts = os.path.join(directory, "rsh"), os.path.join(directory, "mpi_hosts")
        with open(agent, "w", encoding="utf-8") as f:
            f.write(_RSH_AGENT.format(namespace=net.names[1]))
        os.chmod(agent, 0o755)
        with open(hosts, "w", encoding="utf-8") as f:
            f.write("n0 slots=2\nn1 slots=2\n")
        self.options = ["--hostfile", hosts, "--mca", "plm_rsh_agent", agent]

    def on_n0(self, argv):
        return ["ip", "netns", "exec", self._net.names[0], "unshare", "--uts", "sh", "-c", 'hostname n0; exec "$@"',
                "sh", *argv]
