#include "client/launcher/remote_node.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <utility>
#include <variant>

#include "client/launcher/options.h"
#include "client/launcher/placement.h"

namespace maypole::launcher {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kMaxDrainReads = 64;

Status Pipe(Fd* reader, Fd* writer) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  *reader = Fd(ends[0]);
  *writer = Fd(ends[1]);
  return Status();
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  return environment;
}

}  // namespace

RemoteNode::RemoteNode(EventLoop* loop, Settings settings, Events events)
    : loop_(loop),
      settings_(std::move(settings)),
      events_(std::move(events)),
      ssh_errors_(loop),
      agent_log_(loop) {}

RemoteNode::~RemoteNode() {
  CloseOutput();
  if (!ended_ && ssh_.pidfd.valid()) loop_->Unwatch(end_watch_);
  if (input_) loop_->RemoveOutlet(input_.get());
}

Status RemoteNode::Start() {
  SpawnSpec spec;
  Status status = FindProgram(kSshProgram, &spec.program);
  if (!status.ok()) {
    return Status(status.code(), status.message() +
                                     ": install it (openssh-client) to start "
                                     "ranks on " +
                                     settings_.host.name);
  }
  Fd in_reader, in_writer, out_writer, err_writer;
  if (status = Pipe(&in_reader, &in_writer); !status.ok()) return status;
  if (status = Pipe(&output_, &out_writer); !status.ok()) return status;
  fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  status = ssh_errors_.Open({.id = settings_.first_stream_id,
                             .prefix = "[ssh " + settings_.host.name + "] ",
                             .sink = settings_.log},
                            &err_writer);
  if (!status.ok()) return status;
  // What it says is told in our words if it fails.
  if (!settings_.verbose) ssh_errors_.Mute();
  status = agent_log_.Open({.id = settings_.first_stream_id + 1,
                            .prefix = "[" + NodeName(settings_.node) + "] ",
                            .sink = settings_.log});
  if (!status.ok()) return status;
  spec.argv = SshArguments(settings_.host.name, settings_.ssh);
  spec.environment = OwnEnvironment();
  spec.stdin_fd = in_reader.get();
  spec.stdout_fd = out_writer.get();
  spec.stderr_fd = err_writer.get();
  spec.death_signal = SIGKILL;
  spec.files = settings_.files;
  status = Spawn(spec, &ssh_);
  if (!status.ok()) return status;
  input_ = std::make_unique<FrameOutlet>(std::move(in_writer), 0);
  loop_->AddOutlet(input_.get());
  end_watch_ = loop_->Watch(EventLoop::kControl, ssh_.pidfd.get(),
                            [this] { OnSshEnd(); });
  WatchOutput();
  return Status();
}

void RemoteNode::WatchOutput() {
  if (!output_.valid()) return;
  if (output_watch_ != 0) loop_->Unwatch(output_watch_);
  output_watch_ =
      loop_->Watch(hurried_ ? EventLoop::kControl : EventLoop::kOutput,
                   output_.get(), [this] { ReadOnce(); });
}

void RemoteNode::CloseOutput() {
  if (!output_.valid()) return;
  loop_->Unwatch(output_watch_);
  output_watch_ = 0;
  output_.Reset();
}

bool RemoteNode::ReadOnce() {
  char buffer[kReadBytes];
  ssize_t n = read(output_.get(), buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    CloseOutput();  // ssh's end comes next, and tells why
    return false;
  }
  OnBytes(std::string_view(buffer, static_cast<size_t>(n)));
  return true;
}

void RemoteNode::OnBytes(std::string_view bytes) {
  if (lost()) return;
  if (!preamble_read_) {
    std::string rest;
    preamble_read_ = preamble_.Feed(bytes, &rest);
    if (!preamble_read_) {
      if (preamble_.overrun()) {
        Lose(
            "something there prints without end when a shell starts: its "
            "login scripts must be silent for ssh");
      }
      return;
    }
    if (preamble_.protocol() != kNodeProtocol ||
        preamble_.version() != kVersion) {
      Lose("maypolerun there is version " + preamble_.version() +
           ", and here " + kVersion + ": install the same on all hosts");
      return;
    }
    frames_.Feed(rest);
  } else {
    frames_.Feed(bytes);
  }
  std::optional<NodeMessage> message;
  while (!lost()) {
    Status status = frames_.Next(&message);
    if (!status.ok()) return Lose(status.message());
    if (!message) return;
    OnMessage(*message);
  }
}

