// Supervisor: the agent's well-known socket, and the executors behind it.
//
// Purpose: for every client: who is it (peer uid), does it speak our version,
// is its token the job's; then hand its connection to the job's executor, which
// is started if it is not there. One job's trouble stays in its executor.
//
// Nothing here waits for a client: a connection that has not said Hello is
// "half open", a bounded number of them for a bounded time.
//
// Nothing here waits for the system either: what may hang (the look-up of a
// user's groups) is the executor's to do.
//
// Thread contract: one thread; the metrics have their own lock.
//
// Invariants: an executor serves one (uid, job); the first token of a (uid,
// job) is its token until the executor has ended; a connection that was handed
// over is no longer watched here.
#ifndef MAYPOLE_WORKER_AGENT_SUPERVISOR_H_
#define MAYPOLE_WORKER_AGENT_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/event_loop.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "common/wire/unix_socket.h"
#include "worker/agent/metrics.h"
#include "worker/executor/board/stats_page.h"

namespace maypole::worker {

struct SupervisorOptions {
  std::string socket;
  std::string secret;  // the cluster's, for executors
  Fd tls;              // sealed_tls.h, for executors; invalid: no TLS
  std::vector<std::string> executor_arguments;
};

class Supervisor {
 public:
  Supervisor(SupervisorOptions options, std::shared_ptr<WorkerMetrics> metrics);
  ~Supervisor();

  // Before there are other threads (ListenUnix).
  absl::Status Listen();
  // Until a signal can be read from stop_signals; then ends the executors.
  absl::Status Run(Fd stop_signals);

 private:
  using Time = EventLoop::Time;
  struct HalfOpen {
    WatchedFd socket;
    PeerCredentials peer;
    Time since;
  };
  struct Executor {
    std::string job;
    std::string token;
    uid_t uid = 0;
    pid_t pid = 0;
    WatchedFd pidfd;
    WatchedFd control;  // invalid: it is ending
    uint64_t handed_over = 0;
  };
  using JobKey = std::pair<uid_t, std::string>;

  // A connection that has said Hello, off the loop.
  struct Client {
    Fd socket;
    PeerCredentials peer;
  };

  void Accept();
  Status TakeIn(Fd socket);
  void OnHello(uint64_t id);
  absl::Status Admit(const session::Hello& hello, const Client& client);
  absl::StatusOr<Executor*> ExecutorFor(const session::Hello& hello,
                                        const PeerCredentials& peer);
  absl::StatusOr<Executor*> StartExecutor(const session::Hello& hello,
                                          const PeerCredentials& peer);
  absl::Status HandOver(const session::Hello& hello, const Client& client,
                        Executor* executor);
  absl::Status CheckLimits(const PeerCredentials& peer) const;
  Status WatchExecutor(uint64_t id, Fd control, Fd pidfd);
  void Refuse(const Client& client, Code code, const std::string& text);
  void OnExecutorMessage(uint64_t id);
  void OnExecutorEnded(uint64_t id);
  bool IsSilent(uint64_t id);
  void DropOldestHalfOpen();
  void DropLateHalfOpen();
  void OnAcceptFailed(const Status& why);
  void EndExecutors();

  const SupervisorOptions options_;
  const std::shared_ptr<WorkerMetrics> metrics_;
  EventLoop loop_;  // before all that it watches
  WatchedFd listener_;
  WatchedFd stop_signals_;
  bool stop_ = false;
  LoopTimer hello_timer_;       // set while there is a half-open connection
  LoopTimer resume_timer_;      // set while we do not accept
  Time failed_;                 // when the last accept failed
  bool cannot_accept_ = false;  // said so in the log
  uint64_t next_id_ = 1;
  std::map<uint64_t, HalfOpen> half_open_;  // oldest first
  std::map<uint64_t, Executor> executors_;
  std::map<JobKey, uint64_t> by_job_;  // those that take clients
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_SUPERVISOR_H_
