// NodeRunner: what `maypolerun --node-of-job` does on another host of a job.
//
// Purpose: started by the head's maypolerun through ssh, it is told what to do
// on its standard input and tells what happens on its standard output
// (node_protocol.h): a NodeSupervisor behind frames. It decides nothing: when
// the head says so, it signals its ranks; when its input ends, because the job
// is over, the head is gone or ssh broke, it ends all that it has started.
//
// Thread contract: one thread; Run() once, in the supervisor (guard.h).
//
// Invariant: when Run() returns, no process started here lives.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_RUNNER_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_RUNNER_H_

#include <sys/signalfd.h>

#include <optional>
#include <string>
#include <string_view>

#include "client/launcher/node/node_protocol.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/output/frame_outlet.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/guard.h"

namespace maypole::launcher {

class NodeRunner {
 public:
  explicit NodeRunner(const Supervised& where);

  // The exit status.
  int Run();

 private:
  NodeEvents EventsToHead();
  Status Prepare();
  void Round();
  void OnInput();
  void OnMessage(ToNode* message);
  void OnSignal(const signalfd_siginfo& info);
  Status TakeJob(NodeJob job);
  void SendOutput(int rank, RankOutput::Stream stream, std::string_view bytes);
  void Refuse(const std::string& why);

  const std::string directory_;
  OutputLoop loop_;
  FrameOutlet head_;
  WatchedFd input_;
  FrameReader frames_{kMaxJobFrameBytes};
  NodeSupervisor node_;
  enum { kNoJob, kJob, kReady, kRanks } state_ = kNoJob;
  bool ending_ = false;  // the job is over
  bool refused_ = false;
};

// The whole of `maypolerun --node-of-job`.
int RunNodeOfJob();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_RUNNER_H_
