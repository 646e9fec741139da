// How maypolerun reaches another host: the command line of ssh, the environment
// variables that are sent, and an explanation when ssh ends. Pure.
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
  int port = 0;               // 0: ssh's default
  std::string identity_file;  // empty: ssh's default
  int start_timeout_s = 120;
  std::string program;  // maypolerun's path on the other host
};

// The result contains nothing secret: all users can read command lines.
std::vector<std::string> SshArguments(const std::string& host,
                                      const SshSettings& settings);

// Quotes the text as one word of a shell command.
std::string ShellWord(std::string_view text);

// Whether ranks on other hosts get this environment variable: all except those
// that describe this machine, this session or another job.
bool Travels(std::string_view name);

// What is known about an ssh process that has ended.
struct SshEnd {
  std::string host;
  Exit exit;
  bool greeted = false;            // the maypolerun there has answered
  std::vector<std::string> lines;  // the last lines of ssh's stderr
  std::string chatter;             // output that came before any answer
  SshSettings settings;
};

// One line that says what happened and, if known, what to do about it.
std::string WhySshEnded(const SshEnd& end);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_SSH_H_
