#include "tests/simulation/parts/executor_links.h"

#include <unistd.h>

namespace maypole::simulation {

SimulatedWake::SimulatedWake(Stage* stage, std::function<void()> wake_loop,
                             std::function<void()> on_gone)
    : Source(std::move(on_gone)), stage_(stage) {
  event_->on_readable = [this, wake_loop = std::move(wake_loop)] {
    if (stage_->Spoils(Sabotage::kNoWake, 16)) {
      event_->count = 0;
    } else {
      wake_loop();
    }
  };
}

void SimulatedWake::Drain() {
  if (stage_->Spoils(Sabotage::kNoDrain, 16)) return;
  Attend();
  event_->count = 0;
}

SimulatedLink::SimulatedLink(Stage* stage, worker::ClientId id,
                             std::shared_ptr<Connection> connection,
                             std::function<void()> wake_loop,
                             std::function<void()> on_gone, WatchMaker watch)
    : Source(std::move(on_gone)),
      stage_(stage),
      id_(id),
      connection_(std::move(connection)),
      watch_(std::move(watch)) {
  connection_->to_executor.on_readable = std::move(wake_loop);
}

SimulatedLink::~SimulatedLink() {
  connection_->to_executor.on_readable = nullptr;
  connection_->to_client.Close();
}

std::unique_ptr<worker::ProcessWatch> SimulatedLink::KeepProcess() {
  if (stage_->random.OneIn(16)) return nullptr;  // of another PID namespace
  return watch_(id_, connection_->process);
}

Status SimulatedLink::Receive(std::vector<char>* message, Fd*) {
  Attend();
  message->clear();
  Pipe& pipe = connection_->to_executor;
  if (pipe.messages.empty()) {
    deaf_ = pipe.closed && stage_->Spoils(Sabotage::kIgnoreDeath, 1);
    if (pipe.closed && !deaf_) return Status();
    return Status(Code::kDeadlineExceeded, "no message");
  }
  *message = std::move(pipe.messages.front().data);
  pipe.messages.pop_front();
  return Status();
}

Status SimulatedLink::Send(const void* data, size_t bytes) {
  connection_->to_client.Send(data, bytes);
  return Status();
}

Status SimulatedLink::SendWelcome(const session::Welcome& welcome,
                                  const Board& board,
                                  const worker::BoardWake& wake) {
  connection_->to_client.Send(&welcome, sizeof(welcome), Fd(dup(board.fd())),
                              static_cast<const SimulatedWake&>(wake).shared());
  return Status();
}

Status SimulatedLink::SendState(const session::StateReply& reply, const Fd*) {
  return Send(&reply, sizeof(reply));
}

}  // namespace maypole::simulation
