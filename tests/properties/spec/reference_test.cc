#include "tests/properties/spec/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tests/properties/spec/narrow_float.h"

namespace maypole::properties {
namespace {

// One element a rank (or `rows` of them), within one node.
OperationSpec Spec(Kind kind, DType dtype, Op op, int ranks, int64_t rows = 1) {
  OperationSpec o;
  o.kind = kind;
  o.dtype = dtype;
  o.op = op;
  o.seed = 7;
  for (int r = 0; r < ranks; ++r) {
    o.ranks.push_back(r);
    o.nodes.push_back(0);
    o.shape.push_back({rows});
  }
  return o;
}

template <typename T>
T At(const Bytes& bytes, size_t i = 0) {
  T v;
  std::memcpy(&v, bytes.data() + i * sizeof(T), sizeof(T));
  return v;
}

template <typename T>
std::vector<T> Inputs(const OperationSpec& o) {
  std::vector<T> values;
  for (const int r : o.ranks) values.push_back(At<T>(InputOf(o, r)));
  return values;
}

TEST(ReferenceTest, IntegersWrapAndTheirAverageTruncatesTowardZero) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kInt8, Op::kSum, 3, 100);
  bool wrapped = false, negative = false;
  for (size_t i = 0; i < 100; ++i) {
    int sum = 0, product = 1;
    for (const int r : o.ranks) sum += At<int8_t>(InputOf(o, r), i);
    for (const int r : o.ranks) product *= At<int8_t>(InputOf(o, r), i);
    const auto low = static_cast<int8_t>(static_cast<uint8_t>(sum & 255));
    wrapped = wrapped || low != sum;
    negative = negative || (low < 0 && low % 3 != 0);
    o.op = Op::kSum;
    EXPECT_EQ(At<int8_t>(ResultOf(o, 0), i), low);
    o.op = Op::kAverage;
    EXPECT_EQ(At<int8_t>(ResultOf(o, 0), i), low / 3);
    o.op = Op::kProduct;
    EXPECT_EQ(At<uint8_t>(ResultOf(o, 0), i), product & 255);
  }
  EXPECT_TRUE(wrapped);
  EXPECT_TRUE(negative);
}

TEST(ReferenceTest, UnsignedValuesAreComparedAsSuch) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kUint16, Op::kMax, 2);
  for (o.seed = 0; o.seed < 50; ++o.seed) {
    const auto in = Inputs<uint16_t>(o);
    EXPECT_EQ(At<uint16_t>(ResultOf(o, 1)), std::max(in[0], in[1]));
  }
}

TEST(ReferenceTest, FloatsAddInTheOrderOfRanks) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kFloat32, Op::kSum, 4);
  o.values = Values::kRounded;
  int order_shows = 0;
  for (o.seed = 0; o.seed < 50; ++o.seed) {
    const auto v = Inputs<float>(o);
    const volatile float a = v[0] + v[1];
    const volatile float b = a + v[2];
    const float want = b + v[3];
    EXPECT_EQ(At<float>(ResultOf(o, 2)), want);
    const volatile float c = v[2] + v[3];
    order_shows += want != a + c;
  }
  EXPECT_GT(order_shows, 5);
}

TEST(ReferenceTest, OverNodesEachNodesPartComesFirst) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kFloat16, Op::kSum, 4);
  o.values = Values::kRounded;
  o.nodes = {0, 0, 1, 1};
  for (o.seed = 0; o.seed < 50; ++o.seed) {
    const auto v = Inputs<uint16_t>(o);
    const auto part = [&](size_t i) {
      const float sum = Widen(kHalf, v[i]) + Widen(kHalf, v[i + 1]);
      return Widen(kHalf, Narrow(kHalf, sum));
    };
    EXPECT_EQ(At<uint16_t>(ResultOf(o, 0)), Narrow(kHalf, part(0) + part(2)));
  }
}

TEST(ReferenceTest, FactorsAndAverage) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kFloat64, Op::kAverage, 2);
  o.prescale = 0.5;
  o.postscale = 3.0;
  const auto v = Inputs<double>(o);
  EXPECT_EQ(At<double>(ResultOf(o, 0)), (v[0] * 0.5 + v[1] * 0.5) / 2 * 3);
}

TEST(ReferenceTest, WhoStandsAsideIsLeftOutButCounts) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kFloat32, Op::kAverage, 4);
  o.aside = 0b0101;
  const auto v = Inputs<float>(o);
  EXPECT_EQ(At<float>(ResultOf(o, 1)), (v[1] + v[3]) / 4);
  o.op = Op::kMin;
  EXPECT_EQ(At<float>(ResultOf(o, 1)), std::min(v[1], v[3]));
  o.op = Op::kProduct;
  o.aside = 0b0111;
  EXPECT_EQ(At<float>(ResultOf(o, 3)), At<float>(InputOf(o, 3)));
}

