// RemoteNode: another host of the job, as the head (maypolerun) sees it.
//
// Purpose: starts ssh, exchanges messages with the maypolerun at its other end
// (node_runner.h), and reports what happens there to a NodeListener.
//
//   state      entered when                     left when it receives
//   kCalling   ssh was started                  NodeHello
//   kGreeted   NodeHello came                   NodeReady, after our NodeJob
//   kReady     its agent runs; ranks may start  -
//   kLost      it refused, sent invalid data,   -
//              or ssh ended unexpectedly
// Stop() may be called in any state; afterwards nothing counts as a loss.
//
// Thread contract: not synchronized; all work is done in an OutputLoop.
//
// Invariant: the listener receives only events of ranks that StartProcess() has
// started.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_

#include <sys/resource.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "client/launcher/elastic/elastic_job.h"
#include "client/launcher/hosts/hosts.h"
#include "client/launcher/hosts/ssh.h"
#include "client/launcher/node/node_listener.h"
#include "client/launcher/node/node_protocol.h"
#include "client/launcher/output/frame_outlet.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/output_stream.h"
#include "client/launcher/process/child_process.h"
#include "common/status.h"

namespace maypole::launcher {

class RemoteNode : public ElasticNode {
 public:
  struct Settings {
    Host host;
    std::string name;  // of the node: "node1"
    SshSettings ssh;
    Sink* log = nullptr;  // for ssh's stderr; null: it is not shown
    int log_stream_id = 0;
    rlimit files = {};     // ssh's limit of open files
    std::string function;  // file that is sent to the node; empty: none
    // Makes the NodeJob that is sent when the node has greeted.
    std::function<NodeJob(const RemoteNode&)> describe;
    NodeListener* listener;
    // Called when the node is lost, with the reason; all its ranks then count
    // as ended.
    std::function<void(const std::string& why)> on_lost;
  };

  RemoteNode(OutputLoop* loop, Settings settings);
  RemoteNode(const RemoteNode&) = delete;
  RemoteNode& operator=(const RemoteNode&) = delete;

  // The path of ssh.
  static Status FindSsh(const Host& host, std::string* program);
  Status Start();
  bool Ready() override;
  std::string Standing() const override {
    return greeted() ? "not ready" : "no answer through ssh";
  }
  // Kills ssh and counts the node as lost, with this reason.
  void GiveUp(const std::string& why) override;
  Status StartProcess(int process, int slot) override;
  void SignalProcess(int process, int signal) override;
  // hurry: maypolerun is being interrupted.
  void SignalAll(int signal, bool hurry);
  // Closes the input of the maypolerun there, which then ends all processes.
  void Stop() override;
  // From now on its messages are read even while an outlet is full.
  void Hurry() { ssh_.NeverPause(); }

  bool greeted() const { return state_ != State::kCalling; }
  bool ready() const { return state_ == State::kReady; }
  // Whether processes were started there whose end has not been reported.
  bool runs_processes() const { return !running_.empty(); }
  // ssh has ended.
  bool ended() const { return !ssh_.running(); }

  const Host& host() const { return settings_.host; }
  // This machine's address as the node sees it; empty: unknown.
  const std::string& head_address() const { return head_address_; }
  const std::string& agent() const { return agent_; }

 private:
  enum class State { kCalling, kGreeted, kReady, kLost };

  bool lost() const { return state_ == State::kLost; }
  void Send(const ToNode& message);
  void OnBytes(std::string_view bytes);
  void OnMessage(const FromNode& message);
  // Handles a message about this rank. A node that reports a rank not started
  // there is lost.
  void OnRank(int rank, const FromNode& message);
  void OnSshEnd(Exit exit);
  void Lose(const std::string& why);

  OutputLoop* loop_;
  Settings settings_;
  std::set<int> ranks_;    // all that were started
  std::set<int> running_;  // of ranks_
  State state_ = State::kCalling;
  bool described_ = false;  // its NodeJob was sent
  bool finishing_ = false;
  bool preamble_read_ = false;

  ChildProcess ssh_;
  FrameOutlet input_{0};
  OutputStream ssh_errors_;
  PreambleReader preamble_;
  FrameReader frames_{kMaxNodeFrameBytes};
  std::string head_address_;
  std::string agent_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_
