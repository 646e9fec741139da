#include "common/wire/signature.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace maypole {
namespace {

Signature Make(Kind kind, std::vector<int64_t> shape) {
  Signature s;
  s.kind = kind;
  s.dtype = DType::kFloat32;
  s.dims = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), s.shape);
  return s;
}

using Submitted = std::vector<std::pair<int, Signature>>;

TEST(SignatureTest, SizesCountElementsRowsAndScalars) {
  const Signature s = Make(Kind::kAllreduce, {2, 3, 4});
  EXPECT_EQ(s.Elements(), 24);
  EXPECT_EQ(s.Bytes(), 96u);
  EXPECT_EQ(s.RowBytes(), 48u);
  EXPECT_EQ(Make(Kind::kAllreduce, {}).Elements(), 1);
  EXPECT_EQ(Make(Kind::kAllreduce, {5, 0}).Bytes(), 0u);
}

TEST(SignatureTest, EqualSubmissionsAgreeAndSayNothing) {
  const Signature s = Make(Kind::kAllreduce, {3});
  EXPECT_EQ(DescribeMismatch("x", Submitted{{0, s}, {1, s}}), "");
  EXPECT_EQ(AgreementHash(s), AgreementHash(Make(Kind::kAllreduce, {3})));
}

TEST(SignatureTest, EveryMismatchNamesTensorRanksAndBothValues) {
  const Signature base = Make(Kind::kAllreduce, {3});
  struct Case {
    void (*change)(Signature&);
    const char* text;
  };
  const Case cases[] = {
      {[](Signature& s) { s.shape[0] = 4; },
       "allreduce 'x': mismatched shapes: ranks 0,2 submitted [3], rank 1 "
       "submitted [4]; every rank must submit the same shape"},
      {[](Signature& s) { s.dtype = DType::kInt64; },
       "allreduce 'x': mismatched dtypes: ranks 0,2 submitted float32, rank 1 "
       "submitted int64; every rank must submit the same dtype"},
      {[](Signature& s) { s.op = Op::kAverage; },
       "allreduce 'x': mismatched reduction operations: ranks 0,2 submitted "
       "sum, rank 1 submitted average; every rank must submit the same "
       "reduction"},
      {[](Signature& s) { s.device = Device::kGpu; },
       "allreduce 'x': mismatched devices: ranks 0,2 submitted CPU, rank 1 "
       "submitted GPU; every rank must submit the same device class"},
      {[](Signature& s) { s.prescale = 0.5; },
       "allreduce 'x': mismatched prescale factors: ranks 0,2 submitted 1, "
       "rank 1 submitted 0.5; every rank must submit the same prescale "
       "factor"},
      {[](Signature& s) { s.postscale = 2; },
       "allreduce 'x': mismatched postscale factors: ranks 0,2 submitted 1, "
       "rank 1 submitted 2; every rank must submit the same postscale factor"},
  };
  for (const Case& c : cases) {
    Signature other = base;
    c.change(other);
    EXPECT_FALSE(Agree(base, other));
    EXPECT_NE(AgreementHash(base), AgreementHash(other));
    EXPECT_EQ(
        DescribeMismatch("x", Submitted{{2, base}, {0, base}, {1, other}}),
        c.text);
  }
}

TEST(SignatureTest, ScaleFactorsAreComparedByTheirBits) {
  const auto scaled = [](double factor) {
    Signature s = Make(Kind::kAllreduce, {3});
    s.prescale = factor;
    return s;
  };
  const auto said = [&](double a, double b) {
    EXPECT_FALSE(Agree(scaled(a), scaled(b)));
    EXPECT_NE(AgreementHash(scaled(a)), AgreementHash(scaled(b)));
    const std::string text =
        DescribeMismatch("x", Submitted{{0, scaled(a)}, {1, scaled(b)}});
    const std::string begin =
        "allreduce 'x': mismatched prescale factors: rank 0 submitted ";
    EXPECT_EQ(text.substr(0, begin.size()), begin);
    return text.substr(begin.size(), text.find(';') - begin.size());
  };
  EXPECT_EQ(said(0.1, std::nextafter(0.1, 1.0)),
            "0.1, rank 1 submitted 0.10000000000000002");
  EXPECT_EQ(said(1.0 / 3, 0.333333333),
            "0.3333333333333333, rank 1 submitted 0.333333333");
  EXPECT_EQ(said(0.0, -0.0), "0, rank 1 submitted -0");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(said(nan, -nan),
            "nan (0x7ff8000000000000), rank 1 submitted nan "
            "(0xfff8000000000000)");
  EXPECT_EQ(
      DescribeMismatch("x", Submitted{{0, scaled(nan)}, {1, scaled(nan)}}), "");
}

