#include "client/session/rank_timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace maypole {
namespace {

// Absolute, because other ranks may run in other directories.
std::string Absolute(const std::string& path) {
  char here[PATH_MAX];
  if (path.starts_with('/') || getcwd(here, sizeof(here)) == nullptr) {
    return path;
  }
  return std::string(here) + "/" + path;
}

}  // namespace

Status OpenTimelineFile(const std::string& path, Fd* out) {
  // O_NONBLOCK: open() of a FIFO would wait for a process that reads it.
  const int fd = open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd < 0) {
    const bool fifo = errno == ENXIO;
    return Status(Code::kInvalidArgument,
                  "the timeline's file '" + path + "' cannot be opened: " +
                      (fifo ? "it is a FIFO that no process reads, or a "
                              "device; name a file"
                            : std::strerror(errno)));
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  *out = Fd(fd);
  return Status();
}

Status RankTimeline::Start(const std::string& path, bool mark_cycles) {
  std::lock_guard call(call_mutex_);
  auto request = session::Make<session::TimelineRequest>();
  request.mark_cycles = mark_cycles ? 1 : 0;
  session::SetText(request.path, Absolute(path));
  session::TimelineReply reply;
  if (Status s = Ask(request, &reply); !s.ok()) return s;
  started_ = reply.number;
  return reply.writer != 0 ? SendFile(path, reply.number) : Status();
}

Status RankTimeline::SendFile(const std::string& path, uint32_t number) {
  Fd file;
  Status s = OpenTimelineFile(path, &file);
  auto message = session::Make<session::TimelineFile>();
  message.number = number;
  // Without a descriptor the message ends the timeline.
  send_(&message, sizeof(message), std::move(file));
  return s;
}

Status RankTimeline::Stop() {
  std::lock_guard call(call_mutex_);
  if (started_ == 0) return Status();
  auto request = session::Make<session::TimelineRequest>();
  request.stop = 1;
  request.number = std::exchange(started_, 0);
  session::TimelineReply reply;
  return Ask(request, &reply);
}

Status RankTimeline::Ask(const session::TimelineRequest& request,
                         session::TimelineReply* reply) {
  std::unique_lock lock(mutex_);
  reply_.reset();
  stop_asked_ = request.stop != 0;
  waits_.store(true);
  lock.unlock();
  send_(&request, sizeof(request), Fd());
  lock.lock();
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  Status over;
  while (!reply_ && over.ok() && std::chrono::steady_clock::now() < deadline) {
    replied_.wait_for(lock, std::chrono::milliseconds(100));
    over = epoch_();
  }
  waits_.store(false);
  if (reply_) {
    *reply = *reply_;
    return Status(static_cast<Code>(reply->code), reply->text);
  }
  const std::string what = stop_asked_ ? "stopped" : "started";
  if (!over.ok()) {
    return Status(over.code(),
                  "the timeline could not be " + what + ": " + over.message());
  }
  return Status(Code::kDeadlineExceeded,
                "the timeline was not " + what + " within " +
                    std::to_string(kTimeout.count()) +
                    " s: the executor or the coordinator does not answer; see "
                    "the agent's log");
}

void RankTimeline::OnReply(const session::TimelineReply& reply) {
  std::lock_guard lock(mutex_);
  // A late reply may belong to an earlier call.
  if (!waits_.load() || (reply.stop != 0) != stop_asked_) return;
  reply_ = reply;
  replied_.notify_all();
}

}  // namespace maypole
