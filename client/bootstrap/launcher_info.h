// DetectLauncher: what the launcher of this process says about its place in a
// job.
//
// Purpose: torchrun, mpirun (Open MPI), mpiexec (MPICH, Intel MPI) and srun
// each set variables of their own. Where several are around (mpirun in a Slurm
// allocation), the innermost counts, in that order. Nothing set: a job of one
// rank. Pure: variables and facts in, values out.
//
// Thread contract: functions; not synchronized.
//
// Invariants of what comes out: 0 <= rank < size <= kMaxRanks, 0 <= local_rank
// < local_size <= min(size, kMaxLocalRanks); `job` is empty for kNone only.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_LAUNCHER_INFO_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_LAUNCHER_INFO_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace maypole {

enum class Launcher : uint8_t {
  kNone = 0,
  kTorchrun = 1,
  kOpenMpi = 2,
  kHydra = 3,  // MPICH, Intel MPI
  kSlurm = 4,
};

struct LauncherInfo {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;  // the same on all ranks, and no other job's
  // Tells this node from others of the job that have the same host name (two
  // agents of torchrun on one machine); often empty.
  std::string node_tag;
  std::string node_name;  // the launcher's name for the node; empty: none
  // Slurm, which hands out nothing but names: the job's first host, and whether
  // it is this one.
  std::string head;
  bool at_head = false;
};

// What DetectLauncher needs to know besides variables.
struct ProcessFacts {
  uid_t uid = 0;
  std::string host;
  bool terminal = false;  // the process has a controlling terminal
  // The ancestor that Hydra has for the ranks of a node, as "pid.start"; empty:
  // there is none to be seen.
  std::string hydra_proxy;
};
ProcessFacts ThisProcessFacts();

using Getter = std::function<const char*(const char*)>;

// get: as getenv, null if unset; empty counts as unset. Half-set or
// contradicting variables are an error that names them.
Status DetectLauncher(const Getter& get, const ProcessFacts& facts,
                      LauncherInfo* out);

// Slurm's lists: "n[1-3,07],m1" -> n1 n2 n3 n07 m1. At most kMaxRanks names;
// kInvalidArgument: it is none.
Status ExpandHosts(std::string_view list, std::vector<std::string>* out);

// "2(x3),1" -> 2 2 2 1.
Status ExpandCounts(std::string_view list, std::vector<int>* out);

// 16 hexadecimal digits, FNV-1a. No secret may depend on it.
std::string HashHex(std::string_view text);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_LAUNCHER_INFO_H_
