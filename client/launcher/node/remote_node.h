// RemoteNode: another host of the job, as the head of the job sees it.
//
// Purpose: starts ssh, talks with the maypolerun at its other end
// (node_runner.h), and tells what happens there.
//
//   state      entered when                     left by
//   kCalling   ssh was started                  the node's hello
//   kGreeted   it said hello                    its ready, after our NodeJob
//   kReady     its agent runs; ranks may        -
//   kLost      it refused, talks nonsense, or   -
//              ssh ended unasked
// Finish() may come in any state; after it nothing is a loss.
//
// Thread contract: not synchronized; driven by an OutputLoop.
//
// Invariant: a rank that events name is one of this node's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_REMOTE_NODE_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
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
    Sink* log = nullptr;  // of ssh's lines, with verbose
    int log_stream_id = 0;
    bool verbose = false;
    rlimit files = {};  // that ssh may have
  };

  // on_lost: the node is lost, and why: no rank there lives on.
  RemoteNode(OutputLoop* loop, Settings settings, NodeEvents events,
             std::function<void(const std::string& why)> on_lost);
  RemoteNode(const RemoteNode&) = delete;
  RemoteNode& operator=(const RemoteNode&) = delete;

  Status Start();
  void Send(const ToNode& message);
  // All there shall end: by the end of the file that it reads.
  void Finish();
  // The host does not answer: gives it up, with this reason.
  void GiveUp(const std::string& why);
  // From now on what it says is taken even if nobody reads our output.
  void Hurry() { ssh_.NeverPause(); }
  void Mute() { ssh_errors_.Mute(); }

  bool greeted() const { return state_ != State::kCalling; }
  bool ready() const { return state_ == State::kReady; }
  bool lost() const { return state_ == State::kLost; }
  // ssh is gone.
  bool ended() const { return !ssh_.running(); }
  pid_t pid() const { return ssh_.pid(); }

  const Host& host() const { return settings_.host; }
  int node() const { return settings_.node; }
  int first_rank() const { return settings_.first_rank; }
  // As the node sees this machine; empty: it does not know.
  const std::string& head_address() const { return head_address_; }
  const std::string& agent() const { return agent_; }
  bool Owns(int rank) const;

 private:
  enum class State { kCalling, kGreeted, kReady, kLost };

  void OnBytes(std::string_view bytes);
  void OnMessage(const FromNode& message);
  // False, and the node is lost, if it must not.
  bool MaySpeakOf(int rank);
  void OnSshEnd(Exit exit);
  void Lose(const std::string& why);

  OutputLoop* loop_;
  Settings settings_;
  NodeEvents events_;
  std::function<void(const std::string&)> on_lost_;
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
