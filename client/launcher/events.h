// EventLoop: calls a handler when a descriptor is readable.
//
// Purpose: two classes of descriptors. Output (pipes of ranks) is handled
// first and only while the outlets have room; control (signals, ends of
// processes) always. Within a class handlers are called in the order in which
// the kernel saw the events, so the first rank to end is the first handled.
//
// Thread contract: not synchronized. Handlers may call Watch and Unwatch, also
// for themselves.
#ifndef MAYPOLE_CLIENT_LAUNCHER_EVENTS_H_
#define MAYPOLE_CLIENT_LAUNCHER_EVENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "client/launcher/lines.h"
#include "client/launcher/outlet.h"
#include "common/fd.h"
#include "common/status.h"

namespace maypole::launcher {

class EventLoop {
 public:
  using Handler = std::function<void()>;
  enum Class { kOutput = 0, kControl = 1 };
  using WatchId = uint64_t;

  // Outlets are flushed in every round. They must outlive the loop or be taken
  // off it.
  Status Init(std::vector<Outlet*> outlets);
  void AddOutlet(Outlet* outlet) { outlets_.push_back(outlet); }
  void RemoveOutlet(Outlet* outlet) { std::erase(outlets_, outlet); }

  WatchId Watch(Class c, int fd, Handler handler);
  // Before the descriptor is closed.
  void Unwatch(WatchId id);

  // One round: waits until something happens or the deadline, handles it.
  void Poll(std::optional<Time> deadline);
  // Output is not read, because somebody does not read ours.
  bool OutletsFull() const;

 private:
  struct Watched {
    Class c;
    int fd;
    // Shared: a handler that unwatches itself lives on until it returns.
    std::shared_ptr<Handler> handler;
  };

  void Dispatch(Class c);

  Fd epoll_[2];
  std::vector<Outlet*> outlets_;
  WatchId next_ = 1;
  std::map<WatchId, Watched> watched_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_EVENTS_H_
