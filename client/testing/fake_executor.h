// FakeExecutor: an executor of one node for the client's tests. Like the real
// one it allots slots and notices when ranks leave, but in one thread.
//
// Thread contract: any thread may call the functions.
#ifndef MAYPOLE_CLIENT_TESTING_FAKE_EXECUTOR_H_
#define MAYPOLE_CLIENT_TESTING_FAKE_EXECUTOR_H_

#include <poll.h>
#include <sys/eventfd.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/board/board.h"
#include "common/wire/job_variables.h"
#include "common/wire/session_messages.h"
#include "common/wire/unix_socket.h"

namespace maypole {

class FakeExecutor {
 public:
  // gpu_communicators: as in BoardConfig.
  FakeExecutor(const std::string& path, uint32_t ranks,
               uint32_t gpu_communicators = 0)
      : ranks_(ranks), gpu_communicators_(gpu_communicators) {
    (void)ListenUnix(path, 0600, &listener_);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeExecutor() {
    Die();
    thread_.join();
  }

  // Simulates kill -9: the connections close, the board stays mapped.
  void Die() { stop_.store(true); }

  // From now on answers requests with slots of other names.
  void MixNames() { mixes_names_.store(true); }

  // From now on answers GpuMemoryRequests (ignored before) with GPU 3 and, as
  // text, the contents of the descriptor's file.
  void AnswerGpuMemory() { answers_gpu_memory_.store(true); }

  // Once a client has joined.
  const Board& board() const { return *board_; }

  // Once Hold(true) has returned, it reads nothing until Hold(false).
  void Hold(bool hold) {
    holds_.store(hold);
    std::lock_guard lock(serving_);
  }

 private:
  void Run() {
    BoardConfig config;
    config.size = config.local_size = ranks_;
    config.slots = 512;
    config.chunk_bytes = 4096;
    config.ring_depth = 3;
    config.gpu_communicators = gpu_communicators_;
    for (uint32_t i = 0; i < ranks_; ++i) {
      config.global_rank[i] = static_cast<int>(i);
    }
    (void)Board::Create(config, &board_);
    Welcome();
    for (; !stop_.load(); std::this_thread::yield()) Serve();
    clients_.clear();
  }

  void Welcome() {
    clients_.resize(ranks_);
    Fd wake(eventfd(0, EFD_CLOEXEC));
    for (uint32_t i = 0; i < ranks_; ++i) {
      Fd fd;
      (void)AcceptUnix(listener_.get(), &fd);
      Received r;
      (void)ReceiveMessage(fd.get(), session::kMaxHelloBytes, -1, &r);
      session::Hello hello;
      std::vector<std::string> variables;
      (void)session::ParseHello(r.data.data(), r.data.size(),
                                {"the agent", kProtocolVersions}, &hello,
                                &variables);
      TakeDescriptors(fd.get());
      clients_[static_cast<size_t>(hello.local_rank)] = std::move(fd);
    }
    for (uint32_t i = 0; i < ranks_; ++i) {
      auto m = session::Make<session::Welcome>();
      m.local_rank = i;
      const int fds[] = {board_->fd(), wake.get()};
      (void)SendMessage(clients_[i].get(), &m, sizeof(m), fds);
    }
  }

  void Serve() {
    std::lock_guard lock(serving_);
    if (holds_.load()) return;
    std::vector<pollfd> p;
    for (Fd& c : clients_) p.push_back({c.get(), POLLIN, 0});
    poll(p.data(), p.size(), 5);
    for (uint32_t i = 0; i < ranks_; ++i) {
      if (p[i].revents != 0 && clients_[i].valid()) Read(i);
    }
  }

  void Read(uint32_t i) {
    Received r;
    (void)ReceiveMessage(clients_[i].get(), session::kMaxMessageBytes, 0, &r);
    session::SlotRequest request;
    session::Goodbye bye;
    session::GpuMemoryRequest memory;
    if (r.data.empty()) {
      clients_[i].Reset();
      board_->Abort(Code::kAborted, "rank " + std::to_string(i) + " died");
    } else if (session::Parse(r.data.data(), r.data.size(), &request).ok()) {
      auto reply = session::Make<session::SlotReply>();
      reply.request = request.request;
      reply.slot = slots_
                       .emplace(std::to_string(request.kind) + request.name,
                                slots_.size())
                       .first->second;
      board_->Allot(reply.slot, request.process_set,
                    static_cast<Kind>(request.kind),
                    mixes_names_ ? "?" : request.name,
                    (uint64_t{1} << ranks_) - 1, reply.slot + 1);
      (void)SendMessage(clients_[i].get(), &reply, sizeof(reply));
      board_->WakeRank(i);
    } else if (session::Parse(r.data.data(), r.data.size(), &memory).ok()) {
      if (answers_gpu_memory_) Answer(i, memory, r.fds);
    } else if (session::Parse(r.data.data(), r.data.size(), &bye).ok()) {
      clients_[i].Reset();
      const std::string who = "rank " + std::to_string(i);
      if (bye.pending > 0) {
        board_->Abort(Code::kAborted, who + " left with operations pending");
      }
    }
  }

  void Answer(uint32_t i, const session::GpuMemoryRequest& request,
              const std::vector<Fd>& fds) {
    auto reply = session::Make<session::GpuMemoryReply>();
    reply.number = request.number;
    reply.gpu = 3;
    if (!fds.empty()) {
      (void)!pread(fds[0].get(), reply.text, sizeof(reply.text) - 1, 0);
    }
    (void)SendMessage(clients_[i].get(), &reply, sizeof(reply));
    board_->WakeRank(i);
  }

  const uint32_t ranks_;
  const uint32_t gpu_communicators_;
  Fd listener_;
  std::unique_ptr<Board> board_;
  std::vector<Fd> clients_;
  std::map<std::string, uint32_t> slots_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> mixes_names_{false};
  std::atomic<bool> answers_gpu_memory_{false};
  std::atomic<bool> holds_{false};
  std::mutex serving_;
  std::thread thread_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_FAKE_EXECUTOR_H_
