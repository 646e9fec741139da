#include "common/wire/versions.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

uint32_t Chosen(const std::vector<Speaker>& speakers) {
  uint32_t version = 0;
  const Status s = ChooseVersion(speakers, &version);
  EXPECT_TRUE(s.ok()) << s.message();
  return version;
}

std::string Error(const std::vector<Speaker>& speakers) {
  uint32_t version = 77;
  const Status s = ChooseVersion(speakers, &version);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(version, 77u) << "it is not touched";
  return s.message();
}

TEST(VersionsTest, TheSmallestOfTheNewestIsUsed) {
  EXPECT_EQ(Chosen({{"a", {10, 11}}, {"b", {10, 11}}}), 11u);
  EXPECT_EQ(Chosen({{"a", {10, 11}}, {"b", {10, 10}}}), 10u);
  EXPECT_EQ(Chosen({{"a", {9, 12}}, {"b", {11, 14}}}), 12u);
  EXPECT_EQ(Chosen({{"a", {11, 12}}, {"b", {9, 11}}}), 11u);
  EXPECT_EQ(Chosen({{"a", {10, 11}}, {"b", {9, 10}}, {"c", {10, 12}}}), 10u);
  EXPECT_EQ(Chosen({{"a", {10, 11}}}), 11u);
}

TEST(VersionsTest, RangesThatDoNotMeetAreNamedWithWhomToUpgrade) {
  const std::string expected =
      "the agent of node n1 speaks protocol versions 8 to 9, but rank 3 speaks "
      "protocol versions 10 to 11; upgrade the agent of node n1";
  const Speaker agent{"the agent of node n1", {8, 9}};
  const Speaker rank{"rank 3", {10, 11}};
  EXPECT_EQ(Error({agent, rank}), expected);
  EXPECT_EQ(Error({rank, agent}), expected);
  EXPECT_EQ(Error({{"a", {11, 11}}, {"b", {10, 10}}}),
            "b speaks protocol version 10, but a speaks protocol version 11; "
            "upgrade b");
}

TEST(VersionsTest, OfSeveralTheOneThatIsTooOldIsNamed) {
  EXPECT_EQ(
      Error({{"a", {10, 12}}, {"b", {12, 13}}, {"c", {9, 11}}}),
      "c speaks protocol versions 9 to 11, but b speaks protocol versions "
      "12 to 13; upgrade c");
}

TEST(VersionsTest, ARangeThatIsNoneIsRefused) {
  uint32_t version = 0;
  const Status s = ChooseVersion({{"a", {10, 11}}, {"b", {12, 11}}}, &version);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.message(),
            "b speaks protocol versions 12 to 11; the oldest must not be after "
            "the newest");
}

}  // namespace
}  // namespace maypole
