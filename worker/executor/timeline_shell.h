// TimelineShell: connects the job's timeline (ExecutorTimeline) to its file,
// the ranks, the board and the coordinator.
//
// Thread contract: the executor's loop; timeline().recording() any thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_TIMELINE_SHELL_H_
#define MAYPOLE_WORKER_EXECUTOR_TIMELINE_SHELL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/core/timeline/executor_timeline.h"
#include "worker/executor/executor_clients.h"
#include "worker/executor/executor_system.h"
#include "worker/executor/loop_poster.h"

namespace maypole::worker {

class TimelineShell : private ExecutorTimeline::Shell {
 public:
  struct Ways {
    std::function<void(proto::ExecutorMessage)> to_coordinator;
    std::function<void(ClientId, session::TimelineReply*)> reply;
    std::function<void(uint32_t word)> set_on_board;
  };

  // All must outlive this object.
  TimelineShell(ExecutorSystem* system, ExecutorObserver* observer,
                ExecutorClients* clients, Ways ways)
      : system_(*system),
        observer_(*observer),
        clients_(*clients),
        ways_(std::move(ways)),
        poster_(system),
        timeline_(this) {}

  ExecutorTimeline& timeline() { return timeline_; }
  const ExecutorTimeline& timeline() const { return timeline_; }

  void OnEpochStarted(const CreateBoard& board,
                      std::vector<std::string> node_names);
  // The message being handled brought the descriptor of the rank's file for the
  // timeline, or none.
  void OnFile(ClientId id, const session::TimelineFile& message);

 private:
  void ToCoordinator(proto::ExecutorMessage message) override;
  void Reply(ClientId client, const session::TimelineReply& reply) override;
  void SetTimeline(uint32_t word) override;
  void WriteFile(std::string text) override;
  void CloseFile() override;
  void MakeFile(ClientId client, const std::string& name) override;
  // Returns the callback for the end of the current timeline's file: the file
  // is complete, or writing has failed. Any thread may call it.
  std::function<void(Status)> FileEnded(LoopPoster::Post post);

  ExecutorSystem& system_;
  ExecutorObserver& observer_;
  ExecutorClients& clients_;
  const Ways ways_;
  LoopPoster poster_;  // of the file
  ExecutorTimeline timeline_;
  // Declared last, because its thread calls back.
  std::unique_ptr<TimelineFile> file_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_TIMELINE_SHELL_H_
