// LocalGathering: the ranks of this node that wait for the next epoch.
//
// Purpose: admits them, and tells the coordinator who is here: ranks of a job
// of fixed size when all local ranks are there, or who waits until then;
// elastic ranks as they arrive, in any phase. The coordinator ignores an
// elastic report of an earlier round, as its own last message has crossed it.
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
  // Elastic ranks were reported in this session.
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
  // Elastic: refuses those that the message names, or all.
  void Refuse(const proto::EpochEnd& end);
  // The clients close, and come to the agent's successor.
  void CloseAll();
  // The error for ranks whose other local ranks have not come in time; OK
  // otherwise.
  absl::Status CheckTime(int64_t now_ms) const;

  // --- Reports to the coordinator --------------------------------------------
  void ReportElastic();
  void ReportWaiting() { ReportWaiting(ranks_); }
  // Ranks that were reported as waiting no longer are.
  void Withdraw() { ReportWaiting(Membership()); }
  // All local ranks of a job of fixed size are there.
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