bool RemoteNode::Owns(int rank) const {
  return rank >= settings_.first_rank &&
         rank < settings_.first_rank + settings_.host.ranks;
}

void RemoteNode::OnMessage(const NodeMessage& message) {
  if (const auto* hello = std::get_if<NodeHello>(&message)) {
    head_address_ = hello->head_address;
    if (state_ == State::kCalling) state_ = State::kGreeted;
    return;
  }
  if (const auto* ready = std::get_if<NodeReady>(&message)) {
    agent_ = ready->agent;
    if (state_ == State::kGreeted) state_ = State::kReady;
    return;
  }
  if (const auto* refused = std::get_if<NodeRefused>(&message)) {
    return Lose(refused->why);
  }
  if (const auto* lost = std::get_if<DaemonLost>(&message)) {
    if (!finishing_) events_.on_daemon_lost(lost->what);
    return;
  }
  if (const auto* output = std::get_if<RankOutput>(&message)) {
    if (output->rank == kLogOfTheNode) return agent_log_.Take(output->bytes);
    if (Owns(output->rank) && (output->stream == 0 || output->stream == 1)) {
      return events_.on_output(output->rank, output->stream, output->bytes);
    }
  }
  if (const auto* started = std::get_if<RankStarted>(&message)) {
    if (Owns(started->rank)) {
      return events_.on_rank_started(started->rank, started->pid);
    }
  }
  if (const auto* rank = std::get_if<RankEnded>(&message)) {
    if (Owns(rank->rank)) {
      return events_.on_rank_ended(
          rank->rank, {.signaled = rank->signaled, .value = rank->value});
    }
  }
  Lose("what came through ssh makes no sense (a message about another's rank)");
}

void RemoteNode::OnSshEnd() {
  std::optional<Exit> exit = Reap(ssh_.pid);
  if (!exit) return;
  ended_ = true;
  loop_->Unwatch(end_watch_);
  ssh_.pidfd.Reset();
  for (int i = 0; i < kMaxDrainReads && output_.valid() && ReadOnce(); ++i) {
  }
  CloseOutput();
  ssh_errors_.Drain();
  agent_log_.OnTime(Time::max());
  Lose(WhySshEnded({.host = settings_.host.name,
                    .exit = *exit,
                    .greeted = preamble_read_,
                    .lines = ssh_errors_.tail().Lines(),
                    .chatter = preamble_.chatter(),
                    .settings = settings_.ssh}));
  ssh_errors_.Close();
}

void RemoteNode::Lose(const std::string& why) {
  if (lost()) return;
  state_ = State::kLost;
  bool expected = finishing_;
  Finish();
  if (!expected) events_.on_lost(why);
}

void RemoteNode::Send(const NodeMessage& message) {
  if (input_ && !finishing_) input_->Send(message);
}

void RemoteNode::Finish() {
  finishing_ = true;
  if (input_) input_->Close();
}

void RemoteNode::GiveUp(const std::string& why) {
  if (!ended_) kill(ssh_.pid, SIGKILL);
  Lose(why);
}

void RemoteNode::Hurry() {
  if (std::exchange(hurried_, true)) return;
  WatchOutput();
}

void RemoteNode::Mute() {
  agent_log_.Mute();
  ssh_errors_.Mute();
}

std::optional<Time> RemoteNode::deadline() const {
  return agent_log_.deadline();
}

void RemoteNode::OnTime(Time now) {
  agent_log_.OnTime(now);
  ssh_errors_.OnTime(now);
}

}  // namespace maypole::launcher
