// Arrivals: brings the ranks' records of one operation together, to see which
// rank was late for it.
//
// Purpose: an operation is known by process set, kind, name and its number
// among those of that name. When the records of all ranks of its process set
// are there, Add() returns them. All times must be of one clock.
//
// Thread contract: not synchronized; pure.
//
// Invariants: at most kMaxOpen operations are open; a new one beyond that
// replaces the oldest, which is given up. An operation is also given up when a
// rank's record of it comes again, because numbers restart when the job has
// forgotten a name. An operation for which a rank sends no record (it was
// submitted there before the timeline was on, or was dropped) stays open until
// then.
#ifndef MAYPOLE_COMMON_TIMELINE_ARRIVALS_H_
#define MAYPOLE_COMMON_TIMELINE_ARRIVALS_H_

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/timeline/record.h"

namespace maypole {

// A rank's part in an operation; by the clock of the timeline.
struct OperationPart {
  int32_t rank = 0;
  uint32_t node = 0;
  bool failed = false;
  uint64_t bytes = 0;
  int64_t submitted = 0;
  int64_t arrived = 0;
  int64_t begun = 0;
  int64_t ended = 0;
};

struct OperationGroup {
  Kind kind = Kind::kBarrier;
  uint32_t process_set = 0;
  uint32_t members = 0;
  uint32_t number = 0;
  std::string name;
  std::vector<OperationPart> parts;  // in the order in which they came
  std::vector<bool> has;             // by rank

  bool complete() const { return parts.size() >= members; }
};

// Which rank was late for an operation, all parts of which are known.
struct Lateness {
  int32_t last_rank = -1;  // -1: not known (a rank has not arrived)
  int64_t first = 0;       // when the first rank arrived
  int64_t previous = 0;    // when the last but one did
  int64_t last = 0;
};
Lateness LatenessOf(const OperationGroup& group);

// When the last rank of this node arrived; 0 if that is not known.
int64_t LastOnNode(const OperationGroup& group, uint32_t node);

class Arrivals {
 public:
  static constexpr size_t kMaxOpen = 16384;

  // `record`: of a rank's operation; its times are shifted by shift_ns. Returns
  // the operations that are now complete or given up.
  std::vector<OperationGroup> Add(const TimelineRecord& record, uint32_t node,
                                  int64_t shift_ns);
  // Returns all that are open.
  std::vector<OperationGroup> TakeRest();

 private:
  using Groups = std::list<OperationGroup>;

  static std::string KeyOf(const OperationGroup& group);
  OperationGroup Take(Groups::iterator group);

  Groups open_;  // oldest first
  std::unordered_map<std::string, Groups::iterator> by_key_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_TIMELINE_ARRIVALS_H_
