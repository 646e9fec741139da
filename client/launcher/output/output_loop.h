// OutputLoop: the launcher's EventLoop, with flow control for output.
//
// Purpose: in every round it flushes the outlets. It reads pipes (PipeReader)
// before it handles other events, but only while no outlet is full, so that
// ranks cannot write faster than our reader reads. Signals and ends of
// processes are always handled. It also knows the processes that were started
// with it (ChildProcess), so that nobody else reaps or kills them.
//
// Thread contract: not synchronized.
//
// Invariant: the loop must outlive its outlets, readers and processes.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_LOOP_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_LOOP_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "client/launcher/output/lines.h"
#include "common/system/event_loop.h"

namespace maypole::launcher {

class ChildProcess;
class Outlet;
class PipeReader;

inline Time Now() { return std::chrono::steady_clock::now(); }

class OutputLoop {
 public:
  EventLoop* events() { return &events_; }

  // One round: waits until an event happens or the deadline comes, and handles
  // the events.
  void Poll(std::optional<Time> deadline);
  // True if an outlet is full, so that output of processes is not read.
  bool OutletsFull() const;
  // The processes that were started with this loop and have not ended.
  std::set<pid_t> Children() const;

 private:
  friend class ChildProcess;
  friend class Outlet;
  friend class PipeReader;

  EventLoop events_;
  std::vector<Outlet*> outlets_;
  std::vector<PipeReader*> readers_;
  std::vector<ChildProcess*> children_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_LOOP_H_
