// Placement: the names of nodes and jobs, and a rank's environment.
//
// Purpose: ranks are numbered node by node. Pure: values in, values out.
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_HOSTS_PLACEMENT_H_
#define MAYPOLE_CLIENT_LAUNCHER_HOSTS_PLACEMENT_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/node.pb.h"

namespace maypole::launcher {

std::string NodeName(int node);

// What the environment of a rank needs besides its node's description (NodeJob)
// and is known only on its machine.
struct RankSurroundings {
  int usable_cores = 1;
  int ranks_here = 1;  // on this machine, over all nodes that run here
  // As in CUDA_VISIBLE_DEVICES; each rank is bound to one. Empty: ranks see the
  // GPUs that they would see without us.
  std::vector<std::string> gpus;
  std::string agent;  // socket of the node's agent; empty: a job of one rank
                      // without an agent
  std::string python_path;  // PYTHONPATH without us
  std::string directory;    // private, for files of processes; elastic
};

// Whether RankVariables() sets the variable for the ranks of any job. If
// maypolerun runs in another job, its own value is that job's. All other
// MAYPOLE_ variables are settings of the user.
bool IsOfAJob(std::string_view name);

using Variables = std::vector<std::pair<std::string, std::string>>;
using IsSet = std::function<bool(const std::string& name)>;

// The unique id of a new job. It starts with the job's name, if it has one.
// random: at least 16 random digits.
std::string JobId(const std::string& name, const std::string& random);

// The file by which a process of an elastic job reports that it has trained to
// the end (common/finished_file.h).
std::string FinishedFile(const std::string& directory, int process);

// The variables to set for one rank or, in an elastic job, one process. local:
// its number on its node or, in an elastic job, its slot there. is_set says
// whether the user has set a variable: PYTHONUNBUFFERED, OMP_NUM_THREADS,
// MASTER_ADDR and MASTER_PORT then keep the user's value.
Variables RankVariables(const NodeJob& job, const RankSurroundings& around,
                        int rank, int local, const IsSet& is_set);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_PLACEMENT_H_
