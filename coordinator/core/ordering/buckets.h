// Buckets: learns which operations are submitted together, and holds them until
// they can run together (fusion).
//
// Purpose: a training step submits the same tensors in the same order again and
// again. Buckets learns the order of the first step and cuts it into buckets by
// the rule of Fuse(). From then on it holds a bucket's operations until all of
// them are present on all nodes.
//
//   Buckets buckets(threshold, age);
//   Release release;
//   buckets.Add(now, ready, &release);       // present on all nodes
//   buckets.MarkUrgent(id, &release);        // a rank waits for it
//   buckets.OnTime(now, &release);           // at buckets.Deadline()
//   ... run the operations in `release` ...
//
// No operation waits for long. The operations that a bucket holds run
//   when the bucket is complete   the usual step
//   when one of them is urgent    a wait flushes the bucket
//   when its age has passed       counted from the first that it holds
// Operations outside buckets run at once: during the first step, new names, and
// synchronous calls (submitted to be waited for; they are not learned either).
//
// A round of a bucket ends when each member has run once, in any number of
// parts. If a member comes again before that, the other members have not come
// this time: the bucket has missed a round. After kMissesToForget missed rounds
// in a row the order has changed permanently: the bucket is forgotten, and its
// members are learned again. An operation whose buckets are forgotten again and
// again stays outside buckets for more and more steps.
//
// The learned order is that of the first node's reports. A run has its
// operations in that order, not in the order of arrival, so that equal steps
// have equal runs.
//
// Thread contract: not synchronized; pure.
//
// Invariants: an operation that was added is released exactly once, at
// Deadline() at the latest; an operation is in at most one bucket.
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
// After its bucket was forgotten, an operation stays outside buckets for 0, 1,
// 3, .. steps, at most this many.
inline constexpr uint32_t kMostStepsOut = 63;

// Operations that may run now. Each part must be fused separately.
struct Release {
  struct Part {
    BucketEnd end;
    std::vector<ReadyOperation> operations;
  };
  std::vector<Part> parts;            // from buckets
  std::vector<ReadyOperation> loose;  // from outside buckets

  bool empty() const { return parts.empty() && loose.empty(); }
};

class Buckets {
 public:
  // With threshold 0, nothing is learned or held.
  Buckets(uint64_t threshold, Time age);

  void Add(Time now, ReadyOperation ready, Release* release);
  // Has no effect unless the operation is held.
  void MarkUrgent(uint32_t id, Release* release);
  void OnTime(Time now, Release* release);
  std::optional<Time> Deadline() const;
  // The operation's place in its bucket; 0 if it is in none.
  size_t PlaceInBucket(uint32_t id) { return Find(id).place; }
  // These ids will not be used again for their names. None of them may be held.
  void Retire(const std::vector<uint32_t>& ids, Release* release);
  // Drops all held operations of a process set, which the owner has failed.
  void DropHeld(uint32_t process_set);

 private:
  enum class State { kAwaited, kHeld, kRan };
  struct Member {
    State state = State::kAwaited;
    ReadyOperation ready;  // if not kHeld, only the id is valid
  };
  struct Bucket {
    FusionKey key;
    std::vector<Member> members;
    size_t held = 0;
    size_t ran = 0;  // in this round
    Time since{};    // when the first held operation came
    int misses = 0;  // missed rounds in a row
  };
  using BucketId = uint32_t;  // from 1
  // What has been learned about an operation.
  struct Known {
    BucketId bucket = 0;              // 0: none
    size_t place = 0;                 // its index in the bucket
    std::optional<FusionKey> lesson;  // set while its order is being learned
    uint32_t times_out = 0;
    uint32_t steps_out = 0;  // steps for which it still stays out
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
  std::set<std::pair<Time, BucketId>> waiting_;  // buckets that hold something
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_BUCKETS_H_
