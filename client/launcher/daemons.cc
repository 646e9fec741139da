#include "client/launcher/daemons.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

namespace maypole::launcher {
namespace {

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  return environment;
}

}  // namespace

Status FindDaemon(const std::string& name, std::string* path) {
  std::error_code error;
  auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string beside = (self.parent_path() / name).string();
  if (!error && FindProgram(beside, path).ok()) return Status();
  if (FindProgram(name, path).ok()) return Status();
  return Status(
      Code::kNotFound,
      name + " stands neither beside maypolerun (" + beside +
          ") nor on PATH: build it (deploy/build.sh) or put it there");
}

Status Daemons::Start(const std::string& name,
                      const std::vector<std::string>& args) {
  SpawnSpec spec;
  Status status = FindDaemon(args[0], &spec.program);
  if (!status.ok()) return status;

  auto daemon = std::make_unique<Daemon>();
  Daemon* d = daemon.get();
  d->name = name;
  d->log = std::make_unique<OutputStream>(loop_);
  Fd log_writer;
  status = d->log->Open({.id = next_stream_id_++,
                         .prefix = "[" + name + "] ",
                         .sink = settings_.log,
                         .raw = settings_.raw_log,
                         .file = ""},
                        &log_writer);
  if (!status.ok()) return status;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  d->announce_pipe = Fd(ends[0]);
  Fd announce_writer(ends[1]);

  spec.argv = args;
  spec.environment = OwnEnvironment();
  spec.stdout_fd = log_writer.get();
  spec.stderr_fd = log_writer.get();
  spec.extra_fd = announce_writer.get();
  spec.death_signal = SIGTERM;
  spec.files = settings_.files;
  status = Spawn(spec, &d->child);
  if (!status.ok()) return status;

  d->announce_watch = loop_->Watch(EventLoop::kControl, d->announce_pipe.get(),
                                   [this, d] { OnAnnounce(d); });
  d->end_watch = loop_->Watch(EventLoop::kControl, d->child.pidfd.get(),
                              [this, d] { OnEnd(d); });
  daemons_.push_back(std::move(daemon));
  return Status();
}

void Daemons::OnAnnounce(Daemon* d) {
  char buffer[512];
  ssize_t n = read(d->announce_pipe.get(), buffer, sizeof buffer);
  if (n < 0 && errno == EINTR) return;
  if (n > 0) d->announce_text.append(buffer, static_cast<size_t>(n));
  size_t end = d->announce_text.find('\n');
  bool complete = end != std::string::npos;
  if (!complete && n > 0 && d->announce_text.size() < kMaxAnnouncementBytes) {
    return;
  }
  if (complete) {
    d->announcement = ParseAnnouncement(d->announce_text.substr(0, end));
    d->ready = true;
  }
  // Without a line it is about to end, or will be missed at the timeout.
  loop_->Unwatch(d->announce_watch);
  d->announce_pipe.Reset();
}

void Daemons::OnEnd(Daemon* d) {
  std::optional<Exit> exit = Reap(d->child.pid);
  if (!exit) return;
  d->ended = true;
  loop_->Unwatch(d->end_watch);
  d->child.pidfd.Reset();
  d->log->Drain();  // its last words stand before ours
  if (stopping_) return;
  settings_.on_lost(d->name + " (pid " + std::to_string(d->child.pid) + ") " +
                    Describe(*exit) + (d->ready ? "" : " before it was ready") +
                    (d->log->tail().empty()
                         ? " and wrote nothing"
                         : "; its last lines begin with [" + d->name + "]"));
}

bool Daemons::all_ready() const {
  return std::all_of(daemons_.begin(), daemons_.end(),
                     [](const auto& d) { return d->ready; });
}

std::string Daemons::not_ready() const {
  std::string names;
  for (const auto& d : daemons_) {
    if (d->ready) continue;
    names += (names.empty() ? "" : ", ") + d->name + " (pid " +
             std::to_string(d->child.pid) + ")";
  }
  return names;
}

bool Daemons::all_ended() const {
  return std::all_of(daemons_.begin(), daemons_.end(),
                     [](const auto& d) { return d->ended; });
}

void Daemons::Stop(int signal) {
  stopping_ = true;
  for (const auto& d : daemons_) {
    if (!d->ended) kill(d->child.pid, signal);
  }
}

void Daemons::Mute() {
  for (const auto& d : daemons_) d->log->Mute();
}

std::set<pid_t> Daemons::pids() const {
  std::set<pid_t> pids;
  for (const auto& d : daemons_) {
    if (!d->ended) pids.insert(d->child.pid);
  }
  return pids;
}

const Announcement& Daemons::announcement(const std::string& name) const {
  return (*std::find_if(daemons_.begin(), daemons_.end(),
                        [&](const auto& d) { return d->name == name; }))
      ->announcement;
}

std::vector<std::string> Daemons::Summary() const {
  std::vector<std::string> lines;
  for (const auto& d : daemons_) {
    const Announcement& a = d->announcement;
    lines.push_back(d->name + " pid=" + std::to_string(d->child.pid) +
                    (a.listen.empty() ? "" : " listen=" + a.listen) +
                    (a.socket.empty() ? "" : " socket=" + a.socket) +
                    (a.metrics.empty() ? "" : " metrics=" + a.metrics));
  }
  return lines;
}

std::optional<Time> Daemons::deadline() const {
  std::optional<Time> earliest;
  for (const auto& d : daemons_) {
    std::optional<Time> t = d->log->deadline();
    if (t && (!earliest || *t < *earliest)) earliest = t;
  }
  return earliest;
}

void Daemons::OnTime(Time now) {
  for (const auto& d : daemons_) d->log->OnTime(now);
}

}  // namespace maypole::launcher
