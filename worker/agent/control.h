// Control: the messages between a supervisor and the executors it has started.
//
// Purpose: the supervisor hands clients over; an executor that has nothing to
// do asks to end. Both are the same program, so there is no version here.
//
//   supervisor                      executor
//     |-- Setup ---------------------->|  once: what must not be on a command
//     |                                |  line
//     |-- HandOver + socket [+ pidfd] ->|  per client
//     |<------------------------ Idle --|  "after `received` clients I have
//     none" |  closes, if it has sent no more; the executor then ends
//
// A closed control socket (the supervisor is gone, or agreed to Idle) means:
// no more clients; the executor ends when it has none left.
#ifndef MAYPOLE_WORKER_AGENT_CONTROL_H_
#define MAYPOLE_WORKER_AGENT_CONTROL_H_

#include <sys/types.h>

#include <cstdint>

#include "common/limits.h"
#include "common/wire/session_messages.h"

namespace maypole::worker::control {

inline constexpr size_t kMaxSecretBytes = 255;
inline constexpr size_t kMaxMessageBytes = 2048;

struct Setup {
  char job[kMaxJobBytes + 1] = {};
  char token[kMaxTokenBytes + 1] = {};
  char secret[kMaxSecretBytes + 1] = {};
  // Whom the executor is to become before it does anything else; only root's
  // agent asks for it.
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
