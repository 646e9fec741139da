// Socket helpers and the offer format of AuthenticatedListener.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_HANDSHAKE_IO_H_
#define MAYPOLE_WORKER_BACKEND_HANDSHAKE_IO_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/encryption_mode.h"
#include "common/system/fd.h"
#include "worker/backend/handshake_proof.h"

namespace maypole::worker::handshake {

using Deadline = std::chrono::steady_clock::time_point;

struct Endpoint {
  std::string host;  // numeric
  int port = 0;
};

// What a node sends to another one through the coordinator.
struct Offer {
  uint32_t connections = 0;  // at most 15
  EncryptionMode encryption = EncryptionMode::kOff;
  bool ucx = false;  // it can be reached over UCX, too
  Secret secret = {};
  std::vector<Endpoint> endpoints;
};
std::string WriteOffer(const Offer& offer);
bool ReadOffer(const std::string& bytes, Offer* offer);

// `host` may be a name or numeric.
absl::StatusOr<Fd> Listen(const std::string& host, int backlog);
Endpoint LocalEndpoint(int fd);

// Begins to connect to `host`, which must be numeric. FinishCall() waits for
// the connection and makes the socket blocking.
// `own_host`: where from; empty: the kernel chooses.
absl::StatusOr<Fd> StartCall(const Endpoint& to, const std::string& own_host);
absl::Status FinishCall(int fd, Deadline deadline);

// These need a blocking socket.
absl::Status WriteAll(int fd, const void* data, size_t bytes,
                      Deadline deadline);
absl::Status ReadAll(int fd, void* data, size_t bytes, Deadline deadline);

// Needs a non-blocking socket. Continues to read at *read, up to `bytes`.
enum class Got { kPart, kAll, kEnd };
Got ReadSome(int fd, void* data, size_t bytes, size_t* read);

}  // namespace maypole::worker::handshake

#endif  // MAYPOLE_WORKER_BACKEND_HANDSHAKE_IO_H_
