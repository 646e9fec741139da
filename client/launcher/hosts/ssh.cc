#include "client/launcher/hosts/ssh.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_replace.h"
#include "client/launcher/hosts/placement.h"

namespace maypole::launcher {
namespace {

constexpr size_t kMaxQuoted = 300;  // bytes of ssh's output in one message

// Variables that describe this machine or this session.
constexpr std::array<std::string_view, 20> kOfThisMachine = {
    "HOME", "USER", "LOGNAME", "SHELL",   "PWD",      "OLDPWD",    "SHLVL",
    "_",    "MAIL", "DISPLAY", "TMPDIR",  "HOSTNAME", "HOST",      "HOSTTYPE",
    "TERM", "TTY",  "TERMCAP", "COLUMNS", "LINES",    "XAUTHORITY"};

constexpr std::array<std::string_view, 8> kOfThisSession = {
    "SSH_",     "XDG_",  "DBUS_", "TERM_",
    "WAYLAND_", "SUDO_", "TMUX",  "LC_TERMINAL"};

// A phrase in the output of ssh or the shell, and advice for the user.
struct Sign {
  std::string_view words;
  std::string_view advice;
};
constexpr std::array<Sign, 13> kSigns = {{
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key differs from the one in known_hosts: if the change is "
     "expected, remove the old one (ssh-keygen -R HOST)"},
    {"Host key verification failed",
     "ssh does not trust its host key: connect once by hand (ssh HOST) and "
     "check the key"},
    {"UNPROTECTED PRIVATE KEY FILE",
     "other users can read the key file: set its mode to 600"},
    {"Too many authentication failures",
     "name the right key (--ssh-identity-file)"},
    {"Permission denied (",
     "the host accepts none of your keys: install one there (ssh-copy-id "
     "HOST), or name the right one (--ssh-identity-file)"},
    {"Connection refused",
     "no sshd listens there: start it, or name its port (--ssh-port)"},
    {"Could not resolve hostname",
     "its name cannot be resolved here: correct it, or give an address"},
    {"No route to host",
     "the host cannot be reached: is it up, and is the address right?"},
    {"Network is unreachable",
     "the host cannot be reached: is it up, and is the address right?"},
    {"timed out",
     "the host does not answer: is it up, is the address right, is there a "
     "firewall in between?"},
    {"Connection closed by",
     "its sshd refused the connection: see the log of sshd there"},
    {"Connection reset by",
     "its sshd refused the connection: see the log of sshd there"},
    {"Bad configuration option", "correct ssh's configuration file"},
}};

// The text without control characters, so that it cannot move the cursor.
std::string Plain(std::string_view text) {
  std::string out;
  for (unsigned char c : text.substr(0, kMaxQuoted)) {
    if (c >= ' ' && c != 0x7f) out += static_cast<char>(c);
  }
  return out;
}

std::string LastLine(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    std::string plain = Plain(*line);
    if (plain.find_first_not_of(' ') != plain.npos) return plain;
  }
  return "";
}

// The first entry of kSigns that occurs in a line, and that line.
const Sign* FindSign(const std::vector<std::string>& lines, std::string* line) {
  for (const Sign& sign : kSigns) {
    for (const std::string& candidate : lines) {
      if (candidate.find(sign.words) == candidate.npos) continue;
      *line = Plain(candidate);
      return &sign;
    }
  }
  return nullptr;
}

bool IsMissing(const Exit& exit) {
  return !exit.signaled && (exit.value == 126 || exit.value == 127);
}

std::string WhyNotGreeted(const SshEnd& end) {
  std::string line;
  if (IsMissing(end.exit)) {
    line = LastLine(end.lines);
    return "cannot run " + end.settings.program + " there" +
           (line.empty() ? "" : " (" + line + ")") +
           ": install Maypole at the same path, or say where it is "
           "(--remote-bin DIR)";
  }
  const Sign* sign = FindSign(end.lines, &line);
  if (sign != nullptr) {
    // ssh prints this warning in a frame of @; its last line is readable.
    if (line.find('@') == 0) line = LastLine(end.lines);
    if (!line.starts_with("ssh: ")) line.insert(0, "ssh: ");
    return line + "; " + std::string(sign->advice);
  }
  line = LastLine(end.lines);
  if (line.empty()) line = LastLine({end.chatter});
  return "ssh " + Describe(end.exit) +
         (line.empty() ? " and wrote nothing" : ": " + line);
}

}  // namespace

std::string ShellWord(std::string_view text) {
  return "'" + absl::StrReplaceAll(std::string(text), {{"'", "'\\''"}}) + "'";
}

std::vector<std::string> SshArguments(const std::string& host,
                                      const SshSettings& s) {
  int connect = std::min(s.start_timeout_s, kMaxConnectTimeout);
  std::vector<std::string> args = {
      kSshProgram, "-T",
      // ssh must never prompt, and never become the master of a shared
      // connection.
      "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o",
      "ConnectTimeout=" + std::to_string(connect), "-o",
      "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-o",
      "ControlMaster=no", "-o", "ClearAllForwardings=yes"};
  if (s.port > 0) {
    args.insert(args.end(), {"-p", std::to_string(s.port)});
  }
  if (!s.identity_file.empty()) {
    args.insert(args.end(), {"-i", s.identity_file});
  }
  args.insert(args.end(),
              {"--", host, "exec " + ShellWord(s.program) + " " + kNodeFlag});
  return args;
}

bool Travels(std::string_view name) {
  auto is = [&](std::string_view other) { return name == other; };
  return !name.empty() &&
         std::none_of(kOfThisMachine.begin(), kOfThisMachine.end(), is) &&
         !IsOfAJob(name) &&
         std::none_of(
             kOfThisSession.begin(), kOfThisSession.end(),
             [&](std::string_view start) { return name.starts_with(start); });
}

std::string WhySshEnded(const SshEnd& end) {
  if (!end.greeted) return WhyNotGreeted(end);
  std::string line = LastLine(end.lines);
  return "the connection broke: ssh " + Describe(end.exit) +
         (line.empty() ? "" : ": " + line);
}

}  // namespace maypole::launcher
