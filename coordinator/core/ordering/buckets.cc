#include "coordinator/core/ordering/buckets.h"

#include <algorithm>

#include "coordinator/core/limits.h"

namespace maypole::coordinator {

Buckets::Buckets(uint64_t threshold, Time age)
    : threshold_(threshold), age_(age) {}

Buckets::Known& Buckets::Find(uint32_t id) {
  const size_t place = PlaceOf(id);
  if (known_.size() <= place) known_.resize(place + 1);
  return known_[place];
}

void Buckets::Add(Time now, ReadyOperation ready, Release* release) {
  const std::optional<FusionKey> key = FusionKeyOf(ready.signature);
  const BucketId bucket = Find(ready.id).bucket;
  // The name is now used for another kind of operation: its bucket is obsolete.
  if (bucket != 0 && key != buckets_.at(bucket).key) Forget(bucket, release);
  if (key && threshold_ > 0 && Learn(*key, ready)) {
    const Known& known = Find(ready.id);
    const bool forgotten =
        buckets_.at(known.bucket).members[known.place].state == State::kRan &&
        Miss(known.bucket, release);
    if (!forgotten) {
      return Hold(now, known.bucket, known.place, std::move(ready), release);
    }
    Learn(*key, ready);
  }
  release->loose.push_back(std::move(ready));
}

bool Buckets::Learn(const FusionKey& key, const ReadyOperation& ready) {
  Known& known = Find(ready.id);
  if (known.bucket != 0) return true;
  if (ready.urgency == Urgency::kImmediate) return false;
  if (known.lesson == key) {  // the next step has begun
    CloseLesson(key);
    return true;
  }
  LeaveLesson(ready.id);
  if (known.steps_out > 0) {
    --known.steps_out;
    return false;
  }
  known.lesson = key;
  lessons_[key].push_back(ready);
  return false;
}

void Buckets::LeaveLesson(uint32_t id) {
  Known& known = Find(id);
  if (!known.lesson) return;
  std::erase_if(lessons_[*known.lesson],
                [id](const ReadyOperation& r) { return r.id == id; });
  known.lesson.reset();
}

void Buckets::CloseLesson(const FusionKey& key) {
  std::vector<ReadyOperation> lesson = std::move(lessons_[key]);
  lessons_.erase(key);
  std::ranges::stable_sort(lesson, {}, &ReadyOperation::order);
  for (const std::vector<size_t>& run : Fuse(lesson, threshold_)) {
    const BucketId id = ++last_bucket_;
    Bucket& bucket = buckets_[id];
    bucket.key = key;
    for (const size_t i : run) {
      Known& known = Find(lesson[i].id);
      known.lesson.reset();
      known.bucket = id;
      known.place = bucket.members.size();
      bucket.members.emplace_back().ready.id = lesson[i].id;
    }
  }
}

void Buckets::Hold(Time now, BucketId id, size_t place, ReadyOperation ready,
                   Release* release) {
  Bucket& bucket = buckets_.at(id);
  const bool urgent = ready.urgency != Urgency::kNone;
  bucket.members[place] = {State::kHeld, std::move(ready)};
  if (++bucket.held == 1) {
    bucket.since = now;
    waiting_.emplace(now, id);
  }
  if (bucket.held + bucket.ran == bucket.members.size()) {
    Run(id, BucketEnd::kComplete, release);
    for (Member& m : bucket.members) m.state = State::kAwaited;
    bucket.ran = 0;
    bucket.misses = 0;
  } else if (urgent) {
    Run(id, BucketEnd::kUrgent, release);
  }
}

void Buckets::Run(BucketId id, BucketEnd end, Release* release) {
  Bucket& bucket = buckets_.at(id);
  Release::Part part{end, {}};
  for (Member& m : bucket.members) {
    if (m.state != State::kHeld) continue;
    const uint32_t operation = m.ready.id;
    part.operations.push_back(std::move(m.ready));
    m.ready = ReadyOperation();
    m.ready.id = operation;
    m.state = State::kRan;
  }
  waiting_.erase({bucket.since, id});
  bucket.ran += bucket.held;
  bucket.held = 0;
  release->parts.push_back(std::move(part));
}

bool Buckets::Miss(BucketId id, Release* release) {
  Bucket& bucket = buckets_.at(id);
  if (++bucket.misses >= kMissesToForget) {
    Forget(id, release);
    return true;
  }
  // Held operations came late, or belong to the new round.
  for (Member& m : bucket.members) {
    if (m.state == State::kRan) m.state = State::kAwaited;
  }
  bucket.ran = 0;
  return false;
}

void Buckets::Forget(BucketId id, Release* release) {
  if (buckets_.at(id).held > 0) Run(id, BucketEnd::kForgotten, release);
  for (const Member& m : buckets_.at(id).members) {
    Known& known = Find(m.ready.id);
    known.bucket = 0;
    known.steps_out = std::min((1u << known.times_out) - 1, kMostStepsOut);
    known.times_out = std::min(known.times_out + 1, 6u);
  }
  buckets_.erase(id);
}

void Buckets::MarkUrgent(uint32_t id, Release* release) {
  const Known& known = Find(id);
  if (known.bucket == 0) return;
  const Bucket& bucket = buckets_.at(known.bucket);
  if (bucket.members[known.place].state != State::kHeld) return;
  Run(known.bucket, BucketEnd::kUrgent, release);
}

void Buckets::OnTime(Time now, Release* release) {
  while (!waiting_.empty() && waiting_.begin()->first + age_ <= now) {
    Run(waiting_.begin()->second, BucketEnd::kAge, release);
  }
}

std::optional<Time> Buckets::Deadline() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.begin()->first + age_;
}

void Buckets::Retire(const std::vector<uint32_t>& ids, Release* release) {
  std::set<FusionKey> lessons;
  std::set<uint32_t> gone(ids.begin(), ids.end());
  for (const uint32_t id : ids) {
    const Known& known = Find(id);
    if (known.bucket != 0) Forget(known.bucket, release);
    if (known.lesson) lessons.insert(*known.lesson);
    Find(id) = Known();
  }
  for (const FusionKey& key : lessons) {
    std::erase_if(lessons_[key],
                  [&](const ReadyOperation& r) { return gone.contains(r.id); });
  }
}

void Buckets::DropHeld(uint32_t process_set) {
  std::erase_if(waiting_, [&](const std::pair<Time, BucketId>& waiting) {
    Bucket& bucket = buckets_.at(waiting.second);
    if (std::get<1>(bucket.key) != process_set) return false;
    bucket.held = 0;
    for (Member& m : bucket.members) {
      if (m.state == State::kHeld) m.state = State::kAwaited;
    }
    return true;
  });
}

}  // namespace maypole::coordinator
