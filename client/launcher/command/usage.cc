#include "client/launcher/command/usage.h"

namespace maypole::launcher {

const char kAbout[] =
    R"(maypolerun: starts a training job of several processes (ranks).

Usage:
  maypolerun -np N [options] [--] command [argument...]

Each of the N ranks runs the command; inside it, maypole.init() finds its rank
and the others. Without --coordinator and --agent, maypolerun starts a
coordinator and one worker agent per node for the life of the job.

Examples:
  maypolerun -np 4 python3 train.py
  maypolerun -np 4 --nodes 2 python3 train.py --epochs 3
  maypolerun -np 4 -H h1:2,h2:2 python3 train.py
  maypolerun -np 4 --min-np 2 --max-np 8 -H h1:4,h2:4 python3 train.py
  maypolerun -np 2 --coordinator 10.0.0.1:4000 --secret-file s ./train
)";

const char kNotes[] =
    R"(Each line of a rank is printed as [rank]<stdout>:line or [rank]<stderr>:line;
with one rank the output is passed through unchanged. Rank 0 reads maypolerun's
standard input if it runs on this machine; the other ranks read nothing.

Other hosts: ssh must work without a prompt (use a key; the host key of an
unknown host is accepted). Maypole must be installed there in the same version
and at the same path, and the current directory must exist. Ranks get the
environment of maypolerun, except variables that belong to a machine or a
session (HOME, USER, SHELL, TMPDIR, DISPLAY, SSH_*, XDG_*, ...). The job's
secret goes through ssh's standard input. If a host is lost, its ranks count as
failed (status 255).

Environment of a rank: MAYPOLE_RANK, MAYPOLE_SIZE, MAYPOLE_LOCAL_RANK,
MAYPOLE_LOCAL_SIZE, MAYPOLE_CROSS_RANK (the node's number), MAYPOLE_CROSS_SIZE,
and what the library needs (MAYPOLE_JOB, MAYPOLE_TOKEN, MAYPOLE_AGENT,
MAYPOLE_NODE, MAYPOLE_START_TIMEOUT). PYTHONUNBUFFERED is set to 1 if it is not
set, and OMP_NUM_THREADS to the cores each rank may use. With --horovod-shim:
HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE,
HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE and HOROVOD_HOSTNAME, too.

Elastic jobs (--min-np, --max-np or --host-discovery-script): a process that
dies is replaced, hosts come and go, and the others keep their processes. The
ranks are those of maypole.torch.elastic; the number before a line of output is
that of the process. Their environment has MAYPOLE_ELASTIC, MAYPOLE_MIN_SIZE and
MAYPOLE_MAX_SIZE instead of rank and size.

Environment of maypolerun: MAYPOLE_FUSION_THRESHOLD (or
HOROVOD_FUSION_THRESHOLD): how many bytes of operations between nodes may be
fused, 0 for no fusion (default 64 MiB).

Exit status: 0 if all ranks exited with 0; else that of the rank that failed
first (128 + signal number if a signal killed it). When a rank fails,
maypolerun waits 5 s for the others to end, then stops them. Ctrl-C stops all
ranks within 2 s (exit status 130). SIGTERM goes to the ranks, which have
--stop-timeout to end (exit status 143); SIGUSR1 and SIGUSR2 go to the ranks
and change nothing else. A signal goes to each rank's program alone if it
handles the signal, and not to the processes that it has started; otherwise to
all of them. Signals that are ignored when maypolerun starts stay ignored. 1,
too, if all ranks exited with 0 but lines of theirs could not be written to
standard output or error (a full disk, a reader that is gone): a line on the
other of the two says so. 1: the job could not be started. 2: wrong usage. 126
or 127: the command cannot be run, or is not found (1 if it is missing on other
hosts only).)";

}  // namespace maypole::launcher
