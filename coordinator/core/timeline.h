// TimelineRelay: the coordinator's part in a job's timeline.
//
// Purpose: of the requests to start a timeline the first one counts, so that
// there is one file; TimelineRelay tells all nodes. It passes records on to the
// node that writes the file, and answers questions for the time, from which
// executors learn how their clocks differ.
//
//   off --start--> on --stop (by a rank, or the file fails)--> closing
//   closing --the file is complete--> off
//
// A start while a timeline is on or closing is answered with that timeline. An
// operator starts and stops it in the same way (Order()).
//
// Thread contract: not synchronized; pure.
//
// Invariants: messages on their way are bounded: a node sends the next records
// when its last ones were taken. The epoch's counts of messages (Blocked)
// leave these out.
#ifndef MAYPOLE_COORDINATOR_CORE_TIMELINE_H_
#define MAYPOLE_COORDINATOR_CORE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/actions.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class TimelineRelay {
 public:
  // Of the records in one message.
  static constexpr size_t kMaxRecordBytes = 512 << 10;

  // Messages for nodes, by index.
  using Messages = std::vector<std::pair<size_t, proto::CoordinatorMessage>>;

  TimelineRelay(uint64_t epoch, size_t nodes) : epoch_(epoch), nodes_(nodes) {}

  static bool Handles(const proto::ExecutorMessage& message);
  // Takes over the timeline that another coordinator's nodes have.
  void Restore(const std::vector<const proto::NodeState*>& states);
  void TellAll(Messages* out) const;
  // An error means that the executor violates the protocol.
  absl::Status Handle(Time now, size_t node,
                      const proto::ExecutorMessage& message, Messages* out);

  // --- The operator ----------------------------------------------------------
  // FAILED_PRECONDITION: one is on already, or the last one is being closed.
  // The executor of `node` makes the file `name` in the directory of `rank`.
  absl::Status Start(size_t node, uint32_t rank, absl::string_view name,
                     Messages* out);
  // FAILED_PRECONDITION: none is on.
  absl::Status Stop(Messages* out);
  // The epoch's last one. Number 0: there was none.
  const proto::Timeline& last() const { return timeline_; }
  // Why its file is missing or not complete; empty if it is.
  const std::string& error() const { return error_; }

 private:
  void OnRequest(size_t node, const proto::TimelineRequest& request,
                 Messages* out);
  // The next one, which is on.
  void Begin(size_t node, uint32_t rank, absl::string_view path);
  void Close();
  absl::Status OnRecords(size_t node, const proto::TimelineRecords& records,
                         Messages* out);
  absl::Status OnTaken(const proto::TimelineTaken& taken, Messages* out) const;
  void OnClosed(size_t node, const proto::TimelineClosed& closed,
                Messages* out);
  void ToAll(const proto::CoordinatorMessage& message, Messages* out) const;
  proto::CoordinatorMessage State() const;

  const uint64_t epoch_;
  const size_t nodes_;
  proto::Timeline timeline_;  // the last one
  std::string error_;         // of its file
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_TIMELINE_H_
