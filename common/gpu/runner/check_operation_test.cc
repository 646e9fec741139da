#include "common/gpu/runner/check_operation.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/gpu/kernels/kernels.h"
#include "common/limits.h"

namespace maypole {
namespace {

constexpr std::string_view kMembers =
    "each tensor must be that of one member of its process set";
constexpr std::string_view kCounts =
    "its counts must be as many as its members need, and sum up to its "
    "elements";

// Of three members, two of them on this node.
GpuOperation Good(Kind kind) {
  GpuOperation o;
  o.kind = kind;
  o.elements = 30;
  o.members = {{.tensor = 1}, {.gpu = 1}, {.tensor = 0}};
  o.tensors.resize(2);
  o.root = 2;
  if (kind == Kind::kReducescatter) o.counts = {10, 0, 20};
  if (kind == Kind::kAllgather) o.counts = {0, 0, 5};
  if (kind == Kind::kAlltoall) o.counts = {0, 0, 0, 0, 1, 0, 0, 0, 0};
  return o;
}

std::string WrongWith(const GpuOperation& o) {
  const Status s = CheckOperation(o);
  if (s.ok()) return "";
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  const std::string text(s.message());
  return text.substr(text.find(": ") + 2);
}

TEST(CheckOperationTest, AllKinds) {
  for (const Kind kind :
       {Kind::kAllreduce, Kind::kBroadcast, Kind::kReducescatter,
        Kind::kAllgather, Kind::kAlltoall}) {
    EXPECT_EQ(WrongWith(Good(kind)), "") << Name(kind);
    GpuOperation o = Good(kind);
    o.elements = 0;
    EXPECT_EQ(WrongWith(o).empty(), Gathers(kind)) << Name(kind);
    o = Good(kind);
    o.members.clear();
    EXPECT_EQ(WrongWith(o).empty(), kind == Kind::kAllreduce) << Name(kind);
  }
  EXPECT_EQ(CheckOperation(Good(Kind::kBarrier)).message(),
            "no GPU can execute this barrier: GPUs do not execute its kind");
}

TEST(CheckOperationTest, TypesAndFactors) {
  GpuOperation o = Good(Kind::kReducescatter);
  o.dtype = static_cast<DType>(kDTypes);
  EXPECT_EQ(WrongWith(o), "there is no such operation on this type");
  o = Good(Kind::kAllreduce);
  o.op = static_cast<Op>(kOps);
  EXPECT_EQ(WrongWith(o), "there is no such operation on this type");
  o = Good(Kind::kReducescatter);
  o.dtype = DType::kBool;
  EXPECT_EQ(WrongWith(o), "");
  o.op = Op::kAverage;
  EXPECT_EQ(WrongWith(o), "there is no such operation on this type");
  for (const int64_t divisor : {int64_t{0}, cuda::kMaxDivisor + 1}) {
    o = Good(Kind::kAllreduce);
    o.divisor = divisor;
    EXPECT_EQ(WrongWith(o), "its divisor must be 1 to 2^31 - 1");
  }
}

TEST(CheckOperationTest, TensorsAndMembers) {
  GpuOperation o = Good(Kind::kAllreduce);
  o.elements = kMaxGpuMemoryBytes + 1;
  EXPECT_EQ(WrongWith(o), "its tensors must have 1 to 2^40 elements");
  for (const size_t tensors : {size_t{0}, size_t{cuda::kMaxReduced + 1}}) {
    o = Good(Kind::kAllreduce);
    o.tensors.resize(tensors);
    EXPECT_EQ(WrongWith(o), "it must have 1 to 64 tensors on this node");
  }
  o = Good(Kind::kBroadcast);
  o.root = 3;
  EXPECT_EQ(WrongWith(o), "its root must be a member of its process set");
  o = Good(Kind::kAllgather);
  o.members[1].tensor = 1;  // twice
  EXPECT_EQ(WrongWith(o), kMembers);
  o.members[1].tensor = 2;  // there is none
  EXPECT_EQ(WrongWith(o), kMembers);
  o = Good(Kind::kAllgather);
  o.members[2].tensor = kNoTensor;  // nobody's tensor
  EXPECT_EQ(WrongWith(o), kMembers);
  o = Good(Kind::kAllgather);
  o.members.resize(kMaxRanks + 1);
  EXPECT_EQ(WrongWith(o), kMembers);
}

TEST(CheckOperationTest, Counts) {
  GpuOperation o = Good(Kind::kReducescatter);
  o.counts = {10, 0, 19};
  EXPECT_EQ(WrongWith(o), kCounts);
  o.counts = {10, 20};
  EXPECT_EQ(WrongWith(o), kCounts);
  o.counts = {31, 0, ~uint64_t{0}};  // wraps to 30
  EXPECT_EQ(WrongWith(o), kCounts);
  o = Good(Kind::kAllgather);
  o.counts = {0, 0, 0};
  EXPECT_EQ(WrongWith(o), kCounts);
  o.counts = {1, kMaxGpuMemoryBytes, 0};
  EXPECT_EQ(WrongWith(o), kCounts);
  o.counts = {1, 1};
  EXPECT_EQ(WrongWith(o), kCounts);
  o = Good(Kind::kAlltoall);
  o.counts.assign(9, 0);
  EXPECT_EQ(WrongWith(o), kCounts);
  o.counts.assign(9, ~uint64_t{0} / 8);
  EXPECT_EQ(WrongWith(o), kCounts);
  o.counts.assign(8, 1);
  EXPECT_EQ(WrongWith(o), kCounts);
}

}  // namespace
}  // namespace maypole
