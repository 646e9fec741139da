// Elastic: the ranks of an elastic job, which come and go, and the choice of
// ranks for its next epoch.
//
// Purpose: knows which processes wait (RanksReady of each node), and which
// ranks of the last epoch may come back. Decides when the next epoch starts and
// with which processes, and assigns their ranks. Describes who is missing.
//
//   rank of the last epoch   reached by                      expected back
//   in                       the epoch's start               yes
//   returning                has left, its process lives     yes
//   back                     waits again                     (is there)
//   gone                     died, left permanently, did     no; recognized
//                            not come back in time, or its   if it comes back
//                            executor was lost               nevertheless
//
// The next epoch may start when no rank is expected back any more, at least
// min_size processes wait, and either a rank of the last epoch that has the
// job's state is back, or max_size wait, or nothing has changed for the settle
// time. (So survivors of a death continue at once, and a first start waits
// until its processes have come. New processes whose start has failed also wait
// for the settle time: those with the state may be about to come back.)
//
// Order of the new ranks: by the last epoch in which the process got the job's
// state, as it reports: first those of the last epoch, in their order; then
// those of earlier ones, the latest first; then those of an earlier life of the
// job; then new processes, in order of arrival. The ranks of a node are
// consecutive; nodes are ordered by their first rank. So rank 0 has the latest
// state that any process has. (A coordinator that has taken over the job may
// know only an old epoch, from a node that was cut off afterwards, because the
// executors that knew the last one have died. Until it has begun an epoch,
// processes of later epochs come first.)
//
// Identity of a process: the (last epoch, rank) that it reports, together with
// its node or host and its pid, because an earlier life of the job may have had
// an epoch of the same number. (maypolerun restarts a dead agent as another
// node of its host.) Processes of an epoch that never heard of its start, or
// did not get the state in it, still report the one before: they are recognized
// by both.
//
// The end. Once a rank that has finished its training leaves permanently, the
// training cannot begin again while the job is known: later processes are
// refused. Ranks of the last epoch that have not finished may continue (the
// epoch may end before all ranks have heard of the last step), and while one of
// them waits, new processes may enter with it. If one of them is lost, nothing
// makes up for what it had to do after the training: later processes are
// refused with an error that names it.
//
// Thread contract: not synchronized; pure. Only OnTime() learns the time. After
// a change Deadline() returns the earliest possible time, that is "now".
//
// Invariants: no process waits twice; at most one waiting process is back for
// each rank of the last epoch.
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

class Elastic {
 public:
  // `timeout`: how long ranks wait for a start if they do not set it.
  Elastic(Time settle, Time timeout) : settle_(settle), timeout_(timeout) {}

  // Sets the node's waiting ranks, replacing what it reported before. `node`
  // must have session, node and host. An error says why the job cannot take
  // them; then no rank of the node waits.
  absl::Status SetWaiting(Time now, NodeMember node,
                          const proto::RanksReady& ready);
  // A rank has left the epoch, or its process has ended.
  void OnLeft(SessionId session, uint64_t epoch, const proto::RankGone& gone);
  void OnLost(SessionId session);

  // True if a process waits or is expected back, that is if the job is elastic.
  bool active() const { return waiting_ > 0 || expected_ > 0; }
  bool Waits(SessionId session) const { return nodes_.contains(session); }
  std::vector<SessionId> WaitingSessions() const;
  size_t waiting() const { return waiting_; }
  // The pids of the processes that wait on the node, in order of arrival.
  std::vector<int64_t> WaitingPids(SessionId session) const;
  uint32_t min_size() const { return min_size_; }
  uint32_t max_size() const { return max_size_; }

  // The numbers for MembershipWanted while the last epoch runs.
  uint32_t NewRanksWanted() const;
  uint32_t Leaving() const;

  struct Refused {
    SessionId session = 0;
    std::vector<uint64_t> clients;
    std::string why;
    absl::StatusCode code = absl::StatusCode::kDeadlineExceeded;
  };
  struct Verdict {
    bool start = false;  // Begin() now
    // Ranks that were expected back but are no longer waited for: "rank 2 (node
    // n1, ...)".
    std::vector<std::string> left_behind;
    Time waited{};  // how long they were waited for
    // Processes that have waited too long for a start, or have come after the
    // end of the training. They have been removed and must be told why.
    std::vector<Refused> refused;
  };
  // `running`: the last epoch has not ended; `running_text` describes it.
  Verdict OnTime(Time now, bool running, const std::string& running_text);
  std::optional<Time> Deadline(bool running) const;

