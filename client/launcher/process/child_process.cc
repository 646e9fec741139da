#include "client/launcher/process/child_process.h"

#include <sys/wait.h>

#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "client/launcher/process/announcement.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {

ChildProcess::ChildProcess(OutputLoop* loop, Settings settings)
    : loop_(loop),
      settings_(std::move(settings)),
      out_(loop, settings_.out),
      err_(loop, settings_.err),
      announce_(loop, settings_.announce) {
  loop_->children_.push_back(this);
}

Status ChildProcess::MakePipe(PipeReader* reader, int number,
                              std::vector<Fd>* writers) {
  Status status = reader->Open(&writers->emplace_back());
  if (status.ok()) {
    settings_.spawn.descriptors.push_back(
        {.fd = writers->back().get(), .number = number});
  }
  return status;
}

Status ChildProcess::Start(const std::string& program, int stdin_fd) {
  SpawnOptions& spawn = settings_.spawn;
  spawn.program = program;
  spawn.descriptors = {{.fd = stdin_fd, .number = 0}};
  std::vector<Fd> writers;
  Status status;
  if (settings_.out) status = MakePipe(&out_, 1, &writers);
  if (status.ok() && settings_.err) {
    status = MakePipe(&err_, 2, &writers);
  } else if (status.ok() && settings_.out) {
    spawn.descriptors.push_back({.fd = writers[0].get(), .number = 2});
  }
  if (status.ok() && settings_.announce) {
    status = MakePipe(&announce_, kAnnounceFd, &writers);
  }
  if (!status.ok()) return status;
  spawn.default_signals = {SIGPIPE, SIGTTOU};  // that we ignore
  // A shell makes commands in the background ignore these, so that signals of
  // the terminal do not reach them. A process in a group of its own gets no
  // such signal.
  if (spawn.process_group == ProcessGroup::kNew) {
    spawn.default_signals.insert(spawn.default_signals.end(),
                                 {SIGINT, SIGQUIT});
  }
  spawn.run_scripts = true;
  Child child;
  if (status = Spawn(spawn, &child); !status.ok()) return status;
  pid_ = child.pid;
  status = loop_->events()->Watch(std::move(child.end),
                                  {.readable = [this] { OnEnd(); }}, &end_);
  if (!status.ok()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  return status;
}

void ChildProcess::Signal(int signal) const {
  if (!running()) return;
  if (settings_.owns_group) {
    SignalProgram(pid_, signal);
  } else {
    kill(pid_, signal);
  }
}

void ChildProcess::OnEnd() {
  // Before reaping: until then no other group can get this number.
  if (settings_.owns_group) kill(-pid_, SIGKILL);
  std::optional<Exit> exit = Reap(pid_);
  if (!exit) return Forget();  // reaped elsewhere; else this came again
  end_.Reset();
  for (PipeReader* reader : readers_) reader->Drain();
  settings_.on_end(*exit);
}

void ChildProcess::NeverPause() {
  for (PipeReader* reader : readers_) reader->NeverPause();
}

void ChildProcess::CloseOutput() {
  for (PipeReader* reader : readers_) reader->Close();
}

}  // namespace maypole::launcher
