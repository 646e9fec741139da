// Client: a rank's real core (client/engine/rank_core.h), in a simulated shell.
//
// Purpose: does what client/session/board_communicator.h does for the core, but
// without threads: messages to the executor, wake-ups, and the executor's loss.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_CLIENT_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "client/engine/rank_core.h"
#include "client/session/timeline_outbox.h"
#include "common/board/board.h"
#include "tests/simulation/parts/connection.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

class Client : private RankShell {
 public:
  struct Callbacks {
    std::function<void()> ended;  // an operation has ended
    std::function<void()> wake_executor;
    std::function<void()> wake_threads;
    std::function<void(const std::string&)> tell;
    std::function<void(const session::GpuMemoryReply&)> gpu_memory;
    std::function<void(const session::ConnectGpu&)> connect_gpu;
    std::function<bool()> awaits_connect;
    std::function<void()> epoch_over;
    std::function<uint32_t()> gpu_runs;  // under way
    // True if the rank cannot go on for a reason that is simulated.
    std::function<bool(const Status&)> breaks;
  };

  Client(Stage* stage, std::unique_ptr<Board> board,
         std::shared_ptr<Connection> connection, uint32_t local_rank,
         bool elastic, Callbacks callbacks);

  const Board& board() const { return *board_; }
  RankCore& core() { return core_; }
  const RankCore& core() const { return core_; }

  // True if something moved. *by_board: it moved because of a word on the
  // board, so the writer of that word must have woken the rank.
  bool Drive(bool look_at_socket, bool* by_board);
  // returns: it says that it will come back.
  void Leave(bool returns);
  // In how many milliseconds it should be driven again because of a timeline.
  int timeline_due_ms() const { return timeline_due_ms_; }
  // Says that the rank has trained to the end.
  void SayFinished();
  // Asks the executor to open a memory of this rank.
  void SendGpuMemory(const session::GpuMemoryRequest& request) {
    connection_->to_executor.Send(&request, sizeof(request));
    ++gpu_requests_;
  }

 private:
  void Send(const void* message, size_t bytes) override;
  bool SendIfRoom(const void* message, size_t bytes) override {
    Send(message, bytes);
    return true;
  }
  void WakeExecutor() override { callbacks_.wake_executor(); }
  void WakeThreads() override { callbacks_.wake_threads(); }
  bool MarkUnattended(const Operation& operation) override;
  void Ended() override { callbacks_.ended(); }
  void ShowUser(const std::string& line) override { callbacks_.tell(line); }
  bool AbortIsOverdue() override;
  void Detach(Operation*) override {}  // there are no arenas
  void Record(const Operation& operation) override;
  int64_t Now() override { return stage_->scheduler.now(); }
  void GiveUp(Status status) override;

  bool ReadMessages();
  void SendTimeline(bool leaving);

  Stage* const stage_;
  const std::unique_ptr<Board> board_;
  const std::shared_ptr<Connection> connection_;
  const uint32_t me_;
  const bool elastic_;
  const Callbacks callbacks_;
  RankCore core_;
  TimelineOutbox timeline_;
  int timeline_due_ms_ = TimelineOutbox::kNever;
  uint32_t gpu_requests_ = 0;  // unanswered
  bool lost_ = false;          // the executor has ended
  int64_t abort_seen_ = 0;
  bool by_time_ = false;  // this step saw that its patience was over
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_CLIENT_H_
