// StateStore: the descriptors of states that the executor keeps for its job.
//
// Purpose: a rank's last commit is in memory that outlives the rank, because
// the executor holds its descriptor (docs/elastic.md). The store never maps or
// reads that memory, so a rank cannot harm the executor by what it writes
// there.
//
//   StateStore store(limit_bytes);
//   Status s = store.Keep("state", std::move(descriptor));
//   const Fd* kept = store.Find("state");   // null: there is none
//
// Invariants: at most kMaxKeptStates names; the sizes of all states add up to
// at most the limit. A state cannot change its size (it is sealed). A refused
// Keep() changes nothing.
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_STATE_STORE_H_
#define MAYPOLE_WORKER_EXECUTOR_STATE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole::worker {

class StateStore {
 public:
  explicit StateStore(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Replaces the state of this name. kResourceExhausted: a limit would be
  // exceeded; kInvalidArgument: no name, or not a sealed memfd.
  Status Keep(const std::string& name, Fd state);
  const Fd* Find(const std::string& name) const;
  void Drop(const std::string& name);

  bool empty() const { return states_.empty(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct State {
    Fd fd;
    uint64_t bytes = 0;
  };

  const uint64_t limit_bytes_;
  uint64_t bytes_ = 0;
  std::map<std::string, State> states_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_STATE_STORE_H_
