// Simulated objects of an executor's logic: links to its clients, the eventfd
// of its board, the session with the coordinator.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_EXECUTOR_LINKS_H_
#define MAYPOLE_TESTS_SIMULATION_EXECUTOR_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/parts/connection.h"
#include "tests/simulation/parts/transport.h"
#include "tests/simulation/stage.h"
#include "worker/executor/executor_system.h"

namespace maypole::simulation {

// Something for which the executor's loop waits. It is reported as long as it
// is ready, so a loop that does not handle it would spin.
class Source {
 public:
  explicit Source(std::function<void()> on_gone)
      : on_gone_(std::move(on_gone)) {}
  virtual ~Source() { on_gone_(); }
  virtual bool ready() const = 0;
  virtual worker::ExecutorEvent event() const = 0;
  // How often it has been handled.
  uint64_t attended() const { return attended_; }

 protected:
  void Attend() { ++attended_; }

 private:
  const std::function<void()> on_gone_;
  uint64_t attended_ = 0;
};

class SimulatedWake : public worker::BoardWake, public Source {
 public:
  SimulatedWake(Stage* stage, std::function<void()> wake_loop,
                std::function<void()> on_gone);
  ~SimulatedWake() override { event_->on_readable = nullptr; }

  void Drain() override;
  bool ready() const override { return event_->count > 0; }
  worker::ExecutorEvent event() const override {
    return {worker::ExecutorEvent::Kind::kBoardWake};
  }
  const std::shared_ptr<EventFd>& shared() const { return event_; }

 private:
  Stage* const stage_;
  const std::shared_ptr<EventFd> event_ = std::make_shared<EventFd>();
};

// Watches a process whose connection is closed.
class SimulatedProcessWatch : public worker::ProcessWatch, public Source {
 public:
  SimulatedProcessWatch(worker::ClientId id,
                        std::shared_ptr<ProcessHandle> process,
                        std::function<void()> wake_loop,
                        std::function<void()> on_gone)
      : Source(std::move(on_gone)), id_(id), process_(std::move(process)) {
    process_->on_end[this] = std::move(wake_loop);
  }
  ~SimulatedProcessWatch() override { process_->on_end.erase(this); }

  bool ready() const override { return process_->ended; }
  worker::ExecutorEvent event() const override {
    return {worker::ExecutorEvent::Kind::kProcessEnded, id_};
  }

 private:
  const worker::ClientId id_;
  const std::shared_ptr<ProcessHandle> process_;
};

// While the connection is open, the client's death is seen by it.
class SimulatedLink : public worker::ClientLink, public Source {
 public:
  using WatchMaker = std::function<std::unique_ptr<worker::ProcessWatch>(
      worker::ClientId, std::shared_ptr<ProcessHandle>)>;
  SimulatedLink(Stage* stage, worker::ClientId id,
                std::shared_ptr<Connection> connection,
                std::function<void()> wake_loop, std::function<void()> on_gone,
                WatchMaker watch);
  ~SimulatedLink() override;

  Status Receive(std::vector<char>* message, Fd* descriptor) override;
  Status Send(const void* data, size_t bytes) override;
  Status SendWelcome(const session::Welcome& welcome, const Board& board,
                     const worker::BoardWake& wake) override;
  Status SendState(const session::StateReply& reply, const Fd* state) override;
  Status Flush() override { return Status(); }
  std::unique_ptr<worker::ProcessWatch> KeepProcess() override;

  bool ready() const override {
    return !deaf_ && connection_->to_executor.readable();
  }
  worker::ExecutorEvent event() const override {
    return {worker::ExecutorEvent::Kind::kClient, id_};
  }

 private:
  Stage* const stage_;
  const worker::ClientId id_;
  const std::shared_ptr<Connection> connection_;
  const WatchMaker watch_;
  bool deaf_ = false;  // by sabotage
};

class TransportHandle : public worker::Transport {
 public:
  explicit TransportHandle(std::shared_ptr<SimulatedTransport> transport)
      : transport_(std::move(transport)) {}
  ~TransportHandle() override { transport_->Close(); }
  uint64_t Send(proto::ExecutorMessage message) override {
    return transport_->Send(std::move(message));
  }
  void TakeRelayed(const std::string& incarnation,
                   proto::CoordinatorMessage message) override {
    transport_->TakeRelayed(incarnation, std::move(message));
  }

 private:
  const std::shared_ptr<SimulatedTransport> transport_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_EXECUTOR_LINKS_H_
