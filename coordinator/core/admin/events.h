// EventRing: the last events, for an operator who looks later or watches.
//
// Purpose: every log line of the core, numbered from 1 without gaps. The oldest
// go when there are kMaxEvents.
//
//   EventRing ring;
//   ring.Add(unix_seconds, Level::kInfo, "event=epoch_start job=a epoch=1");
//   EventRing::Page page = ring.Read("a", 0, 100);
//   page = ring.Read("a", page.after, 100);      // what came after that
//
// Thread contract: not synchronized; pure. The events themselves do not change
// and may be kept.
#ifndef MAYPOLE_COORDINATOR_CORE_ADMIN_EVENTS_H_
#define MAYPOLE_COORDINATOR_CORE_ADMIN_EVENTS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/limits.h"
#include "proto/admin.pb.h"

namespace maypole::coordinator {

// The value of a key of a log line, without its quotes; empty: it has none. Not
// deceived by values that look like keys.
std::string LogField(absl::string_view line, absl::string_view key);

class EventRing {
 public:
  using Event = std::shared_ptr<const proto::Event>;
  struct Page {
    std::vector<Event> events;
    uint64_t after = 0;      // what Read() goes on after
    uint64_t forgotten = 0;  // events after the number asked for that are gone
  };

  explicit EventRing(size_t limit = kMaxEvents) : limit_(limit) {}

  void Add(double unix_seconds, Level level, absl::string_view line);

  // Those of the job (empty: all) among the first `most` after number `after`.
  Page Read(const std::string& job, uint64_t after, size_t most) const;
  // Of the newest; 0: there was none.
  uint64_t last() const { return last_; }

 private:
  const size_t limit_;
  std::deque<Event> events_;  // the newest has number last_
  uint64_t last_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ADMIN_EVENTS_H_
