// OutputStream: what one process writes to one pipe, on its way to a Sink, a
// file and a Tail. The process may run on another host: then there is no pipe,
// and the bytes are handed in.
//
// Thread contract: not synchronized; driven by an EventLoop.
//
// Invariant: text without an end is shown at the latest kPartialDelay after it
// came, if OnTime is called then.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_STREAM_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_STREAM_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "client/launcher/events.h"
#include "client/launcher/lines.h"
#include "client/launcher/sink.h"
#include "common/fd.h"
#include "common/status.h"

namespace maypole::launcher {

inline constexpr std::chrono::milliseconds kPartialDelay{100};

class OutputStream {
 public:
  struct Settings {
    int id = 0;          // unique among the streams of a sink
    std::string prefix;  // of each line
    Sink* sink = nullptr;
    // In place of the sink: gets the bytes as they come.
    std::function<void(std::string_view)> raw = {};
    std::string file;  // a copy of the bytes goes there; empty: none
    // Called once if the file takes no more (a full disk), with what happened;
    // needed with a file only.
    std::function<void(const std::string&)> on_file_lost = {};
  };

  explicit OutputStream(EventLoop* loop) : loop_(loop) {}
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;
  ~OutputStream() { Close(); }

  // Makes the pipe and watches its reading end; *writer is for the process.
  Status Open(Settings settings, Fd* writer);
  // Without a pipe: the bytes come by Take().
  Status Open(Settings settings);
  void Take(std::string_view bytes);

  // Takes what is in the pipe now.
  void Drain();
  // All writers are gone and all was taken.
  bool ended() const { return !open_; }
  // Stops reading; what is held back is shown.
  void Close();
  // From now on lines go to the file and the tail only.
  void Mute() { muted_ = true; }

  std::optional<Time> deadline() const { return flush_at_; }
  void OnTime(Time now);

  const Tail& tail() const { return tail_; }
  int id() const { return settings_.id; }
  const std::string& prefix() const { return settings_.prefix; }

 private:
  bool ReadOnce();  // false: nothing was there
  void Show(const Piece& piece, Time now);
  void CopyToFile(const char* data, size_t size);

  EventLoop* loop_;
  Settings settings_;
  bool open_ = false;
  EventLoop::WatchId watch_ = 0;
  Fd pipe_;
  Fd file_;
  LineSplitter splitter_;
  Tail tail_;
  bool muted_ = false;
  std::optional<Time> flush_at_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_STREAM_H_
