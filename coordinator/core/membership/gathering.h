// Gathering: the ranks that wait for a job's next epoch.
//
// Purpose: collects what nodes say about their ranks (RanksReady) until ranks
// 0..size-1 are there exactly once, and finds the words for what is wrong or
// missing until then.
//
// Thread contract: not synchronized; pure.
//
// Nodes some of whose ranks have not come yet are known too (SetWaiting): they
// count for nothing but the words about who is missing.
//
// Invariants: a session is in it at most once. After a failed Add() the owner
// tells all members and clears it.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_GATHERING_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_GATHERING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// A node with its ranks of one job.
struct NodeMember {
  SessionId session = 0;
  std::string node;
  std::string host;
  std::string address = {};     // where the coordinator sees it; may be empty
  std::vector<uint32_t> ranks;  // by local rank
  std::vector<int64_t> pids;    // by local rank; may be empty
  uint32_t chunk_bytes = 0;     // the node's --chunk_bytes
  uint32_t local_size = 0;      // more than ranks: some have not come yet
  // By local rank, -1: none; or empty.
  std::vector<int64_t> fusion_thresholds;
  // As the smallest local rank that says anything says; -1: none does.
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  int64_t start_timeout_ms = 0;  // of the most impatient rank; 0: none says it
  // Elastic: the executor's numbers of them, by local rank; else empty.
  std::vector<uint64_t> clients = {};

  bool HasRank(uint32_t rank) const;
  // "rank 3 (node n1, host h, pid 77)"
  std::string RankText(uint32_t rank) const;
};

// What a rank's environment says of fusion.
struct RankThreshold {
  uint32_t rank = 0;
  int64_t bytes = 0;
};

// Refuses what no sound executor sends: no ranks, too many, absurd sizes.
absl::Status CheckRanksReady(const proto::RanksReady& ready);
// Of this part of it: what so many ranks' environment says.
absl::Status CheckRankFacts(const proto::RanksReady& ready, int ranks);
absl::Status CheckRanksWaiting(const proto::RanksWaiting& waiting);

class Gathering {
 public:
  // Takes the member in, in any case. An error is the reason why this start
  // cannot succeed: sizes or --chunk_bytes that differ, ranks given twice or
  // out of range.
  absl::Status Add(NodeMember member, uint32_t size);
  void SetWaiting(NodeMember member, uint32_t size);
  // Makes nodes that wait for local ranks members like others: to be told.
  void TakeWaitingIn();
  void Remove(SessionId session);
  // Forgets the members.
  void Clear();

  // Exactly the ranks 0..size-1 are there.
  bool Complete() const { return !members_.empty() && ranks_ == size_; }
  bool empty() const { return members_.empty() && waiting_.empty(); }
  // Among the members.
  const NodeMember* Find(SessionId session) const;
  // Among the nodes that wait for local ranks.
  const NodeMember* FindWaiting(SessionId session) const;
  const std::vector<NodeMember>& members() const { return members_; }
  uint32_t size() const { return members_.empty() ? waiting_size_ : size_; }

  // Of the members' ranks that say something, by rank.
  std::vector<RankThreshold> FusionThresholds() const;

  // How long all of them wait for a start, as the most impatient says;
  // `otherwise` if none says anything.
  Time StartTimeout(Time otherwise) const;

  // "rank 1 of 4 has not called init(); arrived: node a with rank 0 (1 of its
  // 2 ranks), node b with ranks 2,3"
  std::string MissingText() const;

  // The members of a complete gathering, ordered by smallest rank; empties it.
  std::vector<NodeMember> Take();

 private:
  absl::Status CheckAgainstOthers(const NodeMember& member,
                                  uint32_t size) const;

  std::vector<NodeMember> members_;
  uint32_t size_ = 0;   // as the first member said
  uint32_t ranks_ = 0;  // of all members
  std::vector<NodeMember> waiting_;
  uint32_t waiting_size_ = 0;  // as the last of them said
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_GATHERING_H_
