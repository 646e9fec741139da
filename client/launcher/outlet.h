// Outlet: what waits to be written to one descriptor.
//
// Purpose: the event loop writes to all outlets when they take something, and
// reads no output while one of them is full.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTLET_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTLET_H_

namespace maypole::launcher {

class Outlet {
 public:
  virtual ~Outlet() = default;

  virtual int fd() const = 0;
  virtual bool idle() const = 0;  // nothing waits
  virtual bool full() const = 0;
  // Writes what goes without waiting.
  virtual void Flush() = 0;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTLET_H_
