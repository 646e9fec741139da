// CtlOptions: the parsed command line of maypolectl.
//
// Purpose: turns an argument vector into a checked CtlOptions value, or into
// one line that says what is wrong. Only --flagfile accesses the system.
//
// Thread contract: functions and values; not synchronized.
//
// Invariants of a parsed CtlOptions: the arguments that the command requires
// are set; options of other commands are not.
#ifndef MAYPOLE_CLIENT_CTL_OPTIONS_H_
#define MAYPOLE_CLIENT_CTL_OPTIONS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace maypole::ctl {

inline constexpr char kDefaultCoordinator[] = "127.0.0.1:4001";
inline constexpr int kMaxTimeout = 3600;  // seconds
inline constexpr size_t kMaxReasonBytes = 512;

enum class Command {
  kStatus,
  kJobs,
  kRanks,
  kTop,
  kDashboard,
  kTimeline,
  kEvents,
  kAbort,
  kDrain
};

struct CtlOptions {
  Command command = Command::kStatus;
  std::string coordinator = kDefaultCoordinator;  // HOST:PORT,...
  std::string secret_file;                        // empty: none
  std::string operator_secret_file;               // overrides secret_file
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;
  int timeout_s = 10;  // for an answer
  bool json = false;

  std::string job;       // ranks, top, events, abort, timeline; empty: all jobs
  std::string node;      // drain
  std::string reason;    // abort
  bool each = false;     // ranks: one line per rank
  int interval_s = 1;    // top
  int looks = 0;         // top: 0: until Ctrl-C
  bool control = false;  // dashboard
  bool stop = false;     // timeline
  bool follow = false;   // events
  int last = 0;          // events: at most the last N; 0: all
  bool undo = false;     // drain
  bool wait = false;     // drain

  std::optional<std::string> answer;  // text of --help and the like: print it
                                      // and exit
};

// args: the arguments without the program's name. variable: returns an
// environment variable; "" if it is not set.
absl::StatusOr<CtlOptions> ParseOptions(
    const std::vector<std::string>& args,
    const std::function<std::string(const std::string&)>& variable);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_OPTIONS_H_