TEST(SignatureTest, BroadcastRootsMustAgree) {
  Signature a = Make(Kind::kBroadcast, {3}), b = a;
  a.root = 0;
  b.root = 1;
  EXPECT_EQ(DescribeMismatch("w", Submitted{{0, a}, {1, b}}),
            "broadcast 'w': mismatched root ranks: rank 0 submitted 0, rank 1 "
            "submitted 1; every rank must submit the same root rank");
}

TEST(SignatureTest, GatheredFirstDimensionMayDifferOthersNot) {
  const Signature a = Make(Kind::kAllgather, {3, 2});
  EXPECT_TRUE(Agree(a, Make(Kind::kAllgather, {7, 2})));
  EXPECT_EQ(
      DescribeMismatch("g",
                       Submitted{{0, a}, {1, Make(Kind::kAllgather, {3, 5})}}),
      "allgather 'g': mismatched shapes: rank 0 submitted [*, 2], rank 1 "
      "submitted [*, 5]; every rank must submit the same shape except for the "
      "first dimension");
  EXPECT_FALSE(Agree(a, Make(Kind::kAllgather, {3, 2, 1})));
}

TEST(SignatureTest, ManyRanksAreCutShort) {
  Submitted all;
  for (int r = 0; r < 100; ++r) {
    all.emplace_back(r, Make(Kind::kAllreduce, {r == 50 ? 4 : 3}));
  }
  EXPECT_NE(DescribeMismatch("x", all).find(
                "ranks 0,1,2,3,4,5,6,7 and 91 more submitted [3], rank 50"),
            std::string::npos);
}

TEST(SignatureTest, BadInputIsRefusedWithTheReason) {
  const auto code = [](const Signature& s) {
    return CheckSignature("x", s).code();
  };
  EXPECT_EQ(code(Make(Kind::kAllreduce, {3})), Code::kOk);
  EXPECT_EQ(code(Make(Kind::kAllreduce, {-1})), Code::kInvalidArgument);
  EXPECT_EQ(code(Make(Kind::kAllreduce, {int64_t{1} << 40, 1 << 20})),
            Code::kInvalidArgument);
  EXPECT_EQ(
      code(Make(Kind::kAllreduce, {0, int64_t{1} << 62, int64_t{1} << 62})),
      Code::kInvalidArgument);
  EXPECT_EQ(code(Make(Kind::kAllgather, {})), Code::kInvalidArgument);
  EXPECT_EQ(code(Make(Kind::kAlltoall, {3})), Code::kOk);
  EXPECT_EQ(code(Make(Kind::kAlltoall, {})), Code::kInvalidArgument);
  EXPECT_EQ(code(Make(Kind::kReducescatter, {})), Code::kInvalidArgument);
  // A rank may have written anything: the coordinator refuses all of this.
  Signature device = Make(Kind::kAllreduce, {3});
  device.device = static_cast<Device>(2);
  EXPECT_EQ(code(device), Code::kInvalidArgument);
  EXPECT_EQ(code(Make(Kind::kBarrier, {0, 3})), Code::kOk);
  EXPECT_EQ(code(Make(Kind::kBarrier, {0, -1})), Code::kInvalidArgument);
  Signature scatter = Make(Kind::kReducescatter, {3});
  EXPECT_EQ(code(scatter), Code::kOk);
  scatter.op = Op::kMax;
  EXPECT_EQ(code(scatter), Code::kInvalidArgument);
  Signature bools = Make(Kind::kAllreduce, {3});
  bools.dtype = DType::kBool;
  bools.op = Op::kAverage;
  EXPECT_EQ(code(bools), Code::kInvalidArgument);
  bools.op = Op::kProduct;
  EXPECT_EQ(code(bools), Code::kOk);
  Signature adasum = Make(Kind::kAllreduce, {3});
  adasum.op = Op::kAdasum;
  EXPECT_EQ(code(adasum), Code::kUnimplemented);
  Signature ints = Make(Kind::kAllreduce, {3});
  ints.dtype = DType::kInt32;
  ints.prescale = 0.5;
  EXPECT_EQ(code(ints), Code::kOk);
  ints.dtype = DType::kBool;
  EXPECT_EQ(code(ints), Code::kInvalidArgument);
  EXPECT_EQ(
      CheckSignature(std::string(600, 'n'), Make(Kind::kBarrier, {})).code(),
      Code::kInvalidArgument);
}