  // The latest epoch that any waiting process has been in; it may be of an
  // earlier coordinator, or of a job that this one has forgotten since.
  uint64_t LastEpochSaid() const;
  // Returns the members of the next epoch, with their ranks, by smallest
  // rank. `epoch` must be later than LastEpochSaid().
  std::vector<NodeMember> Begin(uint64_t epoch);
  // Takes over the last epoch of another coordinator. Processes may wait here
  // already. `members`: those that have not come back have session 0.
  void Restore(const proto::EpochStart& start,
               const std::vector<NodeMember>& members);
  // Removes all waiting processes; the caller tells them why.
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
    std::string host;
    Process process;
    std::string text;   // "rank 2 (node n1, host h, pid 77)"
    bool lost = false;  // kGone, but has not left cleanly
  };

  // OK if the node's executor can speak with those of all nodes that wait.
  absl::Status CheckVersion(const NodeMember& node) const;
  absl::Status CheckSizes(const NodeMember& node,
                          const proto::RanksReady& ready);
  Process MakeProcess(Time now, const NodeMember& node,
                      const proto::RanksReady& ready, int i,
                      const std::vector<Process>& before);
  // Finds the process's seat, and marks its rank as back.
  void TakeSeat(const NodeMember& node, Process* process);
  // The seat of the epoch and rank that the process reports: its rank in the
  // last epoch, or what it reported before that one.
  std::optional<uint32_t> NamedSeat(const Process& process) const;
  std::optional<uint32_t> FindSeat(const NodeMember& node,
                                   const Process& process) const;
  void Replace(SessionId session, Node node);
  void SetPresence(Seat* seat, Presence presence);
  static bool IsExpected(Presence presence) {
    return presence == Presence::kIn || presence == Presence::kReturning;
  }
  // How long the node's ranks wait: the shortest of their timeouts.
  Time TimeoutOf(const Node& node) const;
  // Since when a process has waited for a start; for a process of the last
  // epoch, since that epoch's end at the earliest.
  Time WaitsSince(const Process& process) const;
  // When the start timeout of the node's first waiting rank ends; nullopt if
  // no rank of the node waits.
  std::optional<Time> LateAt(const Node& node) const;
  // Removes the processes that have waited too long.
  std::vector<Refused> RefuseLate(Time now, const std::string& what_is);
  // Whether the training is over and no rank of the last epoch continues.
  bool Over() const;
  // Removes all waiting processes, because the training is over.
  std::vector<Refused> RefuseAfterEnd();
  // When the next epoch may start if nothing changes; nullopt if something must
  // change first.
  std::optional<Time> StartsAt() const;
  // Whether a rank of the last epoch that has the job's state waits.
  bool AnyBack() const;
  static bool GoesOn(const Process& process);
  std::vector<std::string> GiveUpMissing();
  // Describes which processes wait and which are missing.
  std::string MissingText() const;
  // The waiting processes that are in the next epoch: nodes in order, and the
  // processes of each node in order.
  using Chosen = std::vector<std::pair<SessionId, std::vector<Process>>>;
  Chosen Choose() const;
  // Removes a chosen node's processes from those that wait.
  NodeMember TakeOut(SessionId session, const std::vector<Process>& processes,
                     uint32_t first_rank);

  const Time settle_;
  const Time timeout_;
  uint32_t min_size_ = 0;  // as the first node reported it, while active()
  uint32_t max_size_ = 0;
  std::string first_;  // the node that reported them
  std::map<SessionId, Node> nodes_;
  size_t waiting_ = 0;  // processes of all nodes
  std::vector<Seat> seats_;
  uint64_t epoch_ = 0;     // of seats_
  bool restored_ = false;  // another coordinator has begun this epoch
  size_t expected_ = 0;    // of seats_
  uint64_t arrivals_ = 0;
  std::string finished_;  // the first rank that has finished; empty: none
  bool changed_ = false;
  Time changed_at_{};
  std::optional<Time> over_since_;  // since when no epoch runs
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_ELASTIC_H_
