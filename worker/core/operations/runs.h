// RunQueue: from the coordinator's Execute to runs on the board.
//
// Purpose: lays every run out in its byte space (layout.h), gives it a free
// Plan record and a generation of that record, and keeps runs in order while no
// record is free. An alltoall also needs one of kMatrices places for its
// splits.
//
// Layout: operations one after the other, each at a multiple of 64 bytes; the
// same on every node, because all have agreed on the signatures.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_RUNS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_RUNS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "worker/core/operations/run_spec.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class RunQueue {
 public:
  // node: this one's index. records: Plan records of the board.
  RunQueue(uint32_t job_size, uint32_t node, uint32_t records);

  // Checks and queues the next run. An error means that coordinator and
  // executor have lost each other: the epoch cannot go on.
  absl::Status Add(const proto::Run& run, SlotTable* slots);
  // All local ranks have left the run that used the record.
  void Free(uint32_t record);
  // The next run in order, with record and generation; if one waits and a
  // record is free (and a matrix, if it is an alltoall).
  std::optional<RunSpec> Take();

 private:
  absl::StatusOr<RunSpec> LayOut(const proto::Run& run, SlotTable* slots) const;
  absl::Status Place(const proto::Run& run, const SlotEntry& entry,
                     uint32_t slot, RunSpec* spec) const;

  const uint32_t job_size_;
  const uint32_t node_;
  uint64_t last_run_ = 0;
  std::deque<RunSpec> waiting_;
  std::deque<uint32_t> free_;
  std::vector<uint32_t> generations_;  // by record
  std::deque<uint32_t> free_matrices_;
  std::map<uint32_t, uint32_t> matrix_of_;  // by record
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RUNS_H_
