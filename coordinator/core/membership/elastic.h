// Elastic: the ranks of a job that come and go; who is in its next epoch.
//
// Purpose: knows who waits (RanksReady of each node), and who was in the last
// epoch and may come back. Decides when the next epoch starts, with whom, and
// numbers them. Finds the words for who is missing.
//
//   of the last epoch   how it gets there               expected back
//   in it               the epoch's start               yes
//   returning           has left, its process lives     yes
//   back                waits again                     (is there)
//   gone                died, left for good, did not    no; who comes all the
//                       come in time, executor lost     same is known again
//
// The next epoch may start when nobody is expected any more, at least min_size
// wait, and either max_size wait or nothing has changed for the settle time.
// Its ranks: who was in the last epoch keeps its order; then those who were in
// an older one (or in one of a coordinator before this); then new ones in order
// of arrival. The ranks of a node stand together, nodes ordered by their first.
// So while anybody is left who knows the job's state, rank 0 does.
//
// Who a process is: (last epoch, rank) as it says, and node and pid, for
// another life of the job may have had an epoch of that number too. When a
// start fails, its processes have been given ranks of an epoch that some have
// never heard of: they still say the one before, and are known by both.
//
// Thread contract: not synchronized; pure. Time comes by OnTime() alone: after
// a change Deadline() is the beginning of time, that is at once.
//
// Invariants: nobody waits twice; at most one of those who wait is back for a
// rank of the last epoch.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ELASTIC_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ELASTIC_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// Refuses what no sound executor sends.
absl::Status CheckElasticReady(const proto::RanksReady& ready);

class Elastic {
 public:
  // `timeout`: how long ranks wait for a start that do not say it themselves.
  Elastic(Time settle, Time timeout) : settle_(settle), timeout_(timeout) {}

  // The ranks of a node that wait; replaces what it has said before. `node`
  // has its session, node and host. An error is the reason why the job cannot
  // take them: nobody of the node waits then.
  absl::Status SetWaiting(Time now, NodeMember node,
                          const proto::RanksReady& ready);
  // A rank has left the epoch, or its process has ended. False: it is no rank
  // of the session's node in the last epoch.
  bool OnLeft(SessionId session, uint64_t epoch, uint32_t rank, bool returns);
  void OnLost(SessionId session);

  // Somebody waits or is expected: the job is an elastic one.
  bool active() const { return waiting_ > 0 || expected_ > 0; }
  bool Waits(SessionId session) const { return nodes_.contains(session); }
  std::vector<SessionId> WaitingSessions() const;
  size_t waiting() const { return waiting_; }
  // Of those that wait on the node, in order of arrival.
  std::vector<int64_t> WaitingPids(SessionId session) const;
  uint32_t max_size() const { return max_size_; }

  // What MembershipWanted says while the last epoch runs.
  uint32_t NewRanksWanted() const;
  uint32_t Leaving() const;

  struct Late {
    SessionId session = 0;
    std::vector<uint64_t> clients;
    std::string why;
  };
  struct Verdict {
    bool start = false;  // Begin() now
    // Expected, and not waited for any longer: "rank 2 (node n1, ...)".
    std::vector<std::string> left_behind;
    Time waited{};  // for those
    // They have waited too long, are out now, and must be told why.
    std::vector<Late> late;
  };
  // `running`: the last epoch has not ended, `running_text` tells of it.
  Verdict OnTime(Time now, bool running, const std::string& running_text);
  std::optional<Time> Deadline(bool running) const;

  // The latest epoch that anybody who waits has been in; of an earlier
  // coordinator too, or of a job that this one has forgotten since.
  uint64_t LastEpochSaid() const;
  // The members of the next epoch, with their ranks. It is after all that.
  std::vector<NodeMember> Begin(uint64_t epoch);
  // All who wait are out: for a reason that they are told.
  void Clear();

 private:
  struct Process {
    uint64_t client = 0;
    uint64_t said_epoch = 0;  // 0: new
    uint32_t said_rank = 0;
    int64_t pid = 0;
    int64_t fusion_threshold = -1;
    uint64_t arrival = 0;
    Time since{};
    std::optional<uint32_t> seat;  // its rank in the last epoch
  };
  struct Node {
    NodeMember member;  // without ranks
    std::vector<Process> processes;
  };
  enum class Presence { kIn, kReturning, kBack, kGone };
  // A rank of the last epoch.
  struct Seat {
    Presence presence = Presence::kIn;
    SessionId session = 0;
    std::string node;
    Process process;
    std::string text;  // "rank 2 (node n1, host h, pid 77)"
  };

  absl::Status CheckTerms(const NodeMember& node,
                          const proto::RanksReady& ready);
  Process MakeProcess(Time now, const NodeMember& node,
                      const proto::RanksReady& ready, int i,
                      const std::vector<Process>& before);
  std::optional<uint32_t> FindSeat(const NodeMember& node,
                                   const Process& process) const;
  void Replace(SessionId session, Node node);
  void SetPresence(Seat* seat, Presence presence);
  static bool IsExpected(Presence presence) {
    return presence == Presence::kIn || presence == Presence::kReturning;
  }
  // How long the node's ranks wait, as the most impatient of them says.
  Time TimeoutOf(const Node& node) const;
  // Who was in the last epoch waits for a start when that is over.
  Time WaitsSince(const Process& process) const;
  // Its first rank that waits has done so for that long; none: nobody waits.
  std::optional<Time> LateAt(const Node& node) const;
  // Those who have waited too long are out.
  std::vector<Late> RefuseLate(Time now, const std::string& what_is);
  // When the next epoch may start, if nothing changes; none: not by itself.
  std::optional<Time> StartsAt() const;
  std::vector<std::string> GiveUpMissing();
  // Who is there and who is not.
  std::string MissingText() const;
  // Those who are in of all that wait: the nodes in order, of each its
  // processes in order.
  using Chosen = std::vector<std::pair<SessionId, std::vector<Process>>>;
  Chosen Choose() const;
  // Takes a chosen node's processes out of those who wait.
  NodeMember TakeOut(SessionId session, const std::vector<Process>& processes,
                     uint32_t first_rank);

  const Time settle_;
  const Time timeout_;
  uint32_t min_size_ = 0;  // as the first said, while active()
  uint32_t max_size_ = 0;
  uint32_t chunk_bytes_ = 0;
  std::string first_;  // who said so
  std::map<SessionId, Node> nodes_;
  size_t waiting_ = 0;  // of all nodes
  std::vector<Seat> seats_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> names_;  // of seats_
  uint64_t epoch_ = 0;                                       // of seats_
  size_t expected_ = 0;                                      // of seats_
  uint64_t arrivals_ = 0;
  bool changed_ = false;
  Time changed_at_{};
  std::optional<Time> over_since_;  // no epoch runs
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ELASTIC_H_
