#include "client/launcher/node/remote_node.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "client/launcher/process/function_files.h"
#include "client/launcher/process/process.h"
#include "common/version.h"

namespace maypole::launcher {

RemoteNode::RemoteNode(OutputLoop* loop, Settings settings)
    : loop_(loop),
      settings_(std::move(settings)),
      ssh_(loop,
           {.spawn = {.arguments =
                          SshArguments(settings_.host.name, settings_.ssh),
                      .process_group = ProcessGroup::kNew,
                      .death_signal = SIGKILL,
                      .open_files = settings_.files},
            .out = [this](std::string_view bytes) { OnBytes(bytes); },
            .err = [this](std::string_view bytes) { ssh_errors_.Take(bytes); },
            .on_end = [this](Exit exit) { OnSshEnd(exit); }}) {}

Status RemoteNode::FindSsh(const Host& host, std::string* program) {
  const Status status = FindProgram(kSshProgram, program);
  if (status.ok()) return status;
  return Status(status.code(),
                status.message() +
                    ": install it (openssh-client) to start ranks on " +
                    host.name);
}

Status RemoteNode::Start() {
  std::string program;
  Status status = FindSsh(settings_.host, &program);
  if (!status.ok()) return status;
  // If ssh fails, WhySshEnded() reports the reason, also without `log`.
  status = ssh_errors_.Open({.id = settings_.log_stream_id,
                             .prefix = "[ssh " + settings_.host.name + "] ",
                             .sink = settings_.log});
  if (!status.ok()) return status;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const Fd reader(ends[0]);
  status = input_.Open(loop_, Fd(ends[1]));
  if (status.ok()) status = ssh_.Start(program, reader.get());
  if (!status.ok() || settings_.function.empty()) return status;
  return ReadInParts(settings_.function, [this](std::string_view part) {
    ToNode message;
    message.mutable_function_part()->set_bytes(std::string(part));
    Send(message);
  });
}

bool RemoteNode::Ready() {
  if (greeted() && !std::exchange(described_, true)) {
    ToNode message;
    *message.mutable_job() = settings_.describe(*this);
    Send(message);
  }
  return ready();
}

void RemoteNode::OnBytes(std::string_view bytes) {
  if (lost()) return;
  std::string rest;
  if (!preamble_read_) {
    preamble_read_ = preamble_.Feed(bytes, &rest);
    if (preamble_.overrun() && !preamble_read_) {
      Lose(
          "a shell that starts there prints too much: its login scripts must "
          "print nothing for ssh");
    }
    if (!preamble_read_) return;
    if (preamble_.protocol() != kNodeProtocol ||
        preamble_.version() != kVersion) {
      return Lose("maypolerun there is version " + preamble_.version() +
                  ", but here it is " + kVersion +
                  ": install the same version on all hosts");
    }
    bytes = rest;
  }
  frames_.Feed(bytes);
  FromNode message;
  bool found = true;
  while (!lost() && found) {
    Status status = frames_.Next(&message, &found);
    if (!status.ok()) return Lose(status.message());
    if (found) OnMessage(message);
  }
}

void RemoteNode::OnMessage(const FromNode& message) {
  NodeListener* const listener = settings_.listener;
  switch (message.kind_case()) {
    case FromNode::kHello:
      head_address_ = message.hello().head_address();
      if (state_ == State::kCalling) state_ = State::kGreeted;
      return;
    case FromNode::kReady:
      agent_ = message.ready().agent();
      if (state_ == State::kGreeted) state_ = State::kReady;
      return;
    case FromNode::kRefused:
      return Lose(message.refused().why());
    case FromNode::kDaemonLost:
      if (!finishing_) {
        // Other hosts have only agents. Those of elastic jobs are restarted,
        // which only the text says: for the job nothing changes.
        listener->OnDaemonLost(
            host().name + ": " + message.daemon_lost().what(), false);
      }
      return;
    case FromNode::kRankStarted:
      return OnRank(message.rank_started().rank(), message);
    case FromNode::kRankJoined:
      return OnRank(message.rank_joined().rank(), message);
    case FromNode::kRankOutput: {
      const RankOutput& output = message.rank_output();
      if (output.stream() != RankOutput::AGENT_LOG) {
        return OnRank(output.rank(), message);
      }
      return listener->OnDaemonLog(settings_.name, output.bytes());
    }
    case FromNode::kRankEnded:
      running_.erase(message.rank_ended().rank());
      return OnRank(message.rank_ended().rank(), message);
    case FromNode::KIND_NOT_SET:
      return Lose(
          Garbled("a message that this version does not know").message());
  }
}

void RemoteNode::OnRank(int rank, const FromNode& message) {
  if (ranks_.contains(rank)) return settings_.listener->OnRank(message);
  Lose(Garbled("a message about a rank of another node").message());
}

void RemoteNode::OnSshEnd(Exit exit) {
  ssh_.CloseOutput();
  Lose(WhySshEnded({.host = settings_.host.name,
                    .exit = exit,
                    .greeted = preamble_read_,
                    .lines = ssh_errors_.tail().Lines(),
                    .chatter = preamble_.chatter(),
                    .settings = settings_.ssh}));
  ssh_errors_.Flush();
}

void RemoteNode::Lose(const std::string& why) {
  if (lost()) return;
  state_ = State::kLost;
  running_.clear();
  bool expected = finishing_;
  Stop();
  if (!expected) settings_.on_lost(why);
}

void RemoteNode::Send(const ToNode& message) {
  if (!finishing_) input_.Send(message);
}

Status RemoteNode::StartProcess(int process, int slot) {
  ranks_.insert(process);
  running_.insert(process);
  ToNode message;
  message.mutable_start_rank()->set_rank(process);
  message.mutable_start_rank()->set_slot(slot);
  Send(message);
  return Status();
}

void RemoteNode::SignalProcess(int process, int signal) {
  ToNode message;
  message.mutable_signal_ranks()->set_signal(signal);
  message.mutable_signal_ranks()->set_only(process);
  Send(message);
}

void RemoteNode::SignalAll(int signal, bool hurry) {
  ToNode message;
  message.mutable_signal_ranks()->set_signal(signal);
  message.mutable_signal_ranks()->set_hurry(hurry);
  Send(message);
}

void RemoteNode::Stop() {
  finishing_ = true;
  input_.Close();
}

void RemoteNode::GiveUp(const std::string& why) {
  ssh_.Signal(SIGKILL);
  Lose(why);
}

}  // namespace maypole::launcher
