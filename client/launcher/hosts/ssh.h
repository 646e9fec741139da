// How maypolerun reaches another host: ssh's command line, what travels with
// the job, and what an ssh that ended means. Pure.
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_HOSTS_SSH_H_
#define MAYPOLE_CLIENT_LAUNCHER_HOSTS_SSH_H_

#include <string>
#include <string_view>
#include <vector>

#include "client/launcher/job/supervision.h"

namespace maypole::launcher {

inline constexpr char kSshProgram[] = "ssh";
inline constexpr char kNodeFlag[] = "--node-of-job";
inline constexpr int kMaxConnectTimeout = 20;  // seconds, of ssh

struct SshSettings {
  int port = 0;               // 0: ssh's own choice
  std::string identity_file;  // empty: ssh's own choice
  int start_timeout_s = 120;
  std::string program;  // maypolerun's path on the other host
};

// Nothing of the job stands on it: everybody can read command lines.
std::vector<std::string> SshArguments(const std::string& host,
                                      const SshSettings& settings);

// One word of a shell's command.
std::string ShellWord(std::string_view text);

// Whether the ranks on other hosts get this variable of ours: all but what
// tells of this machine or of our session.
bool Travels(std::string_view name);

// What is known of an ssh that ended, or of what it reached.
struct SshEnd {
  std::string host;
  Exit exit;
  bool greeted = false;            // the other maypolerun has answered
  std::vector<std::string> lines;  // ssh's stderr
  std::string chatter;             // what came instead of an answer
  SshSettings settings;
};

// One line: what happened, and what to do where that is known.
std::string WhySshEnded(const SshEnd& end);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_SSH_H_
