#include "coordinator/service/refusals.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RefusalsTest, OneLineAtOnceAndThenOnePerPause) {
  Refusals refusals;
  EXPECT_THAT(refusals.Report(seconds(100), "ipv4:10.0.0.7:1", "no \"secret\""),
              ElementsAre("event=unauthenticated peer=ipv4:10.0.0.7:1 "
                          "reason=\"no \\\"secret\\\"\""));
  for (int i = 2; i <= 1000; ++i) {
    EXPECT_THAT(refusals.Report(seconds(101), absl::StrCat("ipv4:10.0.0.7:", i),
                                "other"),
                IsEmpty());
    EXPECT_THAT(refusals.Flush(seconds(101)), IsEmpty());
  }
  EXPECT_THAT(refusals.Flush(seconds(110)),
              ElementsAre("event=unauthenticated peer=ipv4:10.0.0.7:1000 "
                          "reason=\"other\" more=999"));
  EXPECT_THAT(refusals.Report(seconds(111), "ipv4:10.0.0.7:1", "other"),
              IsEmpty());
  EXPECT_THAT(refusals.Flush(seconds(120)), ::testing::SizeIs(1));
  EXPECT_THAT(refusals.Flush(seconds(130)), IsEmpty());
  // Forgotten.
  EXPECT_THAT(refusals.Report(seconds(131), "ipv4:10.0.0.7:1", "other"),
              ::testing::SizeIs(1));
}

TEST(RefusalsTest, ManyAddressesAreFewLinesToo) {
  Refusals refusals;
  size_t lines = 0;
  for (int second = 0; second < 20; ++second) {
    for (int i = 0; i < 10'000; ++i) {
      lines += refusals
                   .Report(seconds(second),
                           absl::StrCat("ipv4:10.", i / 256, ".", i % 256,
                                        ".7:4001"),
                           "no secret")
                   .size();
    }
    lines += refusals.Flush(seconds(second)).size();
  }
  EXPECT_LE(lines, 2 * (kMaxRefusedPeers + 1));
}

}  // namespace
}  // namespace maypole::coordinator
