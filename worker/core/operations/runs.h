// RunQueue: turns the coordinator's Execute messages into runs on the board.
//
// Purpose: lays out each run in its byte space (layout.h), gives it a free plan
// record with a new generation of that record, and queues runs in order while
// no record is free. An alltoall over several nodes also needs one of the
// kMatrices matrices for its splits.
//
// Layout: the operations follow one another, each at a multiple of 64 bytes.
// The layout is the same on every node, because all have the same signatures.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_RUNS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_RUNS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/gpu/runner/gpu_run.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_output.h"
#include "worker/core/operations/run_spec.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class RunQueue {
 public:
  // `node` is this node's index, `records` the number of the board's plan
  // records.
  RunQueue(uint32_t job_size, uint32_t node, uint32_t records);

  // Checks and queues the next run. After an error, coordinator and executor
  // are out of step, and the epoch cannot continue.
  absl::Status Add(const proto::Run& run, SlotTable* slots);
  // Queues a run of a schedule, which has no run number.
  absl::Status AddScheduled(const proto::Run& run, SlotTable* slots);
  // Checks the next run, which needs no record, because executors have sent
  // each other its inputs. Returns its slots.
  absl::StatusOr<std::vector<uint32_t>> AddSmall(const proto::Run& run,
                                                 SlotTable* slots);
  // Checks the next run, which GPUs execute. It needs a record only after it
  // has ended, and only if it is an allgather or alltoall.
  absl::StatusOr<GpuRun> AddOnGpus(const proto::Run& run,
                                   const GpuCommunicator& communicator,
                                   SlotTable* slots);
  // GPUs have executed the allgather or alltoall of this slot: queues a run
  // that gives the ranks its sizes.
  absl::Status EndOnGpus(uint32_t slot);
  // As Add(), but the ranks execute it, with the run's communicator.
  absl::Status AddOnRanks(const proto::Run& run, SlotTable* slots);
  // Queues a run of one operation of this node alone, which its ranks execute.
  // They have written their sizes to its slot.
  absl::Status AddOnRanks(uint32_t slot, const SlotEntry& entry,
                          uint32_t communicator);
  // Number of the last run that the coordinator has ordered.
  uint64_t last_run() const { return last_run_; }
  // A run waits for a record.
  bool waits() const { return !waiting_.empty(); }
  // All local ranks have left the run that used the record.
  void Free(uint32_t record);
  // Returns the next run, with record and generation, if one is queued and a
  // record is free (and, for an alltoall, a matrix).
  std::optional<RunSpec> Take();
  // Issues all that Take() returns.
  void Issue(EpochOutput* output) {
    while (auto run = Take()) output->Add(IssueRun{*std::move(run)});
  }

 private:
  absl::Status CheckNumber(const proto::Run& run) const;
  absl::Status Queue(RunSpec spec);
  absl::StatusOr<RunSpec> LayOut(const proto::Run& run, SlotTable* slots) const;
  absl::Status Place(const proto::Run& run, const SlotEntry& entry,
                     uint32_t slot, RunSpec* spec) const;

  const uint32_t job_size_;
  const uint32_t node_;
  uint64_t last_run_ = 0;
  std::deque<RunSpec> waiting_;
  // Allgathers and alltoalls that GPUs execute, by slot.
  std::map<uint32_t, RunSpec> on_gpus_;
  std::deque<uint32_t> free_;
  std::vector<uint32_t> generations_;  // by record
  std::deque<uint32_t> free_matrices_;
  std::map<uint32_t, uint32_t> matrix_of_;  // by record
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RUNS_H_
