// Placement: which rank runs on which node, and the rank's environment.
//
// Purpose: ranks are numbered node by node. Pure: values in, values out.
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_HOSTS_PLACEMENT_H_
#define MAYPOLE_CLIENT_LAUNCHER_HOSTS_PLACEMENT_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace maypole::launcher {

struct Place {
  int rank = 0;
  int node = 0;
  int local_rank = 0;
  int local_size = 0;
};

// Ranks of each node: the first (ranks % nodes) nodes have one rank more than
// the others. Requires ranks >= nodes >= 1.
std::vector<int> SpreadEvenly(int ranks, int nodes);

// One Place per rank, in the order of ranks.
std::vector<Place> PlaceRanks(const std::vector<int>& ranks_by_node);

std::string NodeName(int node);

// The values that all ranks of the job on one node have in common.
struct JobEnvironment {
  int ranks = 0;
  int nodes = 0;
  std::string job;
  std::string token;
  int start_timeout_s = 0;
  int usable_cores = 1;  // of this machine
  int ranks_here = 1;    // on this machine, over all nodes that run here
  // As in CUDA_VISIBLE_DEVICES; each rank is bound to one. Empty: ranks see
  // what they would see without us.
  std::vector<std::string> gpus;
  std::string agent;  // socket of the node's agent; empty: a job of one rank
                      // without an agent
  std::string horovod_shim;  // goes to the front of PYTHONPATH; empty: none
  std::string python_path;   // PYTHONPATH without us
  std::string host;          // for HOROVOD_HOSTNAME
  // An elastic job: the coordinator assigns ranks, and Place::rank is only the
  // number of the process. Then `ranks` and `nodes` are not used.
  bool elastic = false;
  int min_size = 1, max_size = 1;
  std::string directory;  // private, for files of processes; elastic
  // File with the function that ranks run; they write their results to
  // kAnnounceFd. Empty: they run programs.
  std::string function;
  std::string torch_store;  // HOST:PORT for rank 0's store; static jobs
};

using Variables = std::vector<std::pair<std::string, std::string>>;
using IsSet = std::function<bool(const std::string& name)>;

// The unique id of a new job. It starts with the job's name, if it has one.
// random: at least 16 random digits.
std::string JobId(const std::string& name, const std::string& random);

// Of a process of an elastic job: common/finished_file.h.
std::string FinishedFile(const std::string& directory, int process);

// The variables to set for one rank. is_set says whether the user has set a
// variable: PYTHONUNBUFFERED, OMP_NUM_THREADS, MASTER_ADDR and MASTER_PORT then
// keep the user's value.
Variables RankVariables(const JobEnvironment& job, const Place& place,
                        const IsSet& is_set);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_PLACEMENT_H_
