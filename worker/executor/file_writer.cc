#include "worker/executor/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace maypole::worker {
namespace {

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Status(Code::kInternal, std::string("the timeline's file cannot "
                                                 "be written: ") +
                                         std::strerror(errno));
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return Status();
}

}  // namespace

struct FileWriter::State {
  Fd file;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;
  Status status;
  bool closing = false;
  bool ended = false;
  std::function<void(Status)> done;
  std::function<void(Status)> failed;
};

FileWriter::FileWriter(Fd file) : state_(std::make_shared<State>()) {
  state_->file = std::move(file);
  std::thread([state = state_] { Run(state); }).detach();
}

FileWriter::FileWriter(std::function<Status(Fd*)> open,
                       std::function<void(Status)> failed)
    : state_(std::make_shared<State>()) {
  state_->failed = std::move(failed);
  std::thread([state = state_, open = std::move(open)] {
    Status s = open(&state->file);
    if (!s.ok()) {
      std::lock_guard lock(state->mutex);
      state->status = s;
      if (state->failed && !state->closing) state->failed(s);
    }
    Run(state);
  }).detach();
}

FileWriter::~FileWriter() {
  std::unique_lock lock(state_->mutex);
  state_->done = nullptr;
  state_->failed = nullptr;
  state_->closing = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kEndTime, [this] { return state_->ended; });
}

void FileWriter::Write(std::string text) {
  std::lock_guard lock(state_->mutex);
  if (!state_->status.ok()) return;
  if (state_->waiting.size() + text.size() > kMaxWaiting) {
    state_->status = Status(Code::kResourceExhausted,
                            "the timeline's file is incomplete: its disk is "
                            "too slow");
    return;
  }
  state_->waiting += text;
  state_->changed.notify_all();
}

void FileWriter::Close(std::function<void(Status)> done) {
  std::lock_guard lock(state_->mutex);
  state_->done = std::move(done);
  state_->closing = true;
  state_->changed.notify_all();
}

void FileWriter::Run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(
        lock, [&] { return state->closing || !state->waiting.empty(); });
    if (state->waiting.empty()) break;
    const std::string text = std::exchange(state->waiting, {});
    lock.unlock();
    Status s = WriteAll(state->file.get(), text);
    lock.lock();
    if (state->status.ok()) state->status = std::move(s);
  }
  state->file.Reset();
  // Under the lock, so that no callback comes after the destructor.
  if (state->done) state->done(state->status);
  state->ended = true;
  state->changed.notify_all();
}

Status MakeFileOf(int pid, const std::string& name, Fd* file) {
  if (pid == 0) {
    return Status(Code::kFailedPrecondition,
                  "the timeline's file '" + name +
                      "' cannot be made: the rank's process is in a PID "
                      "namespace that the node's executor cannot see; let the "
                      "rank start the timeline (docs/timeline.md)");
  }
  if (name.empty() || name == "." || name == ".." ||
      name.find('/') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "the timeline's file '" + name +
                      "' cannot be made: its name must have no slash");
  }
  const std::string directory = "/proc/" + std::to_string(pid) + "/cwd";
  const int fd =
      open((directory + "/" + name).c_str(),
           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd >= 0) {
    *file = Fd(fd);
    return Status();
  }
  const std::string reason = std::strerror(errno);
  char where[4096] = {};
  const ssize_t n = readlink(directory.c_str(), where, sizeof(where) - 1);
  return Status(
      Code::kInvalidArgument,
      "the timeline's file '" + name + "' cannot be made in " +
          (n > 0 ? std::string(where)
                 : "the directory of process " + std::to_string(pid)) +
          ": " + reason);
}

}  // namespace maypole::worker
