// SmallRuns: runs with too few bytes to be worth a data stage.
//
// Purpose: the inputs that ranks have copied for a small run travel from
// executor to executor: in the frozen tier with a node's ready message; in the
// negotiated tier when a node reports an operation, before the coordinator has
// ordered it. The coordinator knows whether all nodes of a run have sent their
// inputs. If they have, each node completes the run as soon as the inputs are
// there. If not, the run is executed like any other, and the inputs are dropped
// (docs/eager.md).
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: an error means that the epoch cannot continue.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SMALL_RUNS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SMALL_RUNS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/epoch_output.h"
#include "worker/core/operations/runs.h"
#include "worker/core/operations/schedule.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class SmallRuns {
 public:
  // `node` is this node's index; `sends_inputs` as in EpochStart. `slots`,
  // `runs` and `output` must outlive this object.
  SmallRuns(uint32_t node, bool sends_inputs, SlotTable* slots, RunQueue* runs,
            EpochOutput* output)
      : node_(node),
        sends_inputs_(sends_inputs),
        slots_(*slots),
        runs_(*runs),
        output_(*output) {}

  // Whether a run of these operations over `nodes` nodes is small.
  static bool AreSmall(const std::vector<const Signature*>& operations,
                       size_t nodes);

  SmallOperation OperationOf(uint32_t slot) const;
  // Sets whether ranks should copy their inputs for this slot.
  void WantCopiesOf(uint32_t slot, bool wanted);
  // Completes a run whose inputs are all here.
  absl::Status Finish(Schedule::Execution run);

  // --- The negotiated tier ---------------------------------------------------
  // Returns the inputs to send for an operation that is reported now; none
  // unless its run will probably be small.
  std::optional<SendToPeers> InputsOf(uint32_t slot,
                                      const SlotEntry& entry) const;
  absl::Status OnInputs(uint32_t node, const proto::PeerMessage& message);
  // The coordinator has ordered a run whose inputs all nodes have sent.
  absl::Status Begin(const proto::Run& run);
  absl::Status FinishReady();
  // After a run: learns whether the next run of its operations may be small.
  void LearnFrom(const proto::Run& run);
  // A run waits for inputs of other nodes.
  bool waits() const { return !waiting_.empty(); }
  void set_sends_inputs(bool sends) { sends_inputs_ = sends; }

 private:
  // A run that is ordered, but lacks inputs of other nodes.
  struct Waiting {
    struct Part {
      uint32_t node = 0;
      proto::InputsOf key;
      std::optional<std::string> bytes;
    };
    // Returns false if the inputs are not for this run.
    bool Take(uint32_t node, const proto::InputsOf& key,
              const std::string& bytes);

    std::vector<uint32_t> slots;
    std::vector<uint32_t> nodes;
    std::vector<Part> parts;  // by other node, and then by slot
    size_t missing = 0;       // parts without bytes
  };

  const uint32_t node_;
  bool sends_inputs_ = false;
  SlotTable& slots_;
  RunQueue& runs_;
  EpochOutput& output_;
  std::vector<Waiting> waiting_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SMALL_RUNS_H_
