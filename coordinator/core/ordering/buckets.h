// Buckets: which operations wait for one another, to run together.
//
// Purpose: a training step submits the same tensors in the same order again and
// again. The order of the first step is learned, cut into buckets by the rule
// of Fuse(), and from then on a bucket's operations are held until all of them
// are present everywhere.
//
//   Buckets buckets(threshold, age);
//   Release release;
//   buckets.Add(now, ready, &release);       // present on all nodes
//   buckets.Urge(id, &release);              // somebody waits for it
//   buckets.OnTime(now, &release);           // at buckets.Deadline()
//   ... run what is in `release` ...
//
// Nothing waits for long. A bucket runs, as far as it is there,
//   when it is complete      the usual step
//   when one is urgent       a wait is a flush
//   when its age has passed  since the first that it holds came
// and what is in no bucket runs at once: during the first step, new names,
// synchronous calls (submitted to be waited for: they are not learned either).
//
// A round of a bucket is over when each member has run once, in however many
// parts. A member that comes again before has missed the round: the others have
// not come this time. kMissesToForget rounds missed in a row mean that the
// order has changed for good: the bucket is forgotten and its members learned
// again. Those whose buckets do not last stay out for longer and longer.
//
// The order learned is that of the first node's reports, and a run has its
// operations in that order, not in that of their arrival: equal steps have
// equal runs.
//
// Thread contract: not synchronized; pure.
//
// Invariants: an operation that was added is released exactly once; what is
// held is released at Deadline() at the latest; an operation is in at most one
// bucket.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_BUCKETS_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_BUCKETS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/core/actions.h"
#include "coordinator/core/ordering/fusion.h"

namespace maypole::coordinator {

inline constexpr int kMissesToForget = 3;
// Steps that an operation stays out after its bucket was forgotten: 0, 1, 3, ..
inline constexpr uint32_t kMostStepsOut = 63;

// What may run now: each part is to be fused by itself.
struct Release {
  struct Part {
    BucketEnd end;
    std::vector<ReadyOperation> operations;
  };
  std::vector<Part> parts;            // of buckets
  std::vector<ReadyOperation> loose;  // of none

  bool empty() const { return parts.empty() && loose.empty(); }
};

class Buckets {
 public:
  // Threshold 0: nothing is learned or held.
  Buckets(uint64_t threshold, Time age);

  void Add(Time now, ReadyOperation ready, Release* release);
  // Of no effect unless it is held.
  void Urge(uint32_t id, Release* release);
  void OnTime(Time now, Release* release);
  std::optional<Time> Deadline() const;
  // These names, none of which it holds, will not come again by these ids.
  void Retire(const std::vector<uint32_t>& ids, Release* release);
  // Forgets what it holds of a process set: the owner ends it otherwise.
  void DropHeld(uint32_t process_set);

 private:
  enum class State { kAwaited, kHeld, kRan };
  struct NodeMember {
    State state = State::kAwaited;
    ReadyOperation ready;  // kHeld; else id only
  };
  struct Bucket {
    FusionKey key;
    std::vector<NodeMember> members;
    size_t held = 0;
    size_t ran = 0;  // of this round
    Time since{};    // when the first that is held came
    int misses = 0;  // rounds in a row
  };
  using BucketId = uint32_t;  // from 1
  // What is known of an operation.
  struct Known {
    BucketId bucket = 0;  // 0: none
    size_t place = 0;     // in it
    std::optional<FusionKey> lesson;
    uint32_t times_out = 0;
    uint32_t steps_out = 0;  // still to come
  };

  Known& Find(uint32_t id);
  // True if the operation is in a bucket now.
  bool Learn(const FusionKey& key, const ReadyOperation& ready);
  void LeaveLesson(uint32_t id);
  void CloseLesson(const FusionKey& key);
  void Hold(Time now, BucketId id, size_t place, ReadyOperation ready,
            Release* release);
  void Run(BucketId id, BucketEnd end, Release* release);
  // True if the bucket has been forgotten.
  bool Miss(BucketId id, Release* release);
  void Forget(BucketId id, Release* release);

  const uint64_t threshold_;
  const Time age_;
  std::vector<Known> known_;  // by PlaceOf(id)
  std::map<FusionKey, std::vector<ReadyOperation>> lessons_;
  std::map<BucketId, Bucket> buckets_;
  BucketId last_bucket_ = 0;
  std::set<std::pair<Time, BucketId>> waiting_;  // those that hold something
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_BUCKETS_H_
