// GpuMemoryExecutor: the executor's side of shared GPU memory, for tests. It is
// a process with fake GPUs of its own (gpu_memory_executor_main.cc, which lists
// its behaviours).
//
//   GpuMemoryExecutor executor("good", "devices=1");
//   executor.OnReply([&](const session::GpuMemoryReply& reply) { ... });
//   Status s = executor.Send(request, fd);
//
// Thread contract: OnReply() before Send(); a separate thread calls the
// handler, until the destructor.
#ifndef MAYPOLE_CLIENT_TESTING_GPU_MEMORY_EXECUTOR_H_
#define MAYPOLE_CLIENT_TESTING_GPU_MEMORY_EXECUTOR_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "common/wire/unix_socket.h"

namespace maypole {

class GpuMemoryExecutor {
 public:
  // The executor adds 1 to each byte, and answers with the same message.
  struct Touch {
    uint64_t place;
    uint64_t bytes;
  };

  // `gpus` is its $MAYPOLE_FAKE_CUDA.
  GpuMemoryExecutor(const std::string& behaviour, const std::string& gpus) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      std::abort();
    }
    connection_ = Fd(pair[0]);
    const Fd other(pair[1]);
    const std::string program = Runfiles() + "/client/gpu_memory_executor";
    const std::string variable = "MAYPOLE_FAKE_CUDA=" + gpus;
    const char* const arguments[] = {program.c_str(), behaviour.c_str(),
                                     nullptr};
    const char* const environment[] = {variable.c_str(), nullptr};
    process_ = fork();
    if (process_ == 0) {
      // The fake driver is found from the runfiles' root.
      const bool ready = chdir(Runfiles().c_str()) == 0 &&
                         (other.get() == 3 ? fcntl(3, F_SETFD, 0) == 0
                                           : dup2(other.get(), 3) == 3);
      if (ready) {
        execve(arguments[0], const_cast<char* const*>(arguments),
               const_cast<char* const*>(environment));
      }
      _exit(127);
    }
    thread_ = std::thread([this] { Read(); });
  }
  ~GpuMemoryExecutor() {
    shutdown(connection_.get(), SHUT_RDWR);
    thread_.join();
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  void OnReply(std::function<void(const session::GpuMemoryReply&)> handler) {
    handler_ = std::move(handler);
  }
  Status Send(const session::GpuMemoryRequest& request, int fd) {
    requests_.fetch_add(1);
    return SendMessage(connection_.get(), &request, sizeof(request),
                       std::span(&fd, fd < 0 ? 0 : 1));
  }
  int requests() const { return requests_.load(); }

  // Waits until it is done.
  void TouchAndWait(uint64_t place, uint64_t bytes) {
    const int before = touched_.load();
    const Touch touch = {place, bytes};
    (void)SendMessage(connection_.get(), &touch, sizeof(touch));
    while (touched_.load() == before && !over_.load()) {
      std::this_thread::yield();
    }
  }

 private:
  static const std::string& Runfiles() {
    static const auto& root =
        *new std::string(std::string(std::getenv("TEST_SRCDIR")) + "/" +
                         std::getenv("TEST_WORKSPACE"));
    return root;
  }

  void Read() {
    for (;;) {
      Received r;
      const Status s =
          ReceiveMessage(connection_.get(), session::kMaxMessageBytes, -1, &r);
      if (!s.ok() || r.data.empty()) break;
      session::GpuMemoryReply reply;
      if (r.data.size() == sizeof(Touch)) {
        touched_.fetch_add(1);
      } else if (session::Parse(r.data.data(), r.data.size(), &reply).ok() &&
                 handler_ != nullptr) {
        handler_(reply);
      }
    }
    over_.store(true);
  }

  Fd connection_;
  pid_t process_ = -1;
  std::function<void(const session::GpuMemoryReply&)> handler_;
  std::atomic<int> requests_{0}, touched_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_GPU_MEMORY_EXECUTOR_H_
