// Control: the messages between a supervisor and the executors it has started.
//
// Purpose: the supervisor hands clients over; an idle executor asks to end.
// Both run the same program, so the messages carry no version.
//
//   supervisor                        executor
//     |-- Setup ----------------------->|  once: secrets that must not appear
//     |                                 |  on a command line
//     |-- HandOver + socket [+ pidfd] ->|  per client; a pidfd if the kernel
//     |                                 |  has them
//     |<------------------------ Idle --|  "I have received `received` clients
//     |                                 |  and have none left"
//
// The supervisor agrees to Idle by closing the socket, if it has handed over no
// other client meanwhile. A closed control socket (the supervisor has agreed,
// or has died) means that no clients will follow: the executor ends when its
// last client has left.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_AGENT_CONTROL_H_
#define MAYPOLE_WORKER_AGENT_CONTROL_H_

#include <sys/types.h>

#include <cstdint>

#include "common/limits.h"
#include "common/wire/session_messages.h"

namespace maypole::worker::control {

inline constexpr size_t kMaxCredentialBytes = 255;
inline constexpr size_t kMaxMessageBytes = 2048;

struct Setup {
  char job[kMaxJobBytes + 1] = {};
  char token[kMaxTokenBytes + 1] = {};
  // The job's ticket, which the executor presents to the coordinator
  // (job_ticket.h).
  char credential[kMaxCredentialBytes + 1] = {};
  // If set, the executor first becomes this user. Only an agent that runs as
  // root sets it.
  bool change_user = false;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct HandOver {
  int32_t pid = 0;  // in the supervisor's PID namespace, or 0
  uint32_t reserved = 0;
  session::Hello hello;
};

struct Idle {
  uint64_t received = 0;
};

}  // namespace maypole::worker::control

#endif  // MAYPOLE_WORKER_AGENT_CONTROL_H_
