#include "client/launcher/options.h"

namespace maypole::launcher {

std::string Usage() {
  return R"(maypolerun: starts a training job of several processes (ranks).

usage: maypolerun -np N [options] [--] command [argument...]

Each of the N ranks runs the command; inside it, maypole.init() finds its rank
and the others. Without --coordinator, maypolerun starts a coordinator and one
worker agent per node for the life of the job, on this machine only.

examples
  maypolerun -np 4 python3 train.py
  maypolerun -np 4 --nodes 2 python3 train.py --epochs 3
  maypolerun -np 2 --coordinator 10.0.0.1:4000 --secret-file s ./train

options
  -np N, -n N, --num-proc N   ranks to start
  -H, --hosts HOST:SLOTS,...  as horovodrun's; only this machine's names are
                              accepted, with N slots or more: one node
  --nodes N                   nodes (executors) to spread them over, all on
                              this machine, 1 by default; ranks go node by
                              node: -np 3 --nodes 2 puts 0,1 and 2
  --coordinator HOST:PORT     use this coordinator instead of an own one
  --secret-file PATH          the cluster secret of that coordinator
  --network-addresses A,B     the IP address each node uses, one per node
  --start-timeout SECONDS     how long to wait until all is up (120)
  --output-filename DIR       also write each rank's output to
                              DIR/rank.N/stdout and DIR/rank.N/stderr
  --no-prefix                 print the ranks' lines without [rank]<stdout>:
  --endpoints-file PATH       write the metrics endpoints there, one
                              NAME=HOST:PORT per line (coordinator, node0, ...)
  --verbose                   say what is started where; pass on the daemons'
                              logs
  -v, --version               print the version
  -h, --help                  print this

Each line of a rank is printed as [rank]<stdout>:line or [rank]<stderr>:line;
with one rank the output is passed through as it is. Rank 0 reads maypolerun's
standard input, the others read nothing.

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
within 2 s (exit status 130). 2: wrong usage; 126, 127: the command cannot be
run, is not found.
)";
}

}  // namespace maypole::launcher
