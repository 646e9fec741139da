#include "client/launcher/output/output_loop.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "client/launcher/output/outlet.h"
#include "client/launcher/output/pipe_reader.h"
#include "client/launcher/process/child_process.h"

namespace maypole::launcher {
namespace {

constexpr int kRetryMs = 20;  // the pause after RunOnce() has failed

}  // namespace

bool OutputLoop::OutletsFull() const {
  return std::any_of(outlets_.begin(), outlets_.end(),
                     [](const Outlet* outlet) { return outlet->full(); });
}

std::set<pid_t> OutputLoop::Children() const {
  std::set<pid_t> pids;
  for (const ChildProcess* child : children_) {
    if (child->running()) pids.insert(child->pid());
  }
  return pids;
}

void OutputLoop::Poll(std::optional<Time> deadline) {
  const bool full = OutletsFull();
  for (PipeReader* reader : readers_) reader->Pause(full);
  for (Outlet* outlet : outlets_) outlet->watched_.WantWrite(!outlet->idle());
  if (!events_.RunOnce(deadline).ok()) poll(nullptr, 0, kRetryMs);
  // A copy: an outlet whose reader is gone removes itself from outlets_.
  for (Outlet* outlet : std::vector<Outlet*>(outlets_)) outlet->Flush();
}

Status Outlet::Attach(OutputLoop* loop, Fd fd) {
  Status status = loop->events()->Watch(
      std::move(fd), {.writable = [this] { Flush(); }, .want_read = false},
      &watched_);
  if (!status.ok()) return status;
  loop_ = loop;
  loop_->outlets_.push_back(this);
  return Status();
}

void Outlet::Detach() {
  if (loop_ != nullptr) std::erase(loop_->outlets_, this);
  loop_ = nullptr;
  watched_.Reset();
}

}  // namespace maypole::launcher
