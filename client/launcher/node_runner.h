// NodeRunner: what `maypolerun --node-of-job` does on another host of a job.
//
// Purpose: started by the head's maypolerun through ssh, it is told what to do
// on its standard input and tells what happens on its standard output
// (node_protocol.h). It starts a maypole-worker, then its ranks. It decides
// nothing: when the head says so, it signals its ranks; when its input ends,
// because the job is over, the head is gone or ssh broke, it ends all that it
// has started.
//
// Thread contract: one thread; Run() once, in the supervisor (guard.h).
//
// Invariant: when Run() returns, no process started here lives.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_RUNNER_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_RUNNER_H_

#include <sys/resource.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/daemons.h"
#include "client/launcher/events.h"
#include "client/launcher/frame_outlet.h"
#include "client/launcher/guard.h"
#include "client/launcher/node_protocol.h"
#include "client/launcher/output_stream.h"
#include "client/launcher/placement.h"
#include "client/launcher/process.h"

namespace maypole::launcher {

class NodeRunner {
 public:
  explicit NodeRunner(Supervised where);
  ~NodeRunner();

  // The exit status.
  int Run();

 private:
  struct Rank {
    int rank = 0;
    Child child;
    EventLoop::WatchId watch = 0;
    bool alive = false;
    std::unique_ptr<OutputStream> out, err;
  };

  Status Prepare();
  void Round(std::optional<Time> deadline);
  void OnInput();
  void OnMessage(NodeMessage* message);
  void OnSignals();
  Status TakeJob();
  Status StartAgent();
  Status StartRanks();
  Status StartRank(const JobEnvironment& job, const Place& place);
  void OnRankEnd(Rank* rank);
  void SendOutput(int rank, int stream, std::string_view bytes);
  void Refuse(const std::string& why);
  std::set<pid_t> KnownProcesses() const;
  void EndRanks();
  void EndDaemons();

  Supervised where_;
  EventLoop loop_;
  FrameOutlet head_;
  EventLoop::WatchId input_watch_ = 0;
  FrameReader frames_{kMaxJobFrameBytes};
  Fd signals_;
  rlimit files_ = {};
  std::optional<NodeJob> job_;
  std::string program_;
  std::string agent_;  // its socket; empty: none is needed
  std::unique_ptr<Daemons> daemons_;
  bool told_ready_ = false;
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool ending_ = false;  // the job is over
  bool hurry_ = false;
  bool refused_ = false;
};

// The whole of `maypolerun --node-of-job`.
int RunNodeOfJob();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_RUNNER_H_
