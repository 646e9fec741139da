#include "coordinator/core/ordering/buckets.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using Ids = std::vector<uint32_t>;
using Parts = std::vector<Ids>;

constexpr Time kAge = milliseconds(5);

// The Buckets under test, the time set by the test, and released operations.
class Bench {
 public:
  explicit Bench(uint64_t threshold) : buckets_(threshold, kAge) {}

  void Add(uint32_t id, uint64_t bytes = 64, Urgency urgency = Urgency::kNone) {
    ReadyOperation r;
    r.id = id;
    r.signature.kind = Kind::kAllreduce;
    r.signature.dtype = dtype;
    r.signature.process_set = process_set;
    r.bytes = bytes;
    r.order = ++orders_;
    r.urgency = urgency;
    Release release;
    buckets_.Add(now_, std::move(r), &release);
    Take(release);
  }
  void AddAll(const Ids& ids, uint64_t bytes = 64) {
    for (const uint32_t id : ids) Add(id, bytes);
  }
  void MarkUrgent(uint32_t id) {
    Release release;
    buckets_.MarkUrgent(id, &release);
    Take(release);
  }
  void Pass(Time time) {
    now_ += time;
    Release release;
    buckets_.OnTime(now_, &release);
    Take(release);
  }
  void DropHeld(uint32_t process_set) { buckets_.DropHeld(process_set); }
  void Retire(const Ids& ids) {
    Release release;
    buckets_.Retire(ids, &release);
    Take(release);
  }
  std::optional<Time> Deadline() const { return buckets_.Deadline(); }
  Time now() const { return now_; }

  // Since the last call. A loose operation is a part of one.
  Parts Parted() { return std::exchange(parts_, {}); }
  std::vector<BucketEnd> Ends() { return std::exchange(ends_, {}); }

  DType dtype = DType::kFloat32;
  uint32_t process_set = 0;

 private:
  void Take(const Release& release) {
    for (const Release::Part& part : release.parts) {
      Ids ids;
      for (const ReadyOperation& r : part.operations) ids.push_back(r.id);
      parts_.push_back(ids);
      ends_.push_back(part.end);
    }
    for (const ReadyOperation& r : release.loose) parts_.push_back({r.id});
  }

  Buckets buckets_;
  Time now_ = milliseconds(1000);
  uint64_t orders_ = 0;
  Parts parts_;
  std::vector<BucketEnd> ends_;
};

// Of ResNet-50, in the order of the forward pass: 161 gradients, 102 MB.
std::vector<uint64_t> Resnet50GradientBytes() {
  std::vector<uint64_t> out;
  const auto convolution = [&](uint64_t to, uint64_t from, uint64_t kernel) {
    out.push_back(4 * to * from * kernel * kernel);
    out.insert(out.end(), 2, 4 * to);  // its batch normalisation
  };
  convolution(64, 3, 7);
  uint64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int layer = 0; layer < 4; ++layer) {
    const uint64_t width = uint64_t{64} << layer;
    for (int block = 0; block < blocks[layer]; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
  }
  out.push_back(4 * 1000 * in);
  out.push_back(4 * 1000);
  return out;
}

TEST(BucketsTest, LearnsOneStepAndFusesTheNext) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  EXPECT_EQ(b.Parted(), (Parts{{1}, {2}, {3}}));
  EXPECT_EQ(b.Deadline(), std::nullopt);
  b.AddAll({1, 2});
  EXPECT_EQ(b.Parted(), Parts{});
  EXPECT_EQ(b.Deadline(), b.now() + kAge);
  b.Add(3);
  EXPECT_EQ(b.Parted(), (Parts{{1, 2, 3}}));
  EXPECT_EQ(b.Ends(), (std::vector<BucketEnd>{BucketEnd::kComplete}));
  EXPECT_EQ(b.Deadline(), std::nullopt);
}

TEST(BucketsTest, CutsBucketsByTheThresholdRule) {
  Bench b(128);
  b.AddAll({1, 2, 3, 4, 5});
  b.Parted();
  b.AddAll({1, 2, 3, 4, 5});
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}, {3, 4}, {5}}));
}

TEST(BucketsTest, Resnet50RunsInTwoParts) {
  Bench b(uint64_t{64} << 20);
  const std::vector<uint64_t> bytes = Resnet50GradientBytes();
  ASSERT_EQ(bytes.size(), 161u);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = bytes.size(); i > 0; --i) {
      b.Add(static_cast<uint32_t>(i), bytes[i - 1]);
    }
    const Parts parts = b.Parted();
    EXPECT_EQ(parts.size(), step == 0 ? 161u : 2u) << step;
  }
}

