// PipeReader: reads what a process writes into a pipe.
//
// Thread contract: not synchronized; all reading is done in an OutputLoop.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_PIPE_READER_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_PIPE_READER_H_

#include <functional>
#include <string_view>
#include <utility>

#include "client/launcher/output/output_loop.h"
#include "common/status.h"
#include "common/system/event_loop.h"
#include "common/system/fd.h"

namespace maypole::launcher {

class PipeReader {
 public:
  using Take = std::function<void(std::string_view)>;

  PipeReader(OutputLoop* loop, Take take)
      : loop_(loop), take_(std::move(take)) {}
  PipeReader(const PipeReader&) = delete;
  PipeReader& operator=(const PipeReader&) = delete;
  ~PipeReader() { Close(); }

  // Creates the pipe; *writer is the end for the process.
  Status Open(Fd* writer);
  // Reads what is in the pipe now, even while an outlet is full.
  void Drain();
  void Close();
  // False once all writers have closed the pipe and everything was read.
  bool open() const { return pipe_.valid(); }
  // From now on the pipe is read even while an outlet is full.
  void NeverPause() { never_pause_ = true; }
  void Pause(bool paused) { pipe_.WantRead(!paused || never_pause_); }

 private:
  bool ReadOnce();  // false: nothing was read

  OutputLoop* loop_;
  const Take take_;
  WatchedFd pipe_;
  bool never_pause_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_PIPE_READER_H_
