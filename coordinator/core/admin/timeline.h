// TimelineRelay: the coordinator's part in a job's timeline.
//
// Purpose: the first request to start a timeline counts, so that there is one
// file; TimelineRelay informs all nodes. It forwards records to the node that
// writes the file, and answers time requests, from which executors learn how
// their clocks differ.
//
//   off --start--> on --stop (by a rank, or the file fails)--> closing
//   closing --the file is complete--> off
//
// A start while a timeline is on or closing is answered with that timeline. An
// operator starts and stops it in the same way (Record()).
//
// Thread contract: not synchronized; pure.
//
// Invariants: messages in flight are bounded: a node sends its next records
// after its last ones were taken. They are not counted (EpochNodes::sent()).
#ifndef MAYPOLE_COORDINATOR_CORE_ADMIN_TIMELINE_H_
#define MAYPOLE_COORDINATOR_CORE_ADMIN_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class TimelineRelay {
 public:
  // The bytes of the records in one message.
  static constexpr size_t kMaxRecordBytes = 512 << 10;

  // Both must outlive this object.
  TimelineRelay(EpochNodes* nodes, const Departures* departures)
      : nodes_(*nodes), departures_(*departures) {}

  // The nodes' messages. An error means that the executor violates the
  // protocol.
  absl::Status OnRequest(size_t node, const proto::TimelineRequest& request);
  absl::Status OnRecords(size_t node, const proto::TimelineRecords& records);
  absl::Status OnTaken(const proto::TimelineTaken& taken);
  absl::Status OnClosed(size_t node, const proto::TimelineClosed& closed);
  absl::Status OnClockQuery(Time now, size_t node,
                            const proto::ClockQuery& query);
  // Takes over a predecessor's timeline from the nodes' states, which
  // CheckNodeState() has checked.
  void Restore(const std::vector<const proto::NodeState*>& states);
  void SendState();  // to all nodes, if there was a timeline

  // The operator starts the timeline (the first rank's node then writes it) or
  // stops it. FAILED_PRECONDITION: it is already on (or not on), the last one
  // is being closed, all ranks have left, or executors are too old.
  absl::Status Record(bool stop);
  // If there was a timeline.
  void FillStatus(proto::JobStatus* status) const;

 private:
  absl::Status Start();
  // Begins the next timeline.
  void Begin(size_t node, uint32_t rank, absl::string_view path);
  void Close();
  proto::CoordinatorMessage State() const;
  bool open() const { return timeline_.on() || timeline_.closing(); }

  EpochNodes& nodes_;
  const Departures& departures_;
  proto::Timeline timeline_;  // the last one; number 0: there was none
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ADMIN_TIMELINE_H_
