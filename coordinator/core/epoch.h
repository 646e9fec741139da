// Epoch: one life of a job with fixed ranks, from EpochStart to its end.
//
// Purpose: exchanges the nodes' endpoints, turns presence into runs in the one
// order of the job, and fails what cannot run.
//
// Who is told what: a mismatch goes to all nodes (all have submitted it); an
// operation that a rank's leaving makes impossible goes to the nodes that have
// reported it, the others learn by RankLeft. So every reported presence gets
// exactly one answer: its place in a run, OperationFailed, or the epoch's end.
// An operation stays in the table, and can fail, until its run is issued.
//
// Thread contract: not synchronized; pure.
//
// Invariants: members are ordered by smallest rank and do not change; runs are
// numbered from 1 without gaps and go to all connected members alike; after the
// first RankLeft nothing is issued any more (every process set has all ranks).
#ifndef MAYPOLE_COORDINATOR_CORE_EPOCH_H_
#define MAYPOLE_COORDINATOR_CORE_EPOCH_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/buckets.h"
#include "coordinator/core/gathering.h"
#include "coordinator/core/presence.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Epoch {
 public:
  Epoch(uint64_t number, uint32_t size, std::vector<Member> members,
        const Config& config);
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  // EpochStart to all.
  void Start(JobOutput* out) const;

  // Messages of member `node` (an index into members()). An error means that
  // the executor breaks the protocol.
  absl::Status OnEndpoint(size_t node, const proto::Endpoint& message,
                          JobOutput* out);
  absl::Status OnPresence(Time now, size_t node, const proto::Presence& message,
                          JobOutput* out);
  // What has waited for its bucket too long runs.
  void OnTime(Time now, JobOutput* out);
  std::optional<Time> Deadline() const { return buckets_.Deadline(); }
  // The rank has left cleanly.
  void OnRankLeft(size_t node, uint32_t rank, JobOutput* out);

  // EpochEnd(ABORTED) to all who are connected.
  void End(const std::string& message, JobOutput* out) const;

  // The member's session is gone for ever: it is sent nothing any more.
  void Forget(size_t node) { connected_[node] = false; }

  std::optional<size_t> IndexOf(SessionId session) const;
  std::vector<uint32_t> LiveRanks(size_t node) const;
  bool HasLeft(uint32_t rank) const { return left_.contains(rank); }
  bool AllLeft() const { return left_.size() == size_; }

  uint64_t number() const { return number_; }
  uint32_t size() const { return size_; }
  const std::vector<Member>& members() const { return members_; }
  size_t pending() const { return table_.pending(); }
  void FillStatus(proto::JobStatus* status) const;

 private:
  absl::Status Report(Time now, size_t node,
                      const proto::PresentOperation& message, Release* release,
                      JobOutput* out);
  absl::Status OnUrgent(size_t node, const proto::UrgentOperation& message,
                        Release* release);
  void Issue(Time now, const Release& release, JobOutput* out);
  // Numbers the runs of what is fused by itself.
  void AddRuns(Time now, const std::vector<ReadyOperation>& ready,
               std::vector<proto::Run>* runs, JobOutput* out);
  proto::Run MakeRun(const std::vector<ReadyOperation>& ready,
                     const std::vector<size_t>& run);
  void FailOn(size_t node, const Operation& op, uint32_t generation,
              const absl::Status& status, JobOutput* out) const;
  // Fails it on all nodes that have reported it.
  void Fail(Operation* op, const absl::Status& status, JobOutput* out);
  absl::Status LeftStatus(const Operation& op) const;
  void ToAll(const proto::CoordinatorMessage& message, JobOutput* out) const;
  void ToNode(size_t node, proto::CoordinatorMessage message,
              JobOutput* out) const;

  const uint64_t number_;
  const uint32_t size_;
  const std::vector<Member> members_;
  const uint64_t fusion_threshold_;
  std::vector<bool> connected_;                      // by member
  std::vector<std::vector<std::string>> endpoints_;  // by member; empty: none
  size_t endpoints_given_ = 0;
  OperationTable table_;
  Buckets buckets_;  // of operations that are complete in table_
  std::set<uint32_t> left_;
  std::string first_left_;  // "rank 2 (node n1)"
  uint64_t runs_ = 0;
  uint64_t operations_ = 0;  // issued
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_EPOCH_H_
