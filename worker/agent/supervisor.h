// Supervisor: owns the agent's socket, admits clients and starts executors.
//
// Purpose: checks each client's uid, protocol version and token, then hands its
// connection to the executor of its job, and starts that executor if there is
// none. A failure of one job stays within its executor.
//
// The supervisor never waits for a client: a connection that has not sent Hello
// is "half open", and the number and age of half-open connections are bounded.
// Nor does it wait for the system: the executor makes the calls that may hang
// (looking up a user's groups).
//
// Executors run with the rights of their job's user. So an executor does not
// get the cluster secret, but a ticket that admits to its job only
// (common/program/job_ticket.h).
//
//   Supervisor supervisor(std::move(options), metrics);
//   supervisor.Listen();                  // absl::Status, as Run()
//   supervisor.Run(std::move(signalfd));  // returns after SIGTERM
//
// Thread contract: one thread; the metrics have their own lock.
//
// Invariants: an executor serves one (uid, job); the first client's token is
// the token of that job until its executor ends, and the first client's
// variables are those of the executor; a connection that was handed over is no
// longer watched here.
#ifndef MAYPOLE_WORKER_AGENT_SUPERVISOR_H_
#define MAYPOLE_WORKER_AGENT_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
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
  std::string secret;  // the cluster's; executors get a ticket of their job
  bool share_secret = false;  // executors get the secret itself
  Fd tls;                     // sealed_tls.h, for executors; invalid: no TLS
  std::vector<std::string> executor_arguments;
  // The agent's name in messages, and the versions that it speaks with clients.
  Speaker speaker = {"this agent", kProtocolVersions};
  // Called when a rank was accepted that has called init(); may be empty.
  std::function<void(const session::Hello&)> on_rank = {};
};

class Supervisor {
 public:
  Supervisor(SupervisorOptions options, std::shared_ptr<WorkerMetrics> metrics);
  ~Supervisor();

  // Call before other threads exist (see ListenUnix).
  absl::Status Listen();
  // Runs until stop_signals is readable, then ends the executors.
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
    WatchedFd end;
    WatchedFd control;  // invalid: the executor is about to end
    uint64_t handed_over = 0;
    Time last_handed_over;
    bool stuck = false;  // the log says so
  };
  using Variables = std::vector<std::string>;  // common/wire/job_variables.h
  using JobKey = std::pair<uid_t, std::string>;

  // A connection that has sent Hello and is no longer in loop_.
  struct Client {
    Fd socket;
    PeerCredentials peer;
  };

  void Accept();
  Status TakeIn(Fd socket);
  void OnHello(uint64_t id);
  absl::Status Admit(const session::Hello& hello, const Variables& variables,
                     const Client& client);
  absl::StatusOr<Executor*> ExecutorFor(const session::Hello& hello,
                                        const Variables& variables,
                                        const PeerCredentials& peer);
  absl::StatusOr<Executor*> StartExecutor(const session::Hello& hello,
                                          const Variables& variables,
                                          const PeerCredentials& peer);
  absl::Status HandOver(const session::Hello& hello, const Client& client,
                        Executor* executor);
  absl::Status CheckLimits(const PeerCredentials& peer) const;
  Status WatchExecutor(uint64_t id, Fd control, Fd end);
  // `hello`: what the client has sent; may be empty.
  void Refuse(const Client& client, const std::vector<char>& hello, Code code,
              const std::string& text);
  void OnExecutorMessage(uint64_t id);
  void OnExecutorEnded(uint64_t id);
  // Reports executors that do not take their clients: ranks wait, and cannot
  // know that they wait for an executor.
  void ReportStuckExecutors();
  bool IsSilent(uint64_t id);
  void DropOldestHalfOpen();
  void DropLateHalfOpen();
  void OnAcceptFailed(const Status& why);
  void EndExecutors();

  const SupervisorOptions options_;
  const std::shared_ptr<WorkerMetrics> metrics_;
  EventLoop loop_;  // declared before everything that it watches
  WatchedFd listener_;
  WatchedFd stop_signals_;
  bool stop_ = false;
  LoopTimer hello_timer_;       // set while there is a half-open connection
  LoopTimer resume_timer_;      // set while accepting is paused
  LoopTimer stuck_timer_;       // set after a client was handed over
  Time failed_;                 // when the last accept failed
  bool cannot_accept_ = false;  // the log says so
  uint64_t next_id_ = 1;
  std::map<uint64_t, HalfOpen> half_open_;  // oldest first
  std::map<uint64_t, Executor> executors_;
  std::map<JobKey, uint64_t> by_job_;  // executors that take clients
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_SUPERVISOR_H_
