// LauncherOptions: the parsed command line of maypolerun.
//
// Purpose: turns an argument vector into a checked LauncherOptions value, or
// into one line that says what is wrong. Except for --flagfile, it accesses the
// system only through the functions in Surroundings.
//
// Thread contract: functions and values; not synchronized.
//
// Invariants of a parsed LauncherOptions that describes a job: ranks and nodes
// are within the limits, command is not empty. Unless the job is elastic, hosts
// has one entry per node, and the sum of their slots is `ranks`.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_OPTIONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/launcher/hosts/hosts.h"
#include "common/limits.h"
#include "common/status.h"

namespace maypole::launcher {

inline constexpr int kMaxNodes = 64;                // of --nodes
inline constexpr int kMaxStartTimeout = 24 * 3600;  // seconds
// The job's id is the name, "-" and 8 hexadecimal digits.
inline constexpr size_t kMaxJobName = kMaxJobBytes - 9;
inline constexpr char kNodeServiceFlag[] = "--node-service";

// A job whose ranks come and go.
struct ElasticOptions {
  int min_size = 0;
  int max_size = 0;
  std::vector<Host> hosts;       // with their slots; empty with a script
  std::string discovery_script;  // prints the hosts; empty: they are fixed
  int slots_per_host = 1;        // of hosts without a number of slots
  int timeout_s = 600;           // how long there may be too few processes
  int reset_limit = -1;          // changes of the processes; -1: any number
  std::vector<int> cooldown_s = {1, 60};  // of a host that has failed
};

struct LauncherOptions {
  int ranks = 0;              // elastic: for the first start
  std::vector<Host> hosts;    // by node, with its ranks as slots; several may
                              // be this machine
  std::string job_name;       // empty: the job's id is only a random number
  std::string coordinator;    // HOST:PORT; empty: start one for this job
  std::string secret_file;    // of that coordinator; empty: it needs no secret
  int start_timeout_s = 120;  // from the option or the environment
  int stop_timeout_s = 30;    // for the ranks after SIGTERM
  int64_t fusion_threshold = -1;  // from the environment; -1: not set
  bool verbose = false;
  bool prefix = true;
  bool timestamps = false;              // before the prefix
  std::string output_directory;         // empty: no output files
  std::string endpoints_file;           // empty: none
  std::vector<std::string> networks;    // one address per node, or empty
  std::vector<std::string> interfaces;  // to take addresses from, or empty
  std::vector<std::string> command;

  int ssh_port = 0;             // 0: ssh's default
  std::string identity_file;    // of ssh; empty: ssh's default
  std::string remote_bin;       // directory of maypolerun on other hosts;
                                // empty: the same as here
  bool running_agents = false;  // use maypole-workers that run on the hosts
  std::string agent_socket;     // of those; empty: the default

  std::string function_directory;  // of maypole.run (function_files.h); empty:
                                   // the ranks run programs
  std::string shim_directory;  // has Maypole's package `horovod`, which is what
                               // ranks import by that name; empty: it is not
  // Lines for the user about options that have no effect.
  std::vector<std::string> notes;
  // Variables to set for the ranks, on all hosts.
  std::vector<std::pair<std::string, std::string>> environment;

  bool bind_gpus = false;  // each rank sees one of its host's GPUs
  std::vector<std::string> agent_flags;  // for maypole-workers that we start
  std::vector<std::string> coordinator_flags;  // for one that we start

  // An elastic job has hosts of its own, and a node for each.
  std::optional<ElasticOptions> elastic;

  // Calls of maypolerun that run no job.
  std::optional<std::string> answer;  // text of --help and the like: print it
                                      // and exit
  bool check_build = false;
  bool node_of_job = false;  // we were started by a maypolerun on another host
  std::string service_directory;  // not empty: run the node service there
};

struct Surroundings {
  IsHere is_here;  // whether a host name means this machine
  std::function<Status(const std::string& path, std::string* out)> read_file;
  // Like getenv().
  std::function<const char*(const char* name)> variable;
  std::string program_directory = {};  // of maypolerun
};

// args: the arguments without the program's name.
Status ParseOptions(const std::vector<std::string>& args,
                    const Surroundings& surroundings, LauncherOptions* out);

// The hosts of a job; none if it has a discovery script.
inline const std::vector<Host>& HostsOf(const LauncherOptions& o) {
  return o.elastic ? o.elastic->hosts : o.hosts;
}

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_OPTIONS_H_
