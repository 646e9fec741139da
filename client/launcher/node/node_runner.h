// NodeRunner: `maypolerun --node-of-job`, which runs a node on another host.
//
// Purpose: connects a NodeSupervisor to the head of the job. The head is the
// maypolerun that has started this one through ssh. NodeRunner reads commands
// from its standard input and reports events on its standard output
// (node_protocol.h). It makes no decisions: it signals its ranks when the head
// requests it. When its input ends, because the job is over, the head is gone
// or ssh broke, it ends all processes that it has started.
//
// Thread contract: one thread; call Run() once, in the supervisor (guard.h).
//
// Invariant: when Run() returns, no process that it started is alive.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_RUNNER_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_RUNNER_H_

#include <sys/signalfd.h>

#include <string>
#include <string_view>

#include "client/launcher/node/node_protocol.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/output/frame_outlet.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/guard.h"

namespace maypole::launcher {

class NodeRunner : private NodeListener {
 public:
  explicit NodeRunner(const Supervised& where);

  // Returns the exit status.
  int Run();

 private:
  void OnRank(const FromNode& message) override { head_.Send(message); }
  void OnDaemonLog(const std::string& daemon, std::string_view bytes) override;
  void OnDaemonLost(const std::string& what, bool returns) override;
  Status Prepare();
  void Round();
  void OnInput();
  void OnMessage(ToNode* message);
  void StartProcess(const StartRank& start);
  void Signal(const SignalRanks& m);
  void OnSignal(const signalfd_siginfo& info);
  Status TakeJob(NodeJob job);
  void Refuse(const std::string& why);

  const std::string directory_;
  OutputLoop loop_;
  FrameOutlet head_;
  WatchedFd input_;
  FrameReader frames_{kMaxJobFrameBytes};
  NodeSupervisor node_;
  int node_number_ = 0;
  enum { kNoJob, kJob, kReady } state_ = kNoJob;
  bool ending_ = false;  // Run() must end all processes and return
  bool refused_ = false;
};

// Runs `maypolerun --node-of-job`, and returns its exit status.
int RunNodeOfJob();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_RUNNER_H_
