// TCP listeners of daemons.
//
//   absl::StatusOr<TcpListener> listener = ListenTcp({"0.0.0.0", 4001}, {});
//   for (Fd& fd : listener->fds) ...accept...
//
// Thread contract: a function; looks names up.
#ifndef MAYPOLE_COMMON_PROGRAM_LISTENER_H_
#define MAYPOLE_COMMON_PROGRAM_LISTENER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/system/fd.h"

namespace maypole {

struct ListenOptions {
  // A connection fails when its peer's kernel has not acknowledged data for so
  // long; 0: the system's default.
  int user_timeout_ms = 0;
};

struct TcpListener {
  std::vector<Fd> fds;  // one for each address; they do not block
  int port = 0;         // of all of them
};

// Listens at all addresses of the host that work; 0.0.0.0 and [::] are all of
// the machine, of both families. Port 0 takes a free one. An error, as "Address
// already in use", if none works.
absl::StatusOr<TcpListener> ListenTcp(const Address& address,
                                      const ListenOptions& options);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_LISTENER_H_
