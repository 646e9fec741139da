// ResultReports: reports the checksums of this node's results to the
// coordinator, if the job compares them.
//
// Purpose: checks the records of ranks, gives them to LocalResults, and sends
// what that decides: at once if copies within the node differ, otherwise every
// kResultsPauseMs, or earlier if there is much to send.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_RESULT_REPORTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_RESULT_REPORTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_output.h"
#include "worker/core/membership.h"
#include "worker/core/operations/local_results.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class ResultReports {
 public:
  // `wanted`: the job compares results. `slots` and `output` must outlive this
  // object.
  ResultReports(bool wanted, SlotTable* slots, EpochOutput* output)
      : wanted_(wanted), slots_(*slots), output_(*output) {}

  absl::Status OnRecords(const LocalMember& member,
                         const session::ResultRecords& message);
  // The rank has left cleanly, and has sent all its records.
  void OnNoMore(uint32_t local);
  // Expects records of each operation of the run, if the job compares results.
  absl::Status Expect(const proto::Run& run);
  void OnTime(int64_t now_ms);
  // True if something waits to be sent: call OnTime() after kResultsPauseMs.
  bool waits() const { return !results_.empty(); }
  // The coordinator that has numbered the operations is gone.
  void OnRecovered() { results_.ForgetNumbered(); }

 private:
  // Sends what is decided: now if `all`, otherwise if it is due.
  void Send(bool all);

  const bool wanted_;
  SlotTable& slots_;
  EpochOutput& output_;
  LocalResults results_;
  int64_t now_ms_ = 0;
  int64_t sent_ms_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RESULT_REPORTS_H_
