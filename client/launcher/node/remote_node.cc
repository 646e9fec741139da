#include "client/launcher/node/remote_node.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "client/launcher/command/options.h"
#include "client/launcher/process/process.h"
#include "common/version.h"

namespace maypole::launcher {

RemoteNode::RemoteNode(OutputLoop* loop, Settings settings, NodeEvents events,
                       OnLost on_lost)
    : loop_(loop),
      settings_(std::move(settings)),
      events_(std::move(events)),
      on_lost_(std::move(on_lost)),
      ssh_(loop,
           {.spawn = {.arguments =
                          SshArguments(settings_.host.name, settings_.ssh),
                      .process_group = ProcessGroup::kNew,
                      .death_signal = SIGKILL,
                      .open_files = settings_.files},
            .out = [this](std::string_view bytes) { OnBytes(bytes); },
            .err = [this](std::string_view bytes) { ssh_errors_.Take(bytes); },
            .on_end = [this](Exit exit) { OnSshEnd(exit); }}) {
  for (int i = 0; i < settings_.host.ranks; ++i) {
    ranks_.insert(settings_.first_rank + i);
  }
}

Status RemoteNode::Start() {
  std::string program;
  Status status = FindProgram(kSshProgram, &program);
  if (!status.ok()) {
    return Status(status.code(), status.message() +
                                     ": install it (openssh-client) to start "
                                     "ranks on " +
                                     settings_.host.name);
  }
  status = ssh_errors_.Open({.id = settings_.log_stream_id,
                             .prefix = "[ssh " + settings_.host.name + "] ",
                             .sink = settings_.log});
  if (!status.ok()) return status;
  // If ssh fails, WhySshEnded() reports the reason.
  if (!settings_.verbose) ssh_errors_.Mute();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const Fd reader(ends[0]);
  status = input_.Open(loop_, Fd(ends[1]));
  return status.ok() ? ssh_.Start(program, reader.get()) : status;
}

void RemoteNode::OnBytes(std::string_view bytes) {
  if (lost()) return;
  if (!preamble_read_) {
    std::string rest;
    preamble_read_ = preamble_.Feed(bytes, &rest);
    if (!preamble_read_) {
      if (preamble_.overrun()) {
        Lose(
            "a shell that starts there prints too much: its login scripts must "
            "print nothing for ssh");
      }
      return;
    }
    if (preamble_.protocol() != kNodeProtocol ||
        preamble_.version() != kVersion) {
      Lose("maypolerun there is version " + preamble_.version() +
           ", but here it is " + kVersion +
           ": install the same version on all hosts");
      return;
    }
    frames_.Feed(rest);
  } else {
    frames_.Feed(bytes);
  }
  FromNode message;
  bool found = true;
  while (!lost() && found) {
    Status status = frames_.Next(&message, &found);
    if (!status.ok()) return Lose(status.message());
    if (found) OnMessage(message);
  }
}

void RemoteNode::OnMessage(const FromNode& message) {
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
        // Only agents are there. Those of elastic jobs are started again, which
        // only the text says: the job is the same.
        events_.on_daemon_lost(message.daemon_lost().what(), false);
      }
      return;
    case FromNode::kRankStarted: {
      const RankStarted& started = message.rank_started();
      if (!MaySpeakOf(started.rank())) return;
      return events_.on_rank_started(started.rank(), started.pid());
    }
    case FromNode::kRankJoined: {
      const int rank = message.rank_joined().rank();
      if (MaySpeakOf(rank)) events_.on_rank_joined(rank);
      return;
    }
    case FromNode::kRankOutput: {
      const RankOutput& output = message.rank_output();
      if (output.stream() == RankOutput::AGENT_LOG) {
        return events_.on_daemon_log(NodeName(node()), output.bytes());
      }
      if (!MaySpeakOf(output.rank())) return;
      if (output.stream() == RankOutput::RESULT) {
        return events_.on_rank_result(output.rank(), output.bytes());
      }
      return events_.on_rank_output(
          output.rank(), output.stream() == RankOutput::STDOUT ? 0 : 1,
          output.bytes());
    }
    case FromNode::kRankEnded: {
      const RankEnded& ended = message.rank_ended();
      if (!MaySpeakOf(ended.rank())) return;
      return events_.on_rank_ended(ended.rank(),
                                   {.signaled = ended.signaled(),
                                    .value = ended.value(),
                                    .finished = ended.finished()});
    }
    case FromNode::KIND_NOT_SET:
      return Lose(
          Garbled("a message that this version does not know").message());
  }
}

bool RemoteNode::MaySpeakOf(int rank) {
  if (!Owns(rank)) {
    Lose(Garbled("a message about a rank of another node").message());
  } else if (!ranks_started_) {
    Lose("it reports ranks that were not started");
  }
  return !lost();
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
  bool expected = finishing_;
  Finish();
  if (!expected) on_lost_(why);
}

void RemoteNode::Send(const ToNode& message) {
  if (message.has_start_ranks()) ranks_started_ = true;
  if (message.has_start_rank()) {
    ranks_started_ = true;
    ranks_.insert(message.start_rank().rank());
  }
  if (!finishing_) input_.Send(message);
}

void RemoteNode::Finish() {
  finishing_ = true;
  input_.Close();
}

void RemoteNode::GiveUp(const std::string& why) {
  ssh_.Signal(SIGKILL);
  Lose(why);
}

}  // namespace maypole::launcher
