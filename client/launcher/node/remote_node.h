// RemoteNode: another host of the job, as the head (maypolerun) sees it.
//
// Purpose: starts ssh, exchanges messages with the maypolerun at its other end
// (node_runner.h), and reports what happens there as NodeEvents.
//
//   state      entered when                     left when it receives
//   kCalling   ssh was started                  NodeHello
//   kGreeted   NodeHello came                   NodeReady, after our NodeJob
//   kReady     its agent runs; ranks may start  -
//   kLost      it refused, sent invalid data,   -
//              or ssh ended unexpectedly
// Finish() may be called in any state; afterwards nothing counts as a loss.
//
// Thread contract: not synchronized; all work is done in an OutputLoop.
//
// Invariant: events name only ranks of this node.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "client/launcher/hosts/hosts.h"
#include "client/launcher/hosts/ssh.h"
#include "client/launcher/node/node_protocol.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/output/frame_outlet.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/output_stream.h"
#include "client/launcher/process/child_process.h"
#include "common/status.h"

namespace maypole::launcher {

class RemoteNode {
 public:
  struct Settings {
    Host host;
    int node = 0;
    int first_rank = 0;
    SshSettings ssh;
    Sink* log = nullptr;  // for ssh's stderr, if verbose
    int log_stream_id = 0;
    bool verbose = false;
    rlimit files = {};  // ssh's limit of open files
  };

  // Called when the node is lost, with the reason; all its ranks then count as
  // ended.
  using OnLost = std::function<void(const std::string& why)>;
  RemoteNode(OutputLoop* loop, Settings settings, NodeEvents events,
             OnLost on_lost);
  RemoteNode(const RemoteNode&) = delete;
  RemoteNode& operator=(const RemoteNode&) = delete;

  Status Start();
  // Of an elastic job, the node owns the ranks that it was told to start.
  void Send(const ToNode& message);
  // Closes the input of the maypolerun there, which then ends all processes.
  void Finish();
  // Kills ssh and counts the node as lost, with this reason.
  void GiveUp(const std::string& why);
  // From now on its messages are read even while an outlet is full.
  void Hurry() { ssh_.NeverPause(); }
  void Mute() { ssh_errors_.Mute(); }

  bool greeted() const { return state_ != State::kCalling; }
  bool ready() const { return state_ == State::kReady; }
  bool lost() const { return state_ == State::kLost; }
  // ssh has ended.
  bool ended() const { return !ssh_.running(); }
  pid_t pid() const { return ssh_.pid(); }

  const Host& host() const { return settings_.host; }
  int node() const { return settings_.node; }
  int first_rank() const { return settings_.first_rank; }
  // This machine's address as the node sees it; empty: unknown.
  const std::string& head_address() const { return head_address_; }
  const std::string& agent() const { return agent_; }
  bool Owns(int rank) const { return ranks_.contains(rank); }

 private:
  enum class State { kCalling, kGreeted, kReady, kLost };

  void OnBytes(std::string_view bytes);
  void OnMessage(const FromNode& message);
  // Whether the node may report about this rank. If not, the node is lost.
  bool MaySpeakOf(int rank);
  void OnSshEnd(Exit exit);
  void Lose(const std::string& why);

  OutputLoop* loop_;
  Settings settings_;
  NodeEvents events_;
  OnLost on_lost_;
  std::set<int> ranks_;
  State state_ = State::kCalling;
  bool ranks_started_ = false;
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
