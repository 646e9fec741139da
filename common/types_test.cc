#include "common/types.h"

#include <gtest/gtest.h>

namespace maypole {
namespace {

TEST(TypesTest, WhatEachKindDoesWithTheInputs) {
  struct Row {
    Kind kind;
    const char* name;
    bool reduces;
    bool gathers;
  };
  constexpr Row kRows[kKinds] = {
      {Kind::kAllreduce, "allreduce", true, false},
      {Kind::kAllgather, "allgather", false, true},
      {Kind::kBroadcast, "broadcast", false, false},
      {Kind::kAlltoall, "alltoall", false, true},
      {Kind::kReducescatter, "reducescatter", true, false},
      {Kind::kBarrier, "barrier", false, false},
      {Kind::kJoin, "join", false, false},
  };
  for (int i = 0; i < kKinds; ++i) {
    const Row& row = kRows[i];
    EXPECT_EQ(static_cast<int>(row.kind), i);  // part of the C ABI
    EXPECT_EQ(Name(row.kind), row.name);
    EXPECT_EQ(Reduces(row.kind), row.reduces) << row.name;
    EXPECT_EQ(Gathers(row.kind), row.gathers) << row.name;
  }
}

// Numbers come from other processes before they have been checked.
TEST(TypesTest, AnUnknownKindDoesNothing) {
  for (int number = kKinds; number < 256; ++number) {
    const Kind kind = static_cast<Kind>(number);
    EXPECT_FALSE(IsKnown(kind));
    EXPECT_FALSE(Reduces(kind)) << number;
    EXPECT_FALSE(Gathers(kind)) << number;
    EXPECT_EQ(Name(kind), "unknown");
  }
}

}  // namespace
}  // namespace maypole