TEST(SignatureTest, ANameHasNoNul) {
  Signature s = Make(Kind::kAllreduce, {2});
  EXPECT_TRUE(CheckSignature("w", s).ok());
  const Status bad = CheckSignature(std::string_view("w\0first", 7), s);
  EXPECT_EQ(bad.code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.message(),
            "the name of an operation must have no NUL byte, this one has one "
            "after 'w'");
}

TEST(SignatureTest, ABarrierComparesUnnamedOperations) {
  Signature a;
  a.kind = Kind::kBarrier;
  a.dims = kMaxDims;
  a.shape[1 + static_cast<int>(Kind::kAllreduce)] = 3;
  Signature b = a;
  b.shape[1 + static_cast<int>(Kind::kAllreduce)] = 2;
  b.shape[1 + static_cast<int>(Kind::kBroadcast)] = 1;
  EXPECT_TRUE(CheckSignature("b", a).ok());
  EXPECT_EQ(a.Bytes(), 0u);
  const std::vector<std::pair<int, Signature>> all = {{0, a}, {1, b}, {2, a}};
  EXPECT_EQ(DescribeMismatch("b", all),
            "barrier 'b': mismatched counts of unnamed operations before it: "
            "ranks 0,2 submitted 3 x allreduce, rank 1 submitted 2 x "
            "allreduce, 1 x broadcast; every rank must submit as many unnamed "
            "operations of each kind (give them names to match them whatever "
            "their order)");
}

TEST(SignatureTest, ABroadcastNeedsARootThatHasNotJoined) {
  Signature here = Make(Kind::kBroadcast, {3});
  here.root = 1;
  Signature joined = here;
  joined.aside = 1;
  joined.joins = 5;
  EXPECT_TRUE(Agree(here, joined));
  std::vector<std::pair<int, Signature>> all = {{0, joined}, {1, here}};
  EXPECT_EQ(DescribeMismatch("x", all), "");
  all = {{0, here}, {1, joined}};
  EXPECT_NE(DescribeMismatch("x", all).find(
                "broadcast 'x': its root, rank 1, has joined"),
            std::string::npos);
}

TEST(SignatureTest, ScatteredRowsCoverTheTensorOnce) {
  for (int64_t rows : {0, 1, 3, 4, 5, 11}) {
    Signature s = Make(Kind::kReducescatter, {rows, 2});
    int64_t next = 0;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(FirstScatteredRow(s, 4, i), next);
      next += ScatteredRows(s, 4, i);
      EXPECT_EQ(ScatteredRows(s, 4, i), rows / 4 + (i < rows % 4 ? 1 : 0));
    }
    EXPECT_EQ(next, rows);
  }
}

TEST(SignatureTest, EachIdentityHasAKeyOfItsOwn) {
  EXPECT_EQ(IdentityKey(0, Kind::kAllreduce, "x"),
            IdentityKey(0, uint32_t{0}, "x"));
  std::set<std::string> keys;
  int identities = 0;
  // 256 is not a kind, and must not be taken for kind 0.
  for (uint32_t set : {0u, 1u, 10u, 11u}) {
    for (uint32_t kind : {0u, 1u, 6u, 256u}) {
      for (const char* name : {"", "x", "/x", "0/x", "1/0/x", "x "}) {
        keys.insert(IdentityKey(set, kind, name));
        ++identities;
      }
    }
  }
  EXPECT_EQ(keys.size(), static_cast<size_t>(identities));
}

}  // namespace
}  // namespace maypole
