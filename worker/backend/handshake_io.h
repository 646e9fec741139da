// Sockets and bytes of the gate (authenticated_listener.h): what has nothing to
// decide.
//
// Thread contract: functions.
#ifndef MAYPOLE_WORKER_BACKEND_HANDSHAKE_IO_H_
#define MAYPOLE_WORKER_BACKEND_HANDSHAKE_IO_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/handshake_proof.h"

namespace maypole::worker::handshake {

using Deadline = std::chrono::steady_clock::time_point;

// What a node tells another, by the coordinator.
struct Offer {
  uint32_t connections = 0;
  Secret secret = {};
  std::string host;  // numeric
  int port = 0;
};
std::string WriteOffer(const Offer& offer);
bool ReadOffer(const std::string& bytes, Offer* offer);

struct Endpoint {
  std::string host;
  int port = 0;
};
absl::StatusOr<Fd> Listen(const std::string& host, int backlog);  // or a name
Endpoint LocalEndpoint(int fd);

// `host`: numeric. Begins to connect; FinishCall() waits for it, and makes
// the socket block.
absl::StatusOr<Fd> StartCall(const std::string& host, int port);
absl::Status FinishCall(int fd, Deadline deadline);

// Of a blocking socket.
absl::Status WriteAll(int fd, const void* data, size_t bytes,
                      Deadline deadline);
absl::Status ReadAll(int fd, void* data, size_t bytes, Deadline deadline);

// Of one that does not block: reads on from *read, never beyond `bytes`.
enum class Got { kPart, kAll, kEnd };
Got ReadSome(int fd, void* data, size_t bytes, size_t* read);

}  // namespace maypole::worker::handshake

#endif  // MAYPOLE_WORKER_BACKEND_HANDSHAKE_IO_H_
