// EventRing: the most recent events, which an operator can list or follow.
//
// Purpose: keeps every log line of the core, numbered from 1 without gaps. When
// there are kMaxEvents, the oldest are dropped.
//
//   EventRing ring;
//   ring.Add(unix_seconds, Level::kInfo, "event=epoch_start job=a epoch=1");
//   EventRing::Page page = ring.Read("a", 0, 100);
//   page = ring.Read("a", page.after, 100);      // the events after those
//
// Thread contract: not synchronized; pure. Events never change; callers may
// keep them.
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

// The value of a key in a log line, without its quotes; empty if the line does
// not have the key. Does not mistake text inside a quoted value for a key.
std::string LogField(absl::string_view line, absl::string_view key);

class EventRing {
 public:
  using Event = std::shared_ptr<const proto::Event>;
  struct Page {
    std::vector<Event> events;
    uint64_t after = 0;      // `after` for the next Read()
    uint64_t forgotten = 0;  // requested events that have been dropped
  };

  explicit EventRing(size_t limit = kMaxEvents) : limit_(limit) {}

  void Add(double unix_seconds, Level level, absl::string_view line);

  // Reads the first `most` events after number `after`, and returns those of
  // the job (empty: all jobs).
  Page Read(const std::string& job, uint64_t after, size_t most) const;
  // The number of the newest event; 0 if there was none.
  uint64_t last() const { return last_; }

 private:
  const size_t limit_;
  std::deque<Event> events_;  // the newest has number last_
  uint64_t last_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ADMIN_EVENTS_H_
