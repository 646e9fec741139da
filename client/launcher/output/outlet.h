// Outlet: what waits to be written to one descriptor.
//
// Purpose: an OutputLoop writes to all outlets when they take something, and
// reads no output while one of them is full.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTLET_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTLET_H_

#include "client/launcher/output/output_loop.h"
#include "common/status.h"
#include "common/system/event_loop.h"
#include "common/system/fd.h"

namespace maypole::launcher {

class Outlet {
 public:
  Outlet() = default;
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;
  virtual ~Outlet() { Detach(); }

  virtual bool idle() const = 0;  // nothing waits
  virtual bool full() const = 0;
  // Writes what goes without waiting.
  virtual void Flush() = 0;

 protected:
  // From now on the loop flushes it. fd: the descriptor that takes the bytes,
  // or a copy of it.
  Status Attach(OutputLoop* loop, Fd fd);
  void Detach();  // closes fd
  int fd() const { return watched_.fd(); }

 private:
  friend class OutputLoop;

  OutputLoop* loop_ = nullptr;
  WatchedFd watched_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTLET_H_
