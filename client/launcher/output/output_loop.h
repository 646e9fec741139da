// OutputLoop: the launcher's EventLoop, in which output cannot outrun whoever
// reads it.
//
// Purpose: in every round outlets are flushed, and pipes with output
// (PipeReader) are read, before anything else, only while all outlets have
// room. Signals and ends of processes are always seen.
//
// Thread contract: not synchronized.
//
// Invariant: the loop outlives its outlets and readers.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_LOOP_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_LOOP_H_

#include <optional>
#include <vector>

#include "client/launcher/output/lines.h"
#include "common/system/event_loop.h"

namespace maypole::launcher {

class Outlet;
class PipeReader;

class OutputLoop {
 public:
  EventLoop* events() { return &events_; }

  // One round: waits until something happens or the deadline, handles it.
  void Poll(std::optional<Time> deadline);
  // Output is not read, because somebody does not read ours.
  bool OutletsFull() const;

 private:
  friend class Outlet;
  friend class PipeReader;

  EventLoop events_;
  std::vector<Outlet*> outlets_;
  std::vector<PipeReader*> readers_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_OUTPUT_LOOP_H_
