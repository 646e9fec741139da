// Outlet: a queue of bytes for one descriptor.
//
// Purpose: an OutputLoop flushes each outlet when its descriptor is writable,
// and reads no output of processes while an outlet is full.
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

  virtual bool idle() const = 0;  // the queue is empty
  virtual bool full() const = 0;
  // Writes as much as possible without blocking.
  virtual void Flush() = 0;

 protected:
  // Registers the outlet with the loop. fd: the descriptor to which the bytes
  // are written, or a copy of it.
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
