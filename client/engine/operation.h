// Operation: one submitted collective, from submit to its end.
//
// Thread contract: fields above `done` are written before the operation is
// published to the progress engine (under the client's mutex) or by the thread
// that drives the progress engine; `done` is stored last (release), after which
// everything is constant.
#ifndef MAYPOLE_CLIENT_ENGINE_OPERATION_H_
#define MAYPOLE_CLIENT_ENGINE_OPERATION_H_

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/board/urgent.h"
#include "common/process_set.h"
#include "common/status.h"
#include "common/wire/signature.h"

namespace maypole {

struct FreeMemory {
  void operator()(std::byte* p) const { std::free(p); }
};

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* p) const { munmap(p, bytes); }
};

// What an operation is, if it is none on tensors.
enum class Control : uint8_t { kNone, kJoin, kSetRequest };

struct Operation {
  int64_t handle = 0;
  std::string name;
  Signature signature;
  std::shared_ptr<const ProcessSet> set;
  const std::byte* input = nullptr;
  // Null: allgather, alltoall (see `gathered`); or nobody wants it.
  std::byte* output = nullptr;
  std::vector<int64_t> splits;  // alltoall: one for each rank of the set

  Control control = Control::kNone;
  // Requests for process sets: the members, or the id to be removed.
  std::vector<int> ranks;
  uint32_t removes = 0;
  int64_t answer = 0;  // a join's last rank, a set's id

  // Submitted in the place of a rank that has joined: its input, which changes
  // nothing, is its own; there is no output.
  bool stands_in = false;
  std::unique_ptr<std::byte, Unmap> neutral;

  // The caller waits for it right away: nobody else need attend.
  bool awaited = false;
  // Somebody waits for it or polls it; sticky, whether announced or not.
  mutable std::atomic<bool> wanted{false};
  // Somebody has slept in a wait for it; for the metrics.
  mutable std::atomic<bool> slept_for{false};

  // Where in this rank's arena the tensor lies, + 1; 0: elsewhere.
  uint64_t arena = 0;
  bool ran_in_arena = false;

  uint32_t slot = 0;
  uint32_t generation = 0;

  // Allgather's, alltoall's result; malloc'ed when the ranks' sizes are known.
  std::unique_ptr<std::byte, FreeMemory> gathered;
  uint64_t gathered_bytes = 0;
  int64_t gathered_rows = 0;
  std::vector<int64_t> received;  // alltoall: rows from each rank of the set

  Status status;
  std::atomic<bool> done{false};

  bool in_place() const { return output != nullptr && output == input; }
  // What the input is multiplied by before it is reduced.
  double prescale() const { return stands_in ? 1.0 : signature.prescale; }
  Urgency urgency() const {
    if (awaited) return Urgency::kImmediate;
    return wanted.load() ? Urgency::kAwaited : Urgency::kNone;
  }
  // "allreduce 'loss'"
  std::string Title() const {
    if (control != Control::kNone) return name;  // "join", ...
    std::string title = std::string(Name(signature.kind)) + " '" + name + "'";
    if (signature.process_set != 0) {
      title += " of process set " + std::to_string(signature.process_set);
    }
    return title;
  }
  // The error, with the operation's title before it if it is not named yet.
  Status Explain(const Status& error) const {
    // With its kind: others may have the same name.
    const std::string named =
        control != Control::kNone
            ? "'" + name + "'"
            : std::string(maypole::Name(signature.kind)) + " '" + name + "'";
    if (error.message().find(named) != std::string::npos) return error;
    return Status(error.code(), Title() + ": " + error.message());
  }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_OPERATION_H_
