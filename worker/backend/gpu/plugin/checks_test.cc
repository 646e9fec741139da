#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "worker/backend/gpu/plugin/failure.h"
#include "worker/backend/gpu/plugin/handles.h"
#include "worker/backend/gpu/plugin/ranges.h"
#include "worker/backend/gpu/plugin/reduction.h"

namespace maypole::gpu::plugin {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

// The text of the InvalidArgument that `body` throws; "" if it throws nothing.
std::string Refusal(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, MAYPOLE_GPU_INVALID_ARGUMENT);
    EXPECT_EQ(failure.native, 0);
    return failure.text;
  }
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, IsOneLineThatFits) {
  MaypoleGpuError error;
  EXPECT_EQ(Report({MAYPOLE_GPU_ABORTED, 7, "a\nb"}, &error),
            MAYPOLE_GPU_ABORTED);
  EXPECT_EQ(error.native, 7);
  EXPECT_STREQ(error.text, "a b");

  Report(InvalidArgument(std::string(2000, 'x')), &error);
  EXPECT_EQ(std::string(error.text), std::string(507, 'x'));
}

TEST(Ranges, HaveAnAddressAndEndBelowTheLast) {
  const Range range = RangeOf(0x1000, 4, 8);
  EXPECT_EQ(range.begin, 0x1000u);
  EXPECT_EQ(range.end, 0x1020u);
  EXPECT_EQ(RangeOf(8, kMax / 8 - 1, 8).end, kMax / 8 * 8);
  EXPECT_TRUE(Has(Refusal([] { RangeOf(0, 1, 1); }), "at 0x0"));
  EXPECT_TRUE(Has(Refusal([] { RangeOf(0x1002, 1, 4); }), "at 0x1002"));
  EXPECT_TRUE(Has(Refusal([] { RangeOf(8, kMax / 8, 8); }), "of 8 bytes"));
  EXPECT_TRUE(Has(Refusal([] { RangeOf(16, kMax, 1); }), "not valid, or not"));
  EXPECT_TRUE(Has(Refusal([] { RangeOf(8, kMax / 2, 4); }), "of 4 bytes"));
}

TEST(Ranges, OverlapIfTheyShareAByte) {
  EXPECT_TRUE(Overlap({10, 20}, {19, 30}));
  EXPECT_TRUE(Overlap({10, 20}, {12, 13}));
  EXPECT_FALSE(Overlap({10, 20}, {20, 30}));
  EXPECT_FALSE(Overlap({20, 30}, {10, 20}));
  EXPECT_FALSE(Overlap({10, 10}, {10, 10}));  // nothing
}

TEST(Handles, AreGivenOnceInAProcess) {
  Handles<int> one("stream"), other("event");
  const uint64_t a = one.Add(5), b = other.Add(6);
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  EXPECT_EQ(one.Get(a), 5);
  EXPECT_TRUE(Has(Refusal([&] { one.Get(b); }), "there is no stream "));
  EXPECT_EQ(one.Take(a), 5);
  EXPECT_TRUE(Has(Refusal([&] { one.Get(a); }), "was it destroyed"));
  EXPECT_TRUE(Has(Refusal([&] { one.Take(a); }), "was it destroyed"));
  EXPECT_GT(one.Add(7), b);
  EXPECT_NE(Refusal([&] { other.Get(0); }), "");
}

