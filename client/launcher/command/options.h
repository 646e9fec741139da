// LauncherOptions: what the user asked maypolerun for.
//
// Purpose: turns an argument vector into a checked LauncherOptions value, or
// into one line that says what is wrong. Nothing here touches the system but
// what the caller gives as Surroundings.
//
// Thread contract: functions and values; not synchronized.
//
// Invariants of a parsed LauncherOptions (unless it is about no job): ranks >=
// nodes >= 1, ranks and nodes within the limits, command not empty. hosts is
// empty if all ranks run on this machine; else there is one per node, and their
// ranks add up.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_OPTIONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/hosts/hosts.h"
#include "common/limits.h"
#include "common/status.h"

namespace maypole::launcher {

inline constexpr int kMaxNodes = 64;                // executors on this machine
inline constexpr int kMaxStartTimeout = 24 * 3600;  // seconds
// The job's id is the name, "-" and 8 digits.
inline constexpr size_t kMaxJobName = kMaxJobBytes - 9;
inline constexpr char kNodeServiceFlag[] = "--node-service";

struct LauncherOptions {
  int ranks = 0;
  int nodes = 1;
  std::vector<Host> hosts;    // by node, if some are other machines
  std::string job_name;       // empty: the job has a number only
  std::string coordinator;    // HOST:PORT; empty: start one for this job
  std::string secret_file;    // of that coordinator; empty: it asks for none
  int start_timeout_s = 120;  // also by the environment
  int64_t fusion_threshold = -1;  // by the environment; -1: it says nothing
  bool verbose = false;
  bool prefix = true;
  std::string output_directory;         // empty: no files
  std::string endpoints_file;           // empty: none
  std::vector<std::string> networks;    // one address per node, or empty
  std::vector<std::string> interfaces;  // to take addresses from, or empty
  std::vector<std::string> command;

  int ssh_port = 0;           // 0: ssh's own choice
  std::string identity_file;  // of ssh; empty: its own choice
  std::string remote_bin;     // directory of our programs there; empty: as here
  bool running_agents = false;  // use maypole-workers that run on the hosts
  std::string agent_socket;     // of those; empty: the default

  std::vector<std::string> agent_flags;  // for maypole-workers that we start

  // About no job.
  std::optional<std::string> answer;  // --help and its like: print it, and end
  bool check_build = false;
  bool node_of_job = false;       // a maypolerun on another host has started us
  std::string service_directory;  // not empty: be the node service there
};

struct Surroundings {
  IsHere is_here;  // whether a host's name is this machine's
  std::function<Status(const std::string& path, std::string* out)> read_file;
  // As getenv.
  std::function<const char*(const char* name)> variable;
};

// args: without the program's name.
Status ParseOptions(const std::vector<std::string>& args,
                    const Surroundings& surroundings, LauncherOptions* out);

// Whether the node's ranks run on this machine.
inline bool NodeIsHere(const LauncherOptions& o, int node) {
  return o.hosts.empty() || o.hosts[static_cast<size_t>(node)].here;
}
// The number of ranks of each node.
std::vector<int> RanksByNode(const LauncherOptions& options);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_OPTIONS_H_
