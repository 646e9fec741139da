// RankRequests: this node's requests for process sets, and joins, which the
// coordinator answers for all requesting ranks together.
//
// Purpose: checks the requests of local ranks and sends them to the
// coordinator, makes and removes process sets as the coordinator answers, and
// passes the answers on to the ranks that wait.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: an error of OnSetRequest() or OnJoinRequest() concerns the rank; one
// of OnSetReply() means that the epoch cannot continue.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_RANK_REQUESTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_RANK_REQUESTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/limits.h"
#include "worker/core/membership.h"
#include "worker/core/operations/member_requests.h"
#include "worker/core/operations/requests.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

class RankRequests {
 public:
  // All must outlive this object.
  RankRequests(const EpochInfo& info, SetTable* sets, EpochOutput* output)
      : info_(info), sets_(*sets), output_(*output) {}

  absl::Status OnSetRequest(const LocalMember& member,
                            const session::SetRequest& request);
  absl::Status OnSetReply(const proto::SetReply& reply);
  absl::Status OnJoinRequest(const LocalMember& member,
                             const session::JoinRequest& request);
  void OnJoinReply(const proto::JoinReply& reply);
  // The rank has left.
  void Forget(int rank, int local_rank);

  bool WaitsForSet(int local_rank) const {
    return set_requests_.Waits(local_rank) ||
           member_requests_.Waits(local_rank);
  }
  bool WaitsInJoin(int local_rank) const { return joins_.Waits(local_rank); }
  // True if a rank of this node waits.
  bool AnyWaits() const;

  // For a coordinator that has replaced another: FillState() adds what was
  // answered, OnRecovered() repeats the unanswered requests.
  void FillState(proto::NodeState* state) const;
  void OnRecovered();

 private:
  void SendJoinState(uint32_t rank, uint32_t number, bool settled);
  void SendSetRequest(const proto::SetRequest& request);

  const EpochInfo& info_;
  SetTable& sets_;
  EpochOutput& output_;
  Requests set_requests_{kMaxWaitingRequests};
  // Unanswered, by number and rank.
  std::map<std::pair<uint32_t, uint32_t>, proto::SetRequest> asked_sets_;
  uint32_t sets_answered_ = 0;  // the last answered number
  MemberRequests member_requests_{kMaxWaitingRequests};
  Requests joins_{1};
  uint32_t joins_answered_ = 0;
  std::set<int> settled_;  // local ranks whose last join has settled
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RANK_REQUESTS_H_
