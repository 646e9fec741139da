#include "common/wire/signature_message.h"

#include <gtest/gtest.h>

#include <cstring>

namespace maypole {
namespace {

Signature Full() {
  Signature s;
  s.kind = Kind::kReducescatter;
  s.dtype = DType::kBfloat16;
  s.op = Op::kAverage;
  s.device = Device::kGpu;
  s.dims = kMaxDims;
  s.aside = 1;
  s.process_set = 7;
  s.root = -1;
  s.prescale = 0.5;
  s.postscale = 0x1.fffffffffffffp-3;
  for (int i = 0; i < kMaxDims; ++i) s.shape[i] = i + 1;
  return s;
}

TEST(SignatureMessageTest, WhatIsWrittenIsRead) {
  Signature scalar;
  scalar.kind = Kind::kBroadcast;
  scalar.root = 3;
  for (const Signature& s : {Full(), scalar}) {
    proto::LocalSignature m;
    m.add_ranks(5);
    WriteSignature(s, &m);
    EXPECT_EQ(m.ranks_size(), 1);
    const Signature got = ReadSignature(m, s.process_set);
    EXPECT_EQ(std::memcmp(&got, &s, sizeof(s)), 0);
  }
}

// No unknown 32-bit number becomes a known one.
TEST(SignatureMessageTest, UnknownNumbersStayUnknown) {
  proto::LocalSignature good;
  Signature s = Full();
  s.dims = 1;
  WriteSignature(s, &good);
  ASSERT_TRUE(CheckSignature("x", ReadSignature(good, 0)).ok());
  for (const uint32_t number : {11u, 77u, 255u, 256u, 257u, 65536u, ~0u}) {
    proto::LocalSignature bad[4] = {good, good, good, good};
    bad[0].set_kind(number);
    bad[1].set_dtype(number);
    bad[2].set_op(number);
    bad[3].set_device(number);
    for (const proto::LocalSignature& m : bad) {
      EXPECT_FALSE(CheckSignature("x", ReadSignature(m, 0)).ok())
          << m.ShortDebugString();
    }
  }
  for (int dims : {kMaxDims + 1, kMaxDims + 2, 256, 257}) {
    proto::LocalSignature m = good;
    m.clear_shape();
    for (int i = 0; i < dims; ++i) m.add_shape(1);
    EXPECT_FALSE(CheckSignature("x", ReadSignature(m, 0)).ok()) << dims;
  }
}

}  // namespace
}  // namespace maypole
