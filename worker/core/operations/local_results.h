// LocalResults: compares this node's copies of results by their checksums.
//
// Purpose: collects the records of the local members of each operation. When
// all of them have come, the operation is decided. An operation of this node
// alone is counted if the copies are equal, and reported if they differ. An
// operation of several nodes is always reported, and the coordinator compares
// the nodes.
//
//   results.Expect({slot, generation}, operation);
//   results.Add({slot, generation}, local, record);
//   if (auto message = results.Take()) Send(*message);
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariants: at most `limit` operations (kMaxComparedResults) are undecided;
// beyond that the oldest is decided by the records that have come. A rank's
// records of one slot come in order, so a record of a later generation means
// that missing earlier ones are lost.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_LOCAL_RESULTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_LOCAL_RESULTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/limits.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

// An operation of which ranks have, or will have, results.
struct ResultOperation {
  SharedSet set;
  proto::Identity identity;
  // As in proto::Result.
  uint32_t id = 0;
  uint32_t generation = 0;
};

class LocalResults {
 public:
  using Key = std::pair<uint32_t, uint32_t>;  // slot, its generation

  explicit LocalResults(size_t limit = kMaxComparedResults) : limit_(limit) {}

  // Does nothing if the operation is expected already.
  void Expect(const Key& key, ResultOperation operation);
  // Does nothing if the operation is not expected.
  void Add(const Key& key, uint32_t local, const session::ResultRecord& record);
  // Counts records that are lost.
  void CountLost(uint64_t records) {
    message_.set_unchecked(unchecked() + records);
  }
  // Counts the operations over several nodes that have not been reported as
  // unchecked: the coordinator that has numbered them is gone.
  void ForgetNumbered();
  // The rank will send no more records.
  void Forget(uint32_t local);

  // True if Take() would return nothing.
  bool empty() const {
    return message_.equal() == 0 && unchecked() == 0 &&
           message_.results_size() == 0;
  }
  // Copies within the node differ: report it at once.
  bool differs() const { return differs_; }
  size_t bytes() const { return bytes_; }  // of what Take() will return
  std::optional<proto::Results> Take();
  size_t undecided() const { return undecided_.size(); }

 private:
  struct Copies {
    uint32_t checksum = 0;
    uint64_t bytes = 0;
    uint64_t locals = 0;
  };
  struct Undecided {
    ResultOperation operation;
    uint64_t missing = 0;  // local ranks
    std::vector<Copies> copies;
    uint64_t age = 0;
  };
  using Table = std::map<Key, Undecided>;

  uint64_t unchecked() const { return message_.unchecked(); }
  // Returns the entry after this one, which may have been decided.
  Table::iterator Remove(Table::iterator entry, uint32_t local);
  Table::iterator Decide(Table::iterator entry);
  void Report(const Undecided& entry);

  const size_t limit_;
  Table undecided_;
  std::map<uint64_t, Key> by_age_;
  uint64_t last_age_ = 0;
  uint64_t gone_ = 0;  // local ranks that send nothing more
  proto::Results message_;
  size_t bytes_ = 0;
  bool differs_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_LOCAL_RESULTS_H_
