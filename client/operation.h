// Operation: one submitted collective, from submit to its end.
//
// Thread contract: fields above `done` are written before the operation is
// published to the mover (under the client's mutex) or by the thread that
// drives the mover; `done` is stored last (release), after which everything is
// constant.
#ifndef MAYPOLE_CLIENT_OPERATION_H_
#define MAYPOLE_CLIENT_OPERATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "common/signature.h"
#include "common/status.h"
#include "common/urgent.h"

namespace maypole {

struct FreeMemory {
  void operator()(std::byte* p) const { std::free(p); }
};

struct Operation {
  int64_t handle = 0;
  std::string name;
  Signature signature;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // null: allgather, see `gathered`

  // The caller waits for it right away: nobody else need attend.
  bool awaited = false;
  // Somebody waits for it or polls it; sticky, whether announced or not.
  mutable std::atomic<bool> wanted{false};

  // Where in this rank's arena the tensor lies, + 1; 0: elsewhere.
  uint64_t arena = 0;
  bool ran_in_arena = false;

  uint32_t slot = 0;
  uint32_t generation = 0;

  // Allgather's result; malloc'ed when the ranks' sizes are known.
  std::unique_ptr<std::byte, FreeMemory> gathered;
  uint64_t gathered_bytes = 0;
  int64_t gathered_rows = 0;

  Status status;
  std::atomic<bool> done{false};

  bool in_place() const { return output != nullptr && output == input; }
  Urgency urgency() const {
    if (awaited) return Urgency::kImmediate;
    return wanted.load() ? Urgency::kAwaited : Urgency::kNone;
  }
  // "allreduce 'loss'"
  std::string Title() const {
    return std::string(Name(signature.kind)) + " '" + name + "'";
  }
  // The error, with the operation's title before it if it is not named yet.
  Status Explain(const Status& error) const {
    if (error.message().find("'" + name + "'") != std::string::npos) {
      return error;
    }
    return Status(error.code(), Title() + ": " + error.message());
  }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_OPERATION_H_
