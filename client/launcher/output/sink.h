// Sink: writes a Screen to a descriptor.
//
// Purpose: never blocks, so that Ctrl-C works even while the terminal is
// stopped or the pipe is not read. Other processes share the descriptor, so it
// must not be made non-blocking. Instead, Flush() polls it before each write
// and writes at most PIPE_BUF bytes, which a writable pipe takes without
// blocking.
//
// Thread contract: not synchronized.
//
// Invariant: the bytes written are a prefix of the Screen's, unless a write has
// failed (a full disk, a reader that is gone): what could not be written is
// dropped, and lost() says why.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SINK_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SINK_H_

#include <cstddef>
#include <string>

#include "client/launcher/output/outlet.h"
#include "client/launcher/output/screen.h"

namespace maypole::launcher {

// While more bytes than this are queued, no output of ranks is read; ranks then
// block in their writes, as with any full pipe.
inline constexpr size_t kMaxPendingOutput = 1 << 20;

class Sink : public Outlet {
 public:
  explicit Sink(int fd) : fd_(fd) {}
  Status Open(OutputLoop* loop);

  Screen& screen() { return screen_; }
  bool idle() const override { return screen_.pending().empty(); }
  bool full() const override {
    return screen_.pending().size() > kMaxPendingOutput;
  }
  void Flush() override;
  // Why output was first lost: "No space left on device"; empty: none was.
  const std::string& lost() const { return lost_; }

 private:
  bool Writable() const;

  int fd_;
  std::string lost_;
  Screen screen_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SINK_H_
