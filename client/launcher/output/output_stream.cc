#include "client/launcher/output/output_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <string_view>
#include <utility>

namespace maypole::launcher {
namespace {

// As asctime(), which is Horovod's form: "Mon Nov 23 09:05:01 2026".
std::string LocalTime() {
  const time_t now = time(nullptr);
  tm parts = {};
  localtime_r(&now, &parts);
  char text[32];
  return {text, strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &parts)};
}

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
  return Status();
}

void OutputStream::Take(std::string_view bytes) {
  Time now = Now();
  CopyToFile(bytes.data(), bytes.size());
  if (settings_.raw) settings_.sink->screen().WriteBytes(bytes);
  for (const LinePiece& piece : splitter_.Feed(bytes)) Show(piece, now);
  flush_at_ = std::nullopt;
  if (splitter_.HasPartial()) flush_at_ = now + kPartialDelay;
}

void OutputStream::OnTime(Time now) {
  if (!flush_at_ || now < *flush_at_) return;
  flush_at_ = std::nullopt;
  if (auto piece = splitter_.TakePartial()) {
    Show(*piece, Now());
  }
}

void OutputStream::Show(const LinePiece& piece, Time now) {
  tail_.Add(piece, now);
  if (settings_.sink == nullptr || settings_.raw) return;
  settings_.sink->screen().Write(
      settings_.id,
      settings_.timestamps ? LocalTime() + settings_.prefix : settings_.prefix,
      piece);
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
