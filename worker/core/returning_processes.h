// ReturningProcesses: processes of elastic ranks that have left an epoch and
// live on: they intend to return, or have finished their training.
//
// Purpose: as long as such a process lives, the job stays known, so that no
// process begins its training again. If a process ends that was expected to
// return, the coordinator learns it.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariant: bounded by the processes of the node.
#ifndef MAYPOLE_WORKER_CORE_RETURNING_PROCESSES_H_
#define MAYPOLE_WORKER_CORE_RETURNING_PROCESSES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/membership.h"

namespace maypole::worker {

class ReturningProcesses {
 public:
  // `actions` must outlive this object.
  explicit ReturningProcesses(std::vector<Action>* actions)
      : actions_(*actions) {}

  // The member leaves this epoch. `until_ms`: until when it is expected to
  // return; absent: it has completed its training.
  void Add(const LocalMember& m, uint64_t epoch,
           std::optional<int64_t> until_ms) {
    processes_[m.client] = {epoch, m.rank, m.visible_pid, until_ms};
    actions_.push_back(KeepWatching{m.client});
  }
  // The process has connected again.
  void OnReturned(int visible_pid) {
    End([&](const Process& p) { return p.visible_pid == visible_pid; });
  }
  void OnTime(int64_t now_ms) {
    End([&](const Process& p) { return p.until_ms && now_ms >= *p.until_ms; });
  }
  // Returns the message for the coordinator, if it needs one.
  std::optional<proto::ExecutorMessage> OnEnded(ClientId client) {
    const auto it = processes_.find(client);
    if (it == processes_.end()) return std::nullopt;
    const Process process = it->second;
    processes_.erase(it);
    if (!process.until_ms) return std::nullopt;
    proto::ExecutorMessage message;
    message.set_epoch(process.epoch);
    proto::RankGone* gone = message.mutable_rank_gone();
    gone->set_rank(static_cast<uint32_t>(process.rank));
    gone->set_how("its process has ended");
    return message;
  }
  size_t size() const { return processes_.size(); }

 private:
  struct Process {
    uint64_t epoch = 0;
    int rank = 0;
    int visible_pid = 0;
    std::optional<int64_t> until_ms;
  };

  // Stops watching the processes for which `over` is true.
  template <typename Over>
  void End(Over over) {
    std::erase_if(processes_, [&](const auto& p) {
      if (!over(p.second)) return false;
      actions_.push_back(StopWatching{p.first});
      return true;
    });
  }

  std::vector<Action>& actions_;
  std::map<ClientId, Process> processes_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_RETURNING_PROCESSES_H_
