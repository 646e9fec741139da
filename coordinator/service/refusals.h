// Refusals: logs refused callers, in few lines however many they are.
//
// Purpose: a stranger can be refused thousands of times a second, and its log
// lines must neither fill the disk nor hide other lines. An address gets a line
// at once, then one per kRefusalPause with the count since.
//
//   event=unauthenticated peer=ipv4:10.0.0.7:40112 reason="..."
//   event=unauthenticated peer=ipv4:10.0.0.7:51934 reason="..." more=161438
//
// Thread contract: any thread may call any method.
//
// Invariant: at most kMaxRefusedPeers addresses are kept, and one more entry
// for all others.
#ifndef MAYPOLE_COORDINATOR_SERVICE_REFUSALS_H_
#define MAYPOLE_COORDINATOR_SERVICE_REFUSALS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/core/actions.h"

namespace maypole::coordinator {

inline constexpr std::chrono::seconds kRefusalPause(10);
inline constexpr size_t kMaxRefusedPeers = 32;

class Refusals {
 public:
  // peer: as grpc::ServerContext::peer(). Writes the line, or counts it.
  void Report(const std::string& peer, const std::string& reason);
  // Writes the lines of addresses whose pause is over. Call it regularly.
  void Flush();

  // What the methods above write, for tests.
  using Lines = std::vector<std::string>;
  Lines Report(Time now, const std::string& peer, const std::string& reason);
  Lines Flush(Time now);

 private:
  struct Refused {
    std::string line;  // the latest
    uint64_t more = 0;
    Time said{};
  };
  std::mutex mutex_;
  std::map<std::string, Refused> refused_;  // by address without port
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_REFUSALS_H_
