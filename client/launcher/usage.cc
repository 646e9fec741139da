#include "client/launcher/options.h"

namespace maypole::launcher {

std::string Usage() {
  return R"(maypolerun: starts a training job of several processes (ranks).

usage: maypolerun -np N [options] [--] command [argument...]

Each of the N ranks runs the command; inside it, maypole.init() finds its rank
and the others. Without --coordinator and --agent, maypolerun starts a
coordinator and one worker agent per node for the life of the job.

examples
  maypolerun -np 4 python3 train.py
  maypolerun -np 4 --nodes 2 python3 train.py --epochs 3
  maypolerun -np 4 -H h1:2,h2:2 python3 train.py
  maypolerun -np 2 --coordinator 10.0.0.1:4000 --secret-file s ./train

options
  -np N, -n N, --num-proc N   ranks to start; with -H or --hostfile all slots
                              if it is not given
  -H, --hosts HOST:SLOTS,...  where: [user@]HOST, 1 slot if none is given; ranks
                              go host by host, and other hosts than this one
                              are entered by ssh
  --hostfile FILE             the same, a line each: "HOST slots=N", "# ..."
  -p, --ssh-port PORT         of the hosts' sshd
  -i, --ssh-identity-file F   the private key to enter them with
  --remote-bin DIR            where maypolerun stands there (as here)
  --agent[=SOCKET]            use maypole-worker daemons that run on the hosts,
                              and their coordinator, instead of own ones
  --nodes N                   nodes (executors) to spread the ranks over, all
                              on this machine, 1 by default; ranks go node by
                              node: -np 3 --nodes 2 puts 0,1 and 2
  --job-name NAME             what operators see: the job is NAME and a random
                              number instead of the latter alone
  --coordinator HOST:PORT     use this coordinator instead of an own one
  --secret-file PATH          the cluster secret of that coordinator
  --network-addresses A,B     the IP address each node uses, one per node
  --network-interfaces E,F    the network interface whose address each node
                              uses: the first of these that it has
  --start-timeout SECONDS     how long to wait until all is up (120, or what
                              MAYPOLE_START_TIMEOUT or HOROVOD_START_TIMEOUT
                              says)
  --output-filename DIR       also write each rank's output to
                              DIR/rank.N/stdout and DIR/rank.N/stderr
  --no-prefix                 print the ranks' lines without [rank]<stdout>:
  --endpoints-file PATH       write the metrics endpoints there, one
                              NAME=HOST:PORT per line (coordinator, node0, ...;
                              of this machine), and admin=HOST:PORT, where
                              maypolectl asks our coordinator
  --verbose                   say what is started where; pass on the daemons'
                              logs
  --check-build               print what this build can do
  -v, --version               print the version
  -h, --help                  print this

Each line of a rank is printed as [rank]<stdout>:line or [rank]<stderr>:line;
with one rank the output is passed through as it is. Rank 0 reads maypolerun's
standard input if it runs on this machine, the others read nothing.

other hosts: ssh must enter them without a question (a key, known hosts; the key
of a host that is not known yet is accepted). Maypole must be installed there,
in the same version and place, and the current directory must exist. Ranks get
the environment of maypolerun, but for what belongs to a machine or a session
(HOME, USER, SHELL, TMPDIR, DISPLAY, SSH_*, XDG_*, ...). The job's secret goes
through ssh's standard input. If a host is lost its ranks are (status 255).

environment of a rank: MAYPOLE_RANK, MAYPOLE_SIZE, MAYPOLE_LOCAL_RANK,
MAYPOLE_LOCAL_SIZE, MAYPOLE_CROSS_RANK (the node's number), MAYPOLE_CROSS_SIZE,
and what the library needs (MAYPOLE_JOB, MAYPOLE_TOKEN, MAYPOLE_AGENT,
MAYPOLE_NODE, MAYPOLE_START_TIMEOUT). PYTHONUNBUFFERED is set to 1 if it is not
set, and OMP_NUM_THREADS to the cores each rank may use.

environment: MAYPOLE_FUSION_THRESHOLD (or HOROVOD_FUSION_THRESHOLD): bytes that
operations between nodes run together, 0 for none (default 64 MiB).

exit status: 0 if all ranks ended with 0; else that of the rank that failed
first (128 + signal number if a signal killed it). When a rank fails, the others
have 5 s to end by themselves, then they are stopped. Ctrl-C stops all ranks
within 2 s (exit status 130). 1: the job could not be started. 2: wrong usage;
126, 127: the command cannot be run, is not found (1 if it is only other hosts
that do not have it).
)";
}

}  // namespace maypole::launcher
