// How maypolerun starts its daemons: their command lines; the announcement,
// which a daemon writes when it is ready; and the lines that a worker may write
// after it. Pure.
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_ANNOUNCEMENT_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_ANNOUNCEMENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maypole::launcher {

inline constexpr char kCoordinatorProgram[] = "maypole-coordinator";
inline constexpr char kCoordinatorName[] = "coordinator";  // as a daemon
inline constexpr char kWorkerProgram[] = "maypole-worker";
inline constexpr int kAnnounceFd = 3;  // the daemon's descriptor for the line
inline constexpr size_t kMaxAnnouncementBytes = 4096;

// For example "listen=127.0.0.1:40001 metrics=127.0.0.1:40002". Unknown keys
// are ignored. A worker's socket may come before or after its metrics address,
// and may contain spaces.
struct Announcement {
  std::string listen;   // of a coordinator
  std::string socket;   // of a worker
  std::string metrics;  // empty: none
};
Announcement ParseAnnouncement(std::string_view line);

// A later line of a worker, "rank=3 job=4f2a": a rank has called init().
struct JoinedRank {
  int rank = 0;
  std::string job;
};
std::optional<JoinedRank> ParseJoinedRank(std::string_view line);

struct CoordinatorSettings {
  std::string listen = "127.0.0.1:0";
  std::string secret_file;
  int start_timeout_s = 120;
  int64_t fusion_threshold = -1;  // -1: the coordinator's default
  bool verbose = false;
  std::vector<std::string> flags;  // of the user, appended to ours
};
std::vector<std::string> CoordinatorArguments(const CoordinatorSettings& s);

struct WorkerSettings {
  std::string node;
  // This machine's name in messages, of any length; empty: the worker uses the
  // host name.
  std::string host;
  std::string socket;
  std::string coordinator;  // HOST:PORT
  std::string secret_file;  // empty: none
  std::string network;      // empty: the worker chooses
  int start_timeout_s = 120;
  bool verbose = false;
  std::vector<std::string> flags;  // of the user, appended to ours
};
std::vector<std::string> WorkerArguments(const WorkerSettings& s);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_ANNOUNCEMENT_H_
