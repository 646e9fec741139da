// What maypolerun and its daemons say to each other: their command lines, and
// the one line each writes when it is ready. Pure.
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_ANNOUNCEMENT_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_ANNOUNCEMENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace maypole::launcher {

inline constexpr char kCoordinatorProgram[] = "maypole-coordinator";
inline constexpr char kWorkerProgram[] = "maypole-worker";
inline constexpr int kAnnounceFd = 3;  // in the daemon
inline constexpr size_t kMaxAnnouncementBytes = 4096;

// "listen=127.0.0.1:40001 metrics=127.0.0.1:40002": unknown keys are skipped.
// A worker's socket may stand before or after its metrics and hold spaces.
struct Announcement {
  std::string listen;   // coordinator
  std::string socket;   // worker
  std::string metrics;  // empty: none
};
Announcement ParseAnnouncement(std::string_view line);

struct CoordinatorSettings {
  std::string listen = "127.0.0.1:0";
  std::string secret_file;
  int start_timeout_s = 120;
  int64_t fusion_threshold = -1;  // -1: the coordinator's default
  bool verbose = false;
};
std::vector<std::string> CoordinatorArguments(const CoordinatorSettings& s);

struct WorkerSettings {
  std::string node;
  // This machine's name in messages, of any length; empty: its own.
  std::string host;
  std::string socket;
  std::string coordinator;  // HOST:PORT
  std::string secret_file;  // empty: none
  std::string network;      // empty: the agent's own choice
  int start_timeout_s = 120;
  bool verbose = false;
  std::vector<std::string> flags;  // the user's, after ours
};
std::vector<std::string> WorkerArguments(const WorkerSettings& s);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_ANNOUNCEMENT_H_
