#include "client/launcher/output_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string_view>
#include <utility>

namespace maypole::launcher {
namespace {

constexpr size_t kReadBytes = 16 * 1024;
constexpr int kMaxDrainReads = 64;  // 1 MiB: a pipe's content by far

}  // namespace

Status OutputStream::Open(Settings settings) {
  settings_ = std::move(settings);
  if (!settings_.file.empty()) {
    file_ = Fd(open(settings_.file.c_str(),
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file_.valid()) {
      return ErrnoStatus(errno, "cannot write " + settings_.file);
    }
  }
  open_ = true;
  return Status();
}

Status OutputStream::Open(Settings settings, Fd* writer) {
  Status status = Open(std::move(settings));
  if (!status.ok()) return status;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  pipe_ = Fd(ends[0]);
  *writer = Fd(ends[1]);
  fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);  // the reading end only
  watch_ =
      loop_->Watch(EventLoop::kOutput, pipe_.get(), [this] { ReadOnce(); });
  return Status();
}

bool OutputStream::ReadOnce() {
  char buffer[kReadBytes];
  ssize_t n = read(pipe_.get(), buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    Close();
    return false;
  }
  Take(std::string_view(buffer, static_cast<size_t>(n)));
  return true;
}

void OutputStream::Take(std::string_view bytes) {
  if (!open_) return;
  Time now = std::chrono::steady_clock::now();
  CopyToFile(bytes.data(), bytes.size());
  if (settings_.raw && !muted_) settings_.raw(bytes);
  for (const Piece& piece : splitter_.Feed(bytes)) Show(piece, now);
  flush_at_ = std::nullopt;
  if (splitter_.HasPartial()) flush_at_ = now + kPartialDelay;
}

void OutputStream::Drain() {
  for (int i = 0; i < kMaxDrainReads && pipe_.valid() && ReadOnce(); ++i) {
  }
}

void OutputStream::Close() {
  if (!open_) return;
  open_ = false;
  if (pipe_.valid()) loop_->Unwatch(watch_);
  pipe_.Reset();
  file_.Reset();
  OnTime(Time::max());
}

void OutputStream::OnTime(Time now) {
  if (!flush_at_ || now < *flush_at_) return;
  flush_at_ = std::nullopt;
  if (auto piece = splitter_.TakePartial()) {
    Show(*piece, std::chrono::steady_clock::now());
  }
}

void OutputStream::Show(const Piece& piece, Time now) {
  tail_.Add(piece, now);
  if (muted_ || settings_.raw) return;
  settings_.sink->screen().Write(settings_.id, settings_.prefix, piece);
}

void OutputStream::CopyToFile(const char* data, size_t size) {
  while (file_.valid() && size > 0) {
    ssize_t n = write(file_.get(), data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const std::string what =
          "cannot write " + settings_.file + ": " + std::strerror(errno);
      file_.Reset();
      settings_.on_file_lost(what);
      return;
    }
    data += n;
    size -= static_cast<size_t>(n);
  }
}

}  // namespace maypole::launcher
