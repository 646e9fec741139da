// ListenTcp: opens the TCP listeners of a daemon.
//
//   absl::StatusOr<TcpListener> listener = ListenTcp({"0.0.0.0", 4001}, {});
//   for (Fd& fd : listener->fds) ...accept...
//
// Thread contract: any thread; blocks while it resolves a name.
#ifndef MAYPOLE_COMMON_PROGRAM_LISTENER_H_
#define MAYPOLE_COMMON_PROGRAM_LISTENER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/system/fd.h"

namespace maypole {

struct ListenOptions {
  // A connection fails when its peer's kernel has not acknowledged data for
  // this long; 0: the system's default.
  int user_timeout_ms = 0;
};

struct TcpListener {
  std::vector<Fd> fds;  // one for each address; non-blocking
  int port = 0;         // the port of all of them
};

// Listens at every address of the host that can be bound; 0.0.0.0 and [::] both
// mean all IPv4 and IPv6 addresses of the machine. Port 0 chooses a free port.
// Returns an error ("Address already in use") if no address can be bound.
absl::StatusOr<TcpListener> ListenTcp(const Address& address,
                                      const ListenOptions& options);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_LISTENER_H_