TEST(Handles, OfManyThreadsDiffer) {
  Handles<int> handles("stream");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&handles, t] {
      for (int i = 0; i < 1000; ++i) {
        const uint64_t handle = handles.Add(t * 1000 + i);
        EXPECT_EQ(handles.Take(handle), t * 1000 + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Wanted {
  std::vector<uint64_t> inputs = {0x10000, 0x20000};
  std::vector<uint64_t> outputs = {0x30000};
  uint64_t elements = 100;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;

  ReduceTask Task() const {
    MaypoleGpuReduction r = {};
    r.inputs = inputs.data();
    r.outputs = outputs.data();
    r.input_count = inputs.size();
    r.output_count = outputs.size();
    r.elements = elements;
    r.scale = 0.5;
    r.dtype = static_cast<uint8_t>(dtype);
    r.op = static_cast<uint8_t>(op);
    return TaskOf(r);
  }
  std::string Refused() const {
    return Refusal([this] { Task(); });
  }
};

TEST(TaskOf, PassesOnWhatIsRight) {
  const ReduceTask task = Wanted().Task();
  EXPECT_EQ(reinterpret_cast<uint64_t>(task.inputs[0]), 0x10000u);
  EXPECT_EQ(reinterpret_cast<uint64_t>(task.inputs[1]), 0x20000u);
  EXPECT_EQ(reinterpret_cast<uint64_t>(task.outputs[0]), 0x30000u);
  EXPECT_EQ(task.input_count, 2u);
  EXPECT_EQ(task.output_count, 1u);
  EXPECT_EQ(task.elements, 100u);
  EXPECT_EQ(task.scale, 0.5);
  EXPECT_TRUE(task.vectors);
}

TEST(TaskOf, UsesVectorsIfAllAddressesAllowThem) {
  EXPECT_FALSE((Wanted{.inputs = {0x10000, 0x20004}}.Task().vectors));
  EXPECT_FALSE(Wanted{.outputs = {0x30008}}.Task().vectors);
  EXPECT_TRUE(Wanted{.outputs = {0x30010}}.Task().vectors);
}

TEST(TaskOf, LetsAnOutputBeOneOfTheInputs) {
  EXPECT_EQ(Wanted{.outputs = {0x20000}}.Refused(), "");
  EXPECT_EQ((Wanted{.outputs = {0x20000, 0x10000}}.Refused()), "");
  EXPECT_TRUE(Has(Wanted{.outputs = {0x20010}}.Refused(), "overlaps"));
  EXPECT_TRUE(Has(Wanted{.outputs = {0x20000 - 16}}.Refused(), "overlaps"));
  EXPECT_EQ(Wanted{.outputs = {0x20000 - 400}}.Refused(), "");  // ends there
  EXPECT_TRUE(
      Has((Wanted{.outputs = {0x30000, 0x30000}}.Refused()), "overlaps"));
}

TEST(TaskOf, RefusesTooFewAndTooMany) {
  EXPECT_TRUE(Has(Wanted{.inputs = {}}.Refused(), "0 inputs"));
  EXPECT_TRUE(Has(Wanted{.outputs = {}}.Refused(), "0 outputs"));
  Wanted many;
  many.inputs.clear();
  for (uint64_t i = 1; i <= 16; ++i) many.inputs.push_back(i << 20);
  EXPECT_EQ(many.Refused(), "");
  many.inputs.push_back(17 << 20);
  EXPECT_TRUE(Has(many.Refused(), "17 inputs; it must have 1 to 16"));
}

TEST(TaskOf, RefusesOtherTypesAndOperations) {
  EXPECT_TRUE(Has(Wanted{.dtype = DType::kInt32}.Refused(), "type 4"));
  EXPECT_TRUE(
      Has(Wanted{.dtype = static_cast<DType>(200)}.Refused(), "type 200"));
  EXPECT_TRUE(Has(Wanted{.op = Op::kProduct}.Refused(), "operation 5"));
  EXPECT_TRUE(Has(Wanted{.op = Op::kAverage}.Refused(), "operation 0"));
}

TEST(TaskOf, RefusesAddressesThatHoldNoElements) {
  EXPECT_TRUE(Has((Wanted{.inputs = {0x10000, 0}}.Refused()), "at 0x0"));
  EXPECT_TRUE(Has(Wanted{.outputs = {0x30002}}.Refused(), "not aligned"));
  EXPECT_EQ((Wanted{.outputs = {0x30002}, .dtype = DType::kFloat16}.Refused()),
            "");
  EXPECT_TRUE(Has(Wanted{.elements = kMax / 2}.Refused(), "not valid, or not"));
}

}  // namespace
}  // namespace maypole::gpu::plugin
