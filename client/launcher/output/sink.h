// Sink: a Screen and the descriptor it is shown on.
//
// Purpose: writes what the Screen holds without ever blocking: a terminal that
// is stopped or a pipe nobody reads must not keep Ctrl-C from working. The
// descriptor is shared with others, so it is not made non-blocking; instead it
// is asked first, and given no more than a pipe is sure to take.
//
// Thread contract: not synchronized.
//
// Invariant: what is written is a prefix of what the Screen got, until the
// reader is gone; then everything is dropped.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SINK_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SINK_H_

#include <cstddef>

#include "client/launcher/output/outlet.h"
#include "client/launcher/output/screen.h"

namespace maypole::launcher {

// With more than this waiting, ranks are not read from: they wait, as they
// would for a full pipe.
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

 private:
  bool Writable() const;

  int fd_;
  Screen screen_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SINK_H_
