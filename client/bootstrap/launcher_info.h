// DetectLauncher: finds out this process's place in its job from the
// environment variables of its launcher.
//
// Purpose: torchrun, jsrun, mpirun (Open MPI), mpiexec (MPICH, Intel MPI) and
// srun each set variables of their own. If variables of several launchers are set
// (mpirun in a Slurm allocation), the innermost launcher counts; the order of
// this list decides. If none are set, it is a job of one rank. Pure: variables
// and facts in, values out.
//
// Thread contract: functions; not synchronized.
//
// Invariants of the result: 0 <= rank < size <= kMaxRanks, 0 <= local_rank <
// local_size <= min(size, kMaxLocalRanks); `job` is empty only for kNone.
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
  kJsrun = 5,  // LSF's, on clusters with IBM's Job Step Manager
};

struct LauncherInfo {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;  // unique to the job and the same on all its ranks
  // Distinguishes this node from other nodes of the job with the same host name
  // (two torchrun agents on one machine); often empty.
  std::string node_tag;
  std::string node_name;  // the launcher's name for the node; empty: none
  // Only for Slurm, which provides only host names: the job's first host, and
  // whether this process runs there.
  std::string head;
  bool at_head = false;
};

// What DetectLauncher needs besides variables.
struct ProcessFacts {
  uid_t uid = 0;
  std::string host;
  bool terminal = false;  // the process has a controlling terminal
  // The Hydra proxy process that started the ranks of this node, as
  // "pid.start"; empty if no ancestor is one.
  std::string hydra_proxy;
};
ProcessFacts ThisProcessFacts();

using Getter = std::function<const char*(const char*)>;

// `get` works like getenv (null if unset); empty values count as unset. If some
// variables are missing or contradict each other, the error names them.
Status DetectLauncher(const Getter& get, const ProcessFacts& facts,
                      LauncherInfo* out);

// Expands a Slurm list of hosts: "n[1-3,07],m1" -> n1 n2 n3 n07 m1.
// kInvalidArgument if it is malformed or has more than kMaxRanks names.
Status ExpandHosts(std::string_view list, std::vector<std::string>* out);

// Expands a Slurm list of counts: "2(x3),1" -> 2 2 2 1. kInvalidArgument as
// above.
Status ExpandCounts(std::string_view list, std::vector<int>* out);

// The text's FNV-1a hash as 16 hexadecimal digits. Not cryptographic.
std::string HashHex(std::string_view text);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_LAUNCHER_INFO_H_
