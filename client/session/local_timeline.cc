#include "client/session/local_timeline.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "client/session/rank_timeline.h"
#include "client/session/timeline_outbox.h"

namespace maypole {
namespace {

constexpr size_t kPiece = 1 << 20;

}  // namespace

int64_t LocalTimeline::Now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

Status LocalTimeline::Start(const std::string& path) {
  std::lock_guard lock(mutex_);
  if (on()) return Status();
  if (Status s = OpenTimelineFile(path, &file_); !s.ok()) return s;
  trace_.emplace(std::vector<std::string>{"alone"});
  status_ = Status();
  on_.store(true);
  return Status();
}

Status LocalTimeline::Stop() {
  std::lock_guard lock(mutex_);
  if (!on()) return Status();
  on_.store(false);
  trace_->Finish();
  Write(0);
  trace_.reset();
  file_.Reset();
  return status_;
}

void LocalTimeline::Record(const Operation& op) {
  std::string packed;
  Append(RecordOf(op, 0), &packed);
  std::lock_guard lock(mutex_);
  if (!on()) return;
  trace_->Add(packed, 0, 0, 0);
  Write(kPiece);
}

void LocalTimeline::Write(size_t least) {
  text_ += trace_->TakeText();
  if (text_.size() < least) return;
  std::string_view rest = text_;
  while (status_.ok() && !rest.empty()) {
    const ssize_t n = write(file_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status_ = ErrnoStatus(errno, "the timeline's file: write");
    rest.remove_prefix(n < 0 ? 0 : static_cast<size_t>(n));
  }
  text_.clear();
}

}  // namespace maypole
