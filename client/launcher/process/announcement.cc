#include "client/launcher/process/announcement.h"

#include <charconv>

#include "common/limits.h"

namespace maypole::launcher {
namespace {

// Adds the flags that both daemons get.
std::vector<std::string> WithCommonFlags(std::vector<std::string> args,
                                         int start_timeout_s, bool verbose) {
  args.insert(args.end(),
              {"--metrics=127.0.0.1:0",
               "--start_timeout=" + std::to_string(start_timeout_s) + "s",
               // Without --verbose it logs only what an operator must read.
               verbose ? "--log_level=info" : "--log_level=warning",
               "--announce_fd=" + std::to_string(kAnnounceFd)});
  return args;
}

// Shortens the name to what the agent accepts, at a dot if possible. Only
// messages use the name.
std::string HostForMessages(const std::string& host) {
  if (host.size() <= kMaxHostBytes) return host;
  const size_t dot = host.rfind('.', kMaxHostBytes);
  return host.substr(0, dot == host.npos || dot == 0 ? kMaxHostBytes : dot);
}

}  // namespace

Announcement ParseAnnouncement(std::string_view line) {
  line = line.substr(0, line.find('\n'));
  Announcement out;
  while (!line.empty()) {
    // A path may contain spaces. Only the metrics address can follow it, and
    // only if it has not come before.
    size_t end =
        line.starts_with("socket=") ? std::string_view::npos : line.find(' ');
    if (end == std::string_view::npos && out.metrics.empty()) {
      end = line.rfind(" metrics=");
    }
    std::string_view word = line.substr(0, end);
    line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
    size_t equals = word.find('=');
    if (equals == std::string_view::npos) continue;
    std::string_view key = word.substr(0, equals);
    std::string value(word.substr(equals + 1));
    if (key == "listen") out.listen = value;
    if (key == "socket") out.socket = value;
    if (key == "metrics") out.metrics = value;
  }
  return out;
}

std::optional<JoinedRank> ParseJoinedRank(std::string_view line) {
  constexpr std::string_view kRank = "rank=", kJob = " job=";
  if (!line.starts_with(kRank)) return std::nullopt;
  line.remove_prefix(kRank.size());
  JoinedRank joined;
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, joined.rank);
  const std::string_view rest(stop, static_cast<size_t>(end - stop));
  if (error != std::errc() || !rest.starts_with(kJob)) return std::nullopt;
  joined.job = rest.substr(kJob.size());
  return joined;
}

std::vector<std::string> CoordinatorArguments(const CoordinatorSettings& s) {
  std::vector<std::string> args =
      WithCommonFlags({kCoordinatorProgram, "--listen=" + s.listen,
                       "--secret_file=" + s.secret_file},
                      s.start_timeout_s, s.verbose);
  if (s.fusion_threshold >= 0) {
    args.push_back("--fusion_threshold=" + std::to_string(s.fusion_threshold));
  }
  args.insert(args.end(), s.flags.begin(), s.flags.end());
  return args;
}

std::vector<std::string> WorkerArguments(const WorkerSettings& s) {
  std::vector<std::string> args = WithCommonFlags(
      {kWorkerProgram, "--node=" + s.node, "--socket=" + s.socket,
       "--coordinator=" + s.coordinator, "--announce_ranks"},
      s.start_timeout_s, s.verbose);
  if (!s.secret_file.empty()) args.push_back("--secret_file=" + s.secret_file);
  if (!s.host.empty()) args.push_back("--host=" + HostForMessages(s.host));
  if (!s.network.empty()) args.push_back("--network=" + s.network);
  args.insert(args.end(), s.flags.begin(), s.flags.end());
  return args;
}

}  // namespace maypole::launcher
