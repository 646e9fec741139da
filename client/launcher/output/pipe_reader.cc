#include "client/launcher/output/pipe_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace maypole::launcher {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kMaxDrainReads = 16;  // 1 MiB: more than a pipe usually holds

}  // namespace

Status PipeReader::Open(Fd* writer) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  Fd reader(ends[0]);
  *writer = Fd(ends[1]);
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);  // the reading end only
  Status status = loop_->events()->Watch(
      std::move(reader),
      {.readable = [this] { ReadOnce(); }, .turn = Turn::kFirst}, &pipe_);
  if (status.ok()) loop_->readers_.push_back(this);
  return status;
}

bool PipeReader::ReadOnce() {
  char buffer[kReadBytes];
  ssize_t n = read(pipe_.fd(), buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    Close();
    return false;
  }
  take_(std::string_view(buffer, static_cast<size_t>(n)));
  return true;
}

void PipeReader::Drain() {
  for (int i = 0; i < kMaxDrainReads && open() && ReadOnce(); ++i) {
  }
}

void PipeReader::Close() {
  if (!open()) return;
  std::erase(loop_->readers_, this);
  pipe_.Reset();
}

}  // namespace maypole::launcher
