// TimelineRecord: one thing that a rank or an executor did, for the job's
// timeline.
//
// Purpose: ranks and executors write records into bounded buffers, and send
// them, packed, to the executor that writes the file (docs/timeline.md).
//
//   std::string packed;
//   Append(record, &packed);
//   ForRecords(packed, [](const TimelineRecord& r) { ... });
//
// Packed, a record is a PackedRecord, the name, and zeros up to a multiple of 8
// bytes.
//
// Thread contract: values and pure functions.
//
// Hostility: records come from other processes. ForRecords() checks sizes,
// kinds, ranks and times; it ignores a wrong record and everything after it.
#ifndef MAYPOLE_COMMON_TIMELINE_RECORD_H_
#define MAYPOLE_COMMON_TIMELINE_RECORD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/types.h"

namespace maypole {

struct TimelineRecord {
  enum class What : uint8_t {
    // A rank's operation: submitted, arrived, begun, ended.
    kOperation = 1,
    // An executor: the operation is ready on the node, until it is issued.
    kOrder = 2,
    // An executor: a run's data moves between the nodes. `name` is that of its
    // first operation, `count` the number of all.
    kNetwork = 3,
    // An executor: it reports `count` operations to the coordinator.
    kPresence = 4,
  };

  What what = What::kOperation;
  Kind kind = Kind::kBarrier;
  bool failed = false;
  int32_t rank = 0;  // kOperation
  uint32_t process_set = 0;
  uint32_t members = 0;  // ranks of the process set
  uint32_t number = 0;   // kOperation: counts the name's operations
  uint32_t count = 0;
  uint64_t bytes = 0;
  // Nanoseconds by the clock of the node; 0: it did not happen. Records without
  // phases have only submitted and ended.
  int64_t submitted = 0;
  int64_t arrived = 0;
  int64_t begun = 0;
  int64_t ended = 0;
  std::string_view name;
};

void Append(const TimelineRecord& record, std::string* packed);
// Bytes that Append() would add.
size_t PackedBytes(const TimelineRecord& record);

// Calls `take` with each record; its name is valid only during the call.
void ForRecords(std::string_view packed,
                const std::function<void(const TimelineRecord&)>& take);

// How many bytes the first whole records of `packed` take, up to `bytes`. 0 if
// the first record is longer, or is wrong.
size_t WholeRecords(std::string_view packed, size_t bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_TIMELINE_RECORD_H_
