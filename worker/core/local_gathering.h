// LocalGathering: the ranks of this node that wait for the next epoch.
//
// Purpose: admits these ranks and reports them to the coordinator. Ranks of a
// job of fixed size are reported as ready when all local ranks are there, and
// as waiting until then; elastic ranks are reported as they arrive, in any
// phase. The coordinator ignores an elastic report of an earlier round, because
// its own last message has crossed that report.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LOCAL_GATHERING_H_
#define MAYPOLE_WORKER_CORE_LOCAL_GATHERING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/coordinator_link.h"
#include "worker/core/executor_core_options.h"
#include "worker/core/membership.h"

namespace maypole::worker {

class LocalGathering {
 public:
  // All must outlive this object.
  LocalGathering(const ExecutorCoreOptions& options, CoordinatorLink* link,
                 std::vector<Action>* actions)
      : options_(options), link_(*link), actions_(*actions) {}

  const Membership& ranks() const { return ranks_; }
  bool elastic() const { return ranks_.elastic(); }
  // True if elastic ranks were reported in this session.
  bool reported_elastic() const { return reported_elastic_; }

  absl::Status Add(int64_t now_ms, ClientId client, const session::Hello& hello,
                   int visible_pid);
  void Remove(ClientId client) { ranks_.Remove(client); }
  // All ranks become members of an epoch.
  Membership Take() { return std::exchange(ranks_, Membership()); }
  // Elastic: as Membership's.
  Membership TakeOut(const std::vector<ClientId>& clients,
                     const std::vector<int>& ranks, int size) {
    return ranks_.TakeOut(clients, ranks, size);
  }
  void TakeBack(Membership members) { ranks_.TakeBack(std::move(members)); }
  void Refuse(const absl::Status& why);
  // Elastic: refuses the clients that the message names; all if it names none.
  void Refuse(const proto::EpochEnd& end);
  // Closes the clients' connections; they then connect to the agent's
  // successor.
  void CloseAll();
  // Returns an error if the missing local ranks have not come in time.
  absl::Status CheckTime(int64_t now_ms) const;

  // --- Reports to the coordinator --------------------------------------------
  void ReportElastic();
  void ReportWaiting() { ReportWaiting(ranks_); }
  // Reports that no ranks wait any more.
  void Withdraw() { ReportWaiting(Membership()); }
  // Reports that all local ranks of a job of fixed size are there.
  void ReportReady(const Membership& ranks);

  void OnSessionOpened() {
    round_ = 0;
    reported_elastic_ = false;
  }
  void OnCoordinatorReplaced() { round_ = 0; }
  // Counts the rounds of the session; see proto RanksReady.
  void OnCoordinator(const proto::CoordinatorMessage& message) {
    round_ += message.has_epoch_start() ||
              (message.has_epoch_end() && message.epoch() == 0);
  }

 private:
  // Adds the settings of the ranks and of this node.
  void AddSettings(const Membership& ranks, proto::RanksReady* ready) const;
  void ReportWaiting(const Membership& waiting);

  const ExecutorCoreOptions& options_;
  CoordinatorLink& link_;
  std::vector<Action>& actions_;
  Membership ranks_;
  int64_t since_ms_ = 0;
  uint64_t round_ = 0;
  bool reported_elastic_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LOCAL_GATHERING_H_
