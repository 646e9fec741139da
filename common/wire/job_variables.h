// Job variables: the environment variables that a job's executor takes over
// from a training process.
//
// Purpose: NCCL and the CUDA driver read their settings from the environment.
// When an executor calls them, a user's `mpirun -x NCCL_SOCKET_IFNAME=eth0`
// must still have its meaning. So a rank's variables NCCL_* and CUDA_* follow
// its Hello, in the same message; the agent starts the executor with those of
// the job's first rank. CUDA_VISIBLE_DEVICES is not among them: it differs
// between ranks, and an executor must see the GPUs of all. Also among them are
// MAYPOLE_NCCL_LIBRARY, the file of the NCCL that the rank has loaded (torch's
// wheel brings one), and MAYPOLE_NETWORK_ENCRYPTION (common/encryption_mode.h).
//
//   [ Hello ] NAME=value \0 NAME=value \0 ...     header.size: of all of it
//
//   std::string message;
//   Status s = session::HelloMessage(hello, environ, &message);   // a rank
//   std::vector<std::string> variables;                           // the agent
//   Status s = session::ParseHello(data, bytes, agent, &hello, &variables);
//
// Thread contract: pure functions. (Like getenv(), HelloMessage(environ) needs
// that no thread changes the environment.)
//
// Invariant: whatever was sent, ParseHello() returns no variables but these,
// and no value with control characters.
#ifndef MAYPOLE_COMMON_WIRE_JOB_VARIABLES_H_
#define MAYPOLE_COMMON_WIRE_JOB_VARIABLES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/limits.h"
#include "common/status.h"
#include "common/wire/session_messages.h"

namespace maypole::session {

// These make calls block (or make all communicators blocking): an executor that
// drives several GPUs by one thread would block forever. A debugging switch of
// a training process, such as CUDA_LAUNCH_BLOCKING, stays there.
inline constexpr const char* kBlockingVariables[] = {
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "NCCL_COMM_BLOCKING", "NCCL_COMM_ID"};

inline constexpr char kNcclLibraryVariable[] = "MAYPOLE_NCCL_LIBRARY";

inline constexpr size_t kMaxHelloBytes = sizeof(Hello) + kMaxVariablesBytes;

// Whether a variable of this name goes from a rank to the executor.
bool IsJobVariable(std::string_view name);

// environment: pointers to NAME=value, then null, like environ. nccl_library:
// the value of kNcclLibraryVariable, if the environment has none; "": unknown.
// Values with control characters are left out. Fails if the job variables take
// more than kMaxVariablesBytes.
Status HelloMessage(const Hello& hello, const char* const* environment,
                    std::string_view nccl_library, std::string* out);

// Checks and parses a client's first message. `agent`: the receiver, and the
// versions that it speaks.
Status ParseHello(const void* data, size_t bytes, const Speaker& agent,
                  Hello* hello, std::vector<std::string>* variables);

}  // namespace maypole::session

#endif  // MAYPOLE_COMMON_WIRE_JOB_VARIABLES_H_
