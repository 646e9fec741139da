#include "common/gather_room.h"

#include <gtest/gtest.h>

#include <vector>

namespace maypole {
namespace {

using Rows = std::vector<int64_t>;
using Rooms = std::vector<uint64_t>;

TEST(GatherRoomTest, AnAllgathersResultMustFitEverywhere) {
  EXPECT_TRUE(
      ResultsHaveRoom(Kind::kAllgather, 8, Rows{3, 0, 1}, Rooms{32, 40, 32}));
  EXPECT_FALSE(
      ResultsHaveRoom(Kind::kAllgather, 8, Rows{3, 0, 1}, Rooms{32, 40, 31}));
}

TEST(GatherRoomTest, AnAlltoallsResultsMayDiffer) {
  const Rows rows = {1, 2, 0, 5};  // rank 0 gets 1 row, rank 1 gets 7
  EXPECT_TRUE(ResultsHaveRoom(Kind::kAlltoall, 4, rows, Rooms{4, 28}));
  EXPECT_FALSE(ResultsHaveRoom(Kind::kAlltoall, 4, rows, Rooms{3, 28}));
  EXPECT_FALSE(ResultsHaveRoom(Kind::kAlltoall, 4, rows, Rooms{4, 27}));
  EXPECT_TRUE(
      ResultsHaveRoom(Kind::kAlltoall, 4, Rows{0, 3, 0, 0}, Rooms{0, 12}));
}

TEST(GatherRoomTest, NothingToGatherIsNothingForGpus) {
  EXPECT_FALSE(
      ResultsHaveRoom(Kind::kAllgather, 8, Rows{0, 0}, Rooms{100, 100}));
  EXPECT_FALSE(
      ResultsHaveRoom(Kind::kAllgather, 0, Rows{3, 4}, Rooms{100, 100}));
}

TEST(GatherRoomTest, ARankGuessesFromItsTensorAndFromTheLastResult) {
  EXPECT_EQ(GatheredRoom(Kind::kAllgather, 100, 4, 0), 400u);
  EXPECT_EQ(GatheredRoom(Kind::kAlltoall, 100, 4, 0), 100u);
  EXPECT_EQ(GatheredRoom(Kind::kAllgather, 0, 4, 1000), 1250u);
}

}  // namespace
}  // namespace maypole