TEST(ReferenceTest, NanWinsAndTheFirstOfEqualZeros) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kFloat32, Op::kMax, 2, 4000);
  o.values = Values::kAnyBits;
  const Bytes a = InputOf(o, 0), b = InputOf(o, 1), max = ResultOf(o, 0);
  int nans = 0, zeros = 0;
  for (size_t i = 0; i < 4000; ++i) {
    const float x = At<float>(a, i), y = At<float>(b, i);
    const float got = At<float>(max, i);
    if (std::isnan(x) || std::isnan(y)) {
      ++nans;
      EXPECT_TRUE(std::isnan(got));
    } else {
      EXPECT_EQ(got, std::max(x, y));
      if (x == 0 && y == 0) {
        ++zeros;
        EXPECT_EQ(std::signbit(got), std::signbit(x));
      }
    }
  }
  EXPECT_GT(nans, 10);
  EXPECT_GT(zeros, 0);
}

TEST(ReferenceTest, BoolIsAnyByteAndItsResultsAreZeroOrOne) {
  OperationSpec o = Spec(Kind::kAllreduce, DType::kBool, Op::kSum, 2, 200);
  const Bytes a = InputOf(o, 0), b = InputOf(o, 1);
  const Bytes any = ResultOf(o, 0);
  o.op = Op::kProduct;
  const Bytes all = ResultOf(o, 0);
  std::set<uint8_t> bytes;
  for (size_t i = 0; i < 200; ++i) {
    const auto x = At<uint8_t>(a, i), y = At<uint8_t>(b, i);
    bytes.insert(x);
    EXPECT_EQ(At<uint8_t>(any, i), x != 0 || y != 0 ? 1 : 0);
    EXPECT_EQ(At<uint8_t>(all, i), x != 0 && y != 0 ? 1 : 0);
  }
  EXPECT_GT(bytes.size(), 20u);
}

TEST(ReferenceTest, ScatteredRowsAreOneMoreForTheFirst) {
  OperationSpec o = Spec(Kind::kReducescatter, DType::kInt32, Op::kSum, 3);
  o.shape.assign(3, {5, 2});
  OperationSpec whole = o;
  whole.kind = Kind::kAllreduce;
  const Bytes all = ResultOf(whole, 0);
  Bytes joined;
  const int64_t rows[] = {2, 2, 1};
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(ResultRows(o, r), rows[r]);
    const Bytes mine = ResultOf(o, r);
    EXPECT_EQ(mine.size(), static_cast<size_t>(rows[r]) * 8);
    joined.insert(joined.end(), mine.begin(), mine.end());
  }
  EXPECT_EQ(joined, all);
}

TEST(ReferenceTest, GatherAndBroadcast) {
  OperationSpec o = Spec(Kind::kAllgather, DType::kInt64, Op::kSum, 3);
  o.shape = {{2}, {0}, {1}};
  Bytes want = InputOf(o, 0);
  const Bytes last = InputOf(o, 2);
  EXPECT_EQ(want.size(), 16u);
  want.insert(want.end(), last.begin(), last.end());
  EXPECT_EQ(ResultOf(o, 1), want);
  EXPECT_EQ(ResultRows(o, 1), 3);
  o.aside = 0b100;
  EXPECT_EQ(ResultOf(o, 1), InputOf(o, 0));
  OperationSpec b = Spec(Kind::kBroadcast, DType::kInt64, Op::kSum, 3);
  b.root = 2;
  EXPECT_EQ(ResultOf(b, 0), InputOf(b, 2));
}

TEST(ReferenceTest, AlltoallByPositionInTheSet) {
  OperationSpec o = Spec(Kind::kAlltoall, DType::kUint8, Op::kSum, 2);
  o.ranks = {1, 3};
  o.splits = {{1, 2}, {3, 0}};
  o.shape = {{3}, {3}};
  const Bytes a = InputOf(o, 1), b = InputOf(o, 3);
  EXPECT_EQ(ResultOf(o, 1), (Bytes{a[0], b[0], b[1], b[2]}));
  EXPECT_EQ(ResultOf(o, 3), (Bytes{a[1], a[2]}));
  EXPECT_EQ(ReceivedSplits(o, 1), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ReceivedSplits(o, 3), (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(ResultRows(o, 1), 4);
}

TEST(ReferenceTest, SameNans) {
  const float values[] = {std::nanf("1"), 2.0f, -std::nanf("2")};
  Bytes bytes(sizeof(values));
  std::memcpy(bytes.data(), values, sizeof(values));
  SameNans(DType::kFloat32, &bytes);
  EXPECT_EQ(At<uint32_t>(bytes, 0), At<uint32_t>(bytes, 2));
  EXPECT_EQ(At<float>(bytes, 1), 2.0f);
}

}  // namespace
}  // namespace maypole::properties
