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
// Thread contract: not synchronized; driven by an EventLoop.
//
// Invariant: a rank that events name is one of this node's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_REMOTE_NODE_H_
#define MAYPOLE_CLIENT_LAUNCHER_REMOTE_NODE_H_

#include <sys/resource.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/launcher/events.h"
#include "client/launcher/frame_outlet.h"
#include "client/launcher/hosts.h"
#include "client/launcher/node_protocol.h"
#include "client/launcher/output_stream.h"
#include "client/launcher/process.h"
#include "client/launcher/ssh.h"
#include "common/status.h"

namespace maypole::launcher {

class RemoteNode {
 public:
  struct Settings {
    Host host;
    int node = 0;
    int first_rank = 0;
    SshSettings ssh;
    Sink* log = nullptr;      // of the agent's lines, and with verbose of ssh's
    int first_stream_id = 0;  // two are used
    bool verbose = false;
    rlimit files = {};
  };
  struct Events {
    std::function<void(int rank, pid_t pid)> on_rank_started;
    std::function<void(int rank, int stream, std::string_view)> on_output;
    std::function<void(int rank, Exit exit)> on_rank_ended;
    std::function<void(const std::string& what)> on_daemon_lost;
    // What was lost, and why: no rank there lives on.
    std::function<void(const std::string& why)> on_lost;
  };

  RemoteNode(EventLoop* loop, Settings settings, Events events);
  ~RemoteNode();
  RemoteNode(const RemoteNode&) = delete;
  RemoteNode& operator=(const RemoteNode&) = delete;

  Status Start();
  void Send(const NodeMessage& message);
  // All there shall end: by the end of the file that it reads.
  void Finish();
  // The host does not answer: gives it up, with this reason.
  void GiveUp(const std::string& why);
  // From now on what it says is taken even if nobody reads our output.
  void Hurry();
  void Mute();

  bool greeted() const { return state_ != State::kCalling; }
  bool ready() const { return state_ == State::kReady; }
  bool lost() const { return state_ == State::kLost; }
  // ssh is gone.
  bool ended() const { return ended_; }
  pid_t pid() const { return ssh_.pid; }

  const Host& host() const { return settings_.host; }
  int node() const { return settings_.node; }
  int first_rank() const { return settings_.first_rank; }
  // As the node sees this machine; empty: it does not know.
  const std::string& head_address() const { return head_address_; }
  const std::string& agent() const { return agent_; }
  bool Owns(int rank) const;

  std::optional<Time> deadline() const;
  void OnTime(Time now);

 private:
  enum class State { kCalling, kGreeted, kReady, kLost };

  bool ReadOnce();  // false: nothing was there
  void OnBytes(std::string_view bytes);
  void OnMessage(const NodeMessage& message);
  void OnSshEnd();
  void Lose(const std::string& why);
  void WatchOutput();
  void CloseOutput();

  EventLoop* loop_;
  Settings settings_;
  Events events_;
  State state_ = State::kCalling;
  bool finishing_ = false;
  bool ended_ = false;
  bool hurried_ = false;
  bool preamble_read_ = false;

  Child ssh_;
  EventLoop::WatchId end_watch_ = 0;
  EventLoop::WatchId output_watch_ = 0;
  Fd output_;
  std::unique_ptr<FrameOutlet> input_;
  OutputStream ssh_errors_;
  OutputStream agent_log_;
  PreambleReader preamble_;
  FrameReader frames_{kMaxNodeFrameBytes};
  std::string head_address_;
  std::string agent_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_REMOTE_NODE_H_
