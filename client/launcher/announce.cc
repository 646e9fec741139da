#include "client/launcher/announce.h"

namespace maypole::launcher {
namespace {

// A quiet daemon still says what an operator must read.
std::string LogLevel(bool verbose) {
  return verbose ? "--log_level=info" : "--log_level=warning";
}

std::string AnnounceFlag() {
  return "--announce_fd=" + std::to_string(kAnnounceFd);
}

}  // namespace

Announcement ParseAnnouncement(std::string_view line) {
  Announcement out;
  while (!line.empty()) {
    size_t end = line.find_first_of(" \n");
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

std::vector<std::string> CoordinatorArguments(const CoordinatorSettings& s) {
  return {kCoordinatorProgram,
          "--listen=127.0.0.1:0",
          "--metrics=127.0.0.1:0",
          "--secret_file=" + s.secret_file,
          "--start_timeout=" + std::to_string(s.start_timeout_s) + "s",
          LogLevel(s.verbose),
          AnnounceFlag()};
}

std::vector<std::string> WorkerArguments(const WorkerSettings& s) {
  std::vector<std::string> args = {
      kWorkerProgram,          "--node=" + s.node,
      "--socket=" + s.socket,  "--coordinator=" + s.coordinator,
      "--metrics=127.0.0.1:0", LogLevel(s.verbose),
      AnnounceFlag()};
  if (!s.secret_file.empty()) args.push_back("--secret_file=" + s.secret_file);
  if (!s.network.empty()) args.push_back("--network=" + s.network);
  return args;
}

}  // namespace maypole::launcher
