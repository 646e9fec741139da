// Gathering: the ranks that wait for a job's next epoch.
//
// Purpose: collects the nodes' RanksReady messages until each of the ranks 0 to
// size-1 is there exactly once. Until then, describes what is wrong or missing.
// It also knows nodes where some ranks have not come yet (SetWaiting), but uses
// them only to describe which ranks are missing.
//
// Thread contract: not synchronized; pure.
//
// Invariants: a session is in it at most once. After a failed Add() the owner
// tells all members and clears it.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_GATHERING_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_GATHERING_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
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
  VersionRange versions = {};   // that its executor speaks
  uint32_t version = 0;         // of its session when the epoch began
  std::vector<uint32_t> ranks;  // by local rank
  std::vector<int64_t> pids;    // by local rank; may be empty
  uint32_t chunk_bytes = 0;     // the node's --chunk_bytes
  uint32_t local_size = 0;      // if more than ranks: some have not come yet
  // By local rank, -1 if the rank sets none; or empty.
  std::vector<int64_t> fusion_thresholds;
  // The values of the smallest local rank that sets one; -1 if none does.
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  int64_t start_timeout_ms = 0;  // the shortest of all ranks; 0: none sets it
  uint32_t checksums = 0;        // the greatest ChecksumMode that a rank wants
  // Elastic jobs: the executor's client numbers, by local rank; else empty.
  std::vector<uint64_t> clients = {};

  bool HasRank(uint32_t rank) const;
  uint32_t SmallestRank() const;
  // Of a local rank; 0: unknown.
  int64_t PidOf(size_t local) const {
    return local < pids.size() ? pids[local] : 0;
  }
  // "node n1 (host h)"
  std::string Text() const;
  // "the executor of node n1 (host h) with ranks 2,3"
  std::string ExecutorText() const;
  // "rank 3 (node n1, host h, pid 77)"
  std::string RankText(uint32_t rank) const;

  // Copies what holds for all ranks of the node.
  void Read(const proto::RanksReady& ready);
};

// Refuses messages that no correct executor sends: no ranks (but an elastic
// node may have none), too many ranks, sizes out of range.
absl::Status CheckRanksReady(const proto::RanksReady& ready);
absl::Status CheckRanksWaiting(const proto::RanksWaiting& waiting);
// Refuses nodes whose executors cannot speak with one another.
absl::Status CheckVersions(const std::vector<const NodeMember*>& nodes);

class Gathering {
 public:
  // Adds the member, even if it returns an error. An error is the reason why
  // this start cannot succeed: sizes differ, a rank is there twice or is out of
  // range, the nodes have no version or chunk size in common.
  absl::Status Add(NodeMember member, uint32_t size);
  void SetWaiting(NodeMember member, uint32_t size);
  // Makes the nodes that wait for local ranks members, so that the caller can
  // tell all nodes of a failed start.
  void TakeWaitingIn();
  void Remove(SessionId session);
  // Removes the member because its executor was lost; `how` completes a
  // sentence about the executor. MissingText() names it if it was waiting for
  // local ranks.
  void Lose(SessionId session, const std::string& how);
  // Removes all members.
  void Clear();

  // True if exactly the ranks 0 to size-1 are there.
  bool Complete() const { return !members_.empty() && taken_.size() == size_; }
  bool empty() const { return members_.empty() && waiting_.empty(); }
  // Searches the members; null if the session is not one.
  const NodeMember* Find(SessionId session) const;
  // Searches the nodes that wait for local ranks.
  const NodeMember* FindWaiting(SessionId session) const;
  const std::vector<NodeMember>& members() const { return members_; }
  // How many ranks are there, those of nodes that wait for others included.
  size_t ranks() const;
  uint32_t size() const { return members_.empty() ? waiting_size_ : size_; }

  // How long they wait for a start: the shortest of all ranks' timeouts, or
  // `otherwise` if none sets one.
  Time StartTimeout(Time otherwise) const;

  // "rank 1 of 4 has not called init(); arrived: node a with rank 0 (1 of its
  // 2 ranks), node b with ranks 2,3"
  std::string MissingText() const;

  // Removes and returns the members of a complete gathering, by smallest
  // rank.
  std::vector<NodeMember> Take();

 private:
  absl::Status CheckAgainstOthers(const NodeMember& member,
                                  uint32_t size) const;

  std::vector<NodeMember> members_;
  uint32_t size_ = 0;  // of the job, as the first member reported it
  std::unordered_multiset<uint32_t> taken_;  // the ranks of all members
  std::vector<NodeMember> waiting_;
  std::map<std::string, std::string> lost_;  // by node: a text for a message
  uint32_t waiting_size_ = 0;  // of the job, as the last of them reported it
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_GATHERING_H_
