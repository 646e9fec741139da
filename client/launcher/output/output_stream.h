// OutputStream: passes the output of one process on one descriptor to a Sink, a
// file and a Tail.
//
// Thread contract: not synchronized.
//
// Invariant: an unfinished line is shown at most kPartialDelay after its last
// bytes came, if OnTime() is called at deadline().
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_STREAM_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_STREAM_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "client/launcher/output/lines.h"
#include "client/launcher/output/sink.h"
#include "common/status.h"
#include "common/system/fd.h"

namespace maypole::launcher {

inline constexpr std::chrono::milliseconds kPartialDelay{100};

class OutputStream {
 public:
  struct Settings {
    int id = 0;               // unique among the streams of a sink
    std::string prefix;       // of each line
    bool timestamps = false;  // before the prefix, in local time
    Sink* sink = nullptr;     // null: output goes to the file and the tail only
    bool raw = false;         // the sink gets the unchanged bytes
    std::string file;         // gets a copy of the bytes; empty: no file
    // Called once, with a message, if writing the file fails (a full disk).
    // Required if there is a file.
    std::function<void(const std::string&)> on_file_lost = {};
  };

  OutputStream() = default;
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  // Creates the file, if one is set.
  Status Open(Settings settings);
  void Take(std::string_view bytes);

  std::optional<Time> deadline() const { return flush_at_; }
  void OnTime(Time now);
  // Shows the unfinished line now.
  void Flush() { OnTime(Time::max()); }

  const Tail& tail() const { return tail_; }
  int id() const { return settings_.id; }
  const std::string& prefix() const { return settings_.prefix; }

 private:
  void Show(const LinePiece& piece, Time now);
  void CopyToFile(const char* data, size_t size);

  Settings settings_;
  Fd file_;
  LineSplitter splitter_;
  Tail tail_;
  std::optional<Time> flush_at_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_STREAM_H_