TEST(BucketsTest, ARunStandsInLearnedOrderWhateverTheArrival) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.AddAll({3, 1, 2});
  EXPECT_EQ(b.Parted(), (Parts{{1}, {2}, {3}, {1, 2, 3}}));
}

TEST(BucketsTest, AWaitRunsWhatIsThere) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.AddAll({1, 2});
  b.Parted();
  b.MarkUrgent(3);  // not held: nothing
  EXPECT_EQ(b.Parted(), Parts{});
  b.MarkUrgent(2);
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}}));
  b.MarkUrgent(2);
  EXPECT_EQ(b.Parted(), Parts{});
  b.Add(3);  // the rest of the round is complete
  EXPECT_EQ(b.Parted(), (Parts{{3}}));
  EXPECT_EQ(b.Ends(),
            (std::vector<BucketEnd>{BucketEnd::kUrgent, BucketEnd::kComplete}));
  b.AddAll({1, 2, 3});
  EXPECT_EQ(b.Parted(), (Parts{{1, 2, 3}}));
}

TEST(BucketsTest, AnUrgentArrivalRunsAtOnceWithWhatIsThere) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.Add(1);
  b.Parted();
  b.Add(2, 64, Urgency::kAwaited);
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}}));
}

TEST(BucketsTest, AgeRunsWhatIsThere) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.Add(1);
  b.Parted();
  b.Pass(milliseconds(3));
  b.Add(2);
  EXPECT_EQ(b.Deadline(), b.now() + milliseconds(2));
  b.Pass(milliseconds(1));
  EXPECT_EQ(b.Parted(), Parts{});
  b.Pass(milliseconds(1));
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}}));
  EXPECT_EQ(b.Ends(), (std::vector<BucketEnd>{BucketEnd::kAge}));
  EXPECT_EQ(b.Deadline(), std::nullopt);
}

TEST(BucketsTest, SynchronousCallsAreNeverHeldNorWaitedFor) {
  Bench b(1024);
  for (int step = 0; step < 4; ++step) {
    b.AddAll({1, 2});
    const Parts parts = b.Parted();
    EXPECT_EQ(parts, (step == 0 ? Parts{{1}, {2}} : Parts{{1, 2}})) << step;
    b.Add(3, 64, Urgency::kImmediate);
    EXPECT_EQ(b.Parted(), (Parts{{3}}));
  }
}

TEST(BucketsTest, NewNamesRunAtOnceAndAreLearnedToo) {
  Bench b(1024);
  b.AddAll({1, 2});
  b.AddAll({1, 2, 7, 8});
  b.Parted();
  b.AddAll({1, 2, 7, 8});
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}, {7, 8}}));
}

TEST(BucketsTest, AMissedRoundIsNoHarmAndALastingChangeIsLearned) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  for (int step = 0; step < kMissesToForget; ++step) {
    b.Parted();
    b.AddAll({1, 2});  // 3 never comes again
    b.Pass(kAge);
    EXPECT_EQ(b.Parted(), (Parts{{1, 2}})) << step;
  }
  b.AddAll({1, 2});  // forgotten: a lesson again
  EXPECT_EQ(b.Parted(), (Parts{{1}, {2}}));
  b.AddAll({1, 2});
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}}));
}

TEST(BucketsTest, ARoundThatIsMissedNowAndThenIsKept) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.Parted();
  for (int step = 0; step < 20; ++step) {
    b.AddAll({1, 2});
    if (step % 3 != 0) b.Add(3);
    b.Pass(kAge);
    EXPECT_EQ(b.Parted(), (step % 3 == 0 ? Parts{{1, 2}} : Parts{{1, 2, 3}}));
  }
}

TEST(BucketsTest, AnotherUseOfANameForgetsItsBucket) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.Add(1);
  b.Parted();
  b.dtype = DType::kFloat64;
  b.Add(2);
  EXPECT_EQ(b.Parted(), (Parts{{1}, {2}}));
  EXPECT_EQ(b.Ends(), (std::vector<BucketEnd>{BucketEnd::kForgotten}));
  EXPECT_EQ(b.Deadline(), std::nullopt);
}

TEST(BucketsTest, AnotherUseDuringTheLessonLeavesIt) {
  Bench b(1024);
  b.AddAll({1, 2});
  b.dtype = DType::kFloat64;
  b.AddAll({1, 1});  // learned as float64, alone
  b.dtype = DType::kFloat32;
  b.Parted();
  b.Add(2);
  EXPECT_EQ(b.Parted(), (Parts{{2}}));
}

