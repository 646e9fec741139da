#include "tests/simulation/parts/client.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/wire/session_messages.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kPatience = 700 * kMillisecond;

}  // namespace

Client::Client(Stage* stage, std::unique_ptr<Board> board,
               std::shared_ptr<Connection> connection, uint32_t local_rank,
               bool elastic, Callbacks callbacks)
    : stage_(stage),
      board_(std::move(board)),
      connection_(std::move(connection)),
      me_(local_rank),
      elastic_(elastic),
      callbacks_(std::move(callbacks)),
      core_(board_.get(), local_rank, this) {}

void Client::Send(const void* message, size_t bytes) {
  connection_->to_executor.Send(message, bytes);
}

bool Client::MarkUnattended(const Operation& operation) {
  if (operation.awaited) return false;
  board_->rank(me_).sleeping.store(kRankSleeps);
  return true;
}

bool Client::AbortIsOverdue() {
  if (abort_seen_ == 0) abort_seen_ = Now();
  const bool over = Now() - abort_seen_ > kPatience;
  by_time_ = by_time_ || over;
  return over;
}

void Client::GiveUp(Status status) {
  if (!callbacks_.breaks(status)) {
    return stage_->Found("a rank cannot go on: ", status.message());
  }
  auto goodbye = session::Make<session::Goodbye>();
  goodbye.pending = std::max(1u, core_.outstanding());
  goodbye.returns = elastic_ ? 1 : 0;
  connection_->to_executor.Send(&goodbye, sizeof(goodbye));
  const int rank = board_->config().global_rank[me_];
  board_->Abort(status.code(),
                "rank " + std::to_string(rank) + ": " + status.message());
}

bool Client::Drive(bool look_at_socket, bool* by_board) {
  by_time_ = false;
  bool moved = core_.Step();
  *by_board = moved && !by_time_;
  if (look_at_socket || stage_->random.OneIn(16)) core_.PublishPosition();
  if (core_.expects_messages() || core_.recalled() || gpu_requests_ > 0 ||
      look_at_socket || callbacks_.awaits_connect()) {
    moved |= ReadMessages();
  }
  if (board_->aborted()) callbacks_.epoch_over();
  SendTimeline(/*leaving=*/false);
  return moved;
}

void Client::Record(const Operation& operation) {
  timeline_.Add(
      board_->header().timeline.load(),
      RecordOf(operation, static_cast<int>(board_->config().global_rank[me_])));
}

void Client::SendTimeline(bool leaving) {
  timeline_due_ms_ = timeline_.Step(
      board_->header().timeline.load(), leaving ? 0 : core_.unrecorded(),
      Now() / kMillisecond,
      [this](const void* message, size_t bytes) {
        Send(message, bytes);
        return Status();
      },
      leaving);
}

bool Client::ReadMessages() {
  bool moved = false;
  Pipe& pipe = connection_->to_client;
  while (!pipe.messages.empty()) {
    const Message message = std::move(pipe.messages.front());
    pipe.messages.pop_front();
    moved = true;
    session::GpuMemoryReply reply;
    session::ConnectGpu connect;
    if (session::Parse(message.data.data(), message.data.size(), &connect)
            .ok()) {
      callbacks_.connect_gpu(connect);
    } else if (session::Parse(message.data.data(), message.data.size(), &reply)
                   .ok()) {
      --gpu_requests_;
      callbacks_.gpu_memory(reply);
    } else {
      core_.OnMessage(message.data);
    }
  }
  if (pipe.closed && !std::exchange(lost_, true)) {
    if (!board_->aborted()) {
      board_->Abort(Code::kAborted, "the executor of this node died");
    }
    core_.LoseExecutor();
    moved = true;
  }
  return moved;
}

void Client::SayFinished() {
  auto finished = session::Make<session::Finished>();
  connection_->to_executor.Send(&finished, sizeof(finished));
}

void Client::Leave(bool returns) {
  core_.Leave();
  auto goodbye = session::Make<session::Goodbye>();
  // Without this rank's GPU the others' would wait for ever.
  goodbye.pending = core_.outstanding() + callbacks_.gpu_runs();
  goodbye.returns = returns ? 1 : 0;
  core_.FailAll(Status(Code::kAborted,
                       "this rank has left the job (shutdown) with the "
                       "operation pending"));
  core_.SendAllResults();
  SendTimeline(/*leaving=*/true);
  connection_->to_executor.Send(&goodbye, sizeof(goodbye));
  connection_->to_executor.Close();
}

}  // namespace maypole::simulation