TEST(BucketsTest, ThresholdZeroHoldsNothing) {
  Bench b(0);
  for (int step = 0; step < 3; ++step) {
    b.AddAll({1, 2});
    EXPECT_EQ(b.Parted(), (Parts{{1}, {2}}));
  }
}

TEST(BucketsTest, DropHeldForgetsWhatIsHeldOnly) {
  Bench b(1024);
  b.AddAll({1, 2});
  b.Add(1);
  b.Parted();
  b.DropHeld(0);
  EXPECT_EQ(b.Deadline(), std::nullopt);
  b.Pass(kAge);
  EXPECT_EQ(b.Parted(), Parts{});
  b.AddAll({1, 2});
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}}));
}

TEST(BucketsTest, ANameThatIsForgottenLeavesItsLessonAndItsBucket) {
  Bench b(1024);
  b.AddAll({1, 2, 3});
  b.Retire({2});
  b.Parted();
  b.AddAll({1, 3});
  EXPECT_EQ(b.Parted(), (Parts{{1, 3}}));
  b.Add(3);
  EXPECT_EQ(b.Parted(), Parts{});
  b.Retire({1});
  EXPECT_EQ(b.Parted(), (Parts{{3}}));
  EXPECT_EQ(b.Deadline(), std::nullopt);
  // A name that replaces a forgotten one starts afresh.
  b.AddAll({3, 1 + kMaxOperations});
  EXPECT_EQ(b.Parted(), (Parts{{3}, {1 + kMaxOperations}}));
}

TEST(BucketsTest, ProcessSetsHaveBucketsOfTheirOwn) {
  Bench b(1024);
  for (int step = 0; step < 2; ++step) {
    b.process_set = 0;
    b.Add(1);
    b.Add(2);
    b.process_set = 1;
    b.Add(3);
    b.Add(4);
  }
  b.Parted();
  b.process_set = 0;
  b.Add(1);
  b.Pass(milliseconds(2));
  b.process_set = 1;
  b.Add(3);
  EXPECT_EQ(b.Deadline(), b.now() + kAge - milliseconds(2));  // the earliest
  b.DropHeld(0);
  EXPECT_EQ(b.Deadline(), b.now() + kAge);
  b.Add(4);
  EXPECT_EQ(b.Parted(), (Parts{{3, 4}}));
  b.process_set = 0;
  b.Add(1);
  b.Add(2);
  EXPECT_EQ(b.Parted(), (Parts{{1, 2}}));
}

// In any order of arrival, every operation is released exactly once: at the
// latest when its age has passed, and at once if it is urgent.
TEST(BucketsTest, NothingIsHeldLongerThanItsAgeInAnyOrder) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t n) { return random() % n; };
    Bench b(64 * (1 + pick(12)));
    std::map<uint32_t, Time> held;
    const auto take = [&] {
      for (const Ids& part : b.Parted()) {
        for (const uint32_t id : part) ASSERT_EQ(held.erase(id), 1u) << id;
      }
    };
    const uint32_t names = 2 + pick(20);
    Ids order;
    for (uint32_t id = 1; id <= names; ++id) order.push_back(id);
    for (int event = 0; event < 400; ++event) {
      if (pick(100) == 0) std::shuffle(order.begin(), order.end(), random);
      const uint32_t id = order[pick(3) ? event % names : pick(names)];
      if (pick(10) == 0) {
        b.MarkUrgent(id);
        take();
        ASSERT_FALSE(held.contains(id));
      } else if (pick(4) == 0) {
        b.Pass(milliseconds(pick(4)));
        take();
      } else if (!held.contains(id)) {
        held[id] = b.now();
        b.dtype = pick(50) ? DType::kFloat32 : DType::kFloat16;
        const auto urgency =
            pick(8) ? Urgency::kNone : static_cast<Urgency>(1 + pick(2));
        b.Add(id, 64 * pick(5), urgency);
        take();
        ASSERT_TRUE(urgency == Urgency::kNone || !held.contains(id));
      }
      for (const auto& [held_id, since] : held) {
        ASSERT_LT(b.now() - since, kAge);
        ASSERT_LE(*b.Deadline(), since + kAge);
      }
    }
    b.Pass(kAge);
    take();
    EXPECT_TRUE(held.empty());
    EXPECT_EQ(b.Deadline(), std::nullopt);
  }
}

}  // namespace
}  // namespace maypole::coordinator
