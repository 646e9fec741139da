#include "common/timeline/record.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/limits.h"

namespace maypole {
namespace {

TimelineRecord Sample(std::string_view name) {
  TimelineRecord r;
  r.kind = Kind::kAllgather;
  r.failed = true;
  r.rank = 7;
  r.process_set = 2;
  r.members = 3;
  r.number = 41;
  r.count = 5;
  r.bytes = uint64_t{1} << 40;
  r.submitted = 1;
  r.arrived = 2;
  r.begun = 3;
  r.ended = 4;
  r.name = name;
  return r;
}

TEST(TimelineRecord, ComesBackAsItWas) {
  std::string packed;
  const std::string longest(kMaxNameBytes, 'x');
  for (const std::string& name :
       {std::string("grad"), std::string(), longest}) {
    const size_t before = packed.size();
    Append(Sample(name), &packed);
    EXPECT_EQ(packed.size() - before, PackedBytes(Sample(name)));
    EXPECT_EQ(packed.size() % 8, 0u);
  }
  std::vector<std::string> names;
  ForRecords(packed, [&](const TimelineRecord& r) {
    names.emplace_back(r.name);
    EXPECT_EQ(r.kind, Kind::kAllgather);
    EXPECT_TRUE(r.failed);
    EXPECT_EQ(r.rank, 7);
    EXPECT_EQ(r.process_set, 2u);
    EXPECT_EQ(r.members, 3u);
    EXPECT_EQ(r.number, 41u);
    EXPECT_EQ(r.count, 5u);
    EXPECT_EQ(r.bytes, uint64_t{1} << 40);
    EXPECT_EQ(r.submitted, 1);
    EXPECT_EQ(r.arrived, 2);
    EXPECT_EQ(r.begun, 3);
    EXPECT_EQ(r.ended, 4);
  });
  EXPECT_EQ(names, (std::vector<std::string>{"grad", "", longest}));
}

TEST(TimelineRecord, WholeRecordsAreNotCut) {
  std::string packed;
  for (int i = 0; i < 3; ++i) Append(Sample("grad"), &packed);
  const size_t one = packed.size() / 3;
  EXPECT_EQ(WholeRecords(packed, 2 * one + 1), 2 * one);
  EXPECT_EQ(WholeRecords(packed, one - 1), 0u);
  EXPECT_EQ(WholeRecords(packed, 1 << 20), 3 * one);
}

// Any single wrong byte, and any cut: no crash, and never a field outside its
// range.
TEST(TimelineRecord, WrongBytesAreIgnored) {
  std::string packed;
  for (int i = 0; i < 3; ++i) Append(Sample("gradient"), &packed);
  const auto check = [](const TimelineRecord& r) {
    EXPECT_TRUE(IsKnown(r.kind));
    EXPECT_LT(r.rank, kMaxRanks);
    EXPECT_GE(r.rank, 0);
    EXPECT_LE(r.members, uint32_t{kMaxRanks});
    EXPECT_LE(r.name.size(), kMaxNameBytes);
  };
  for (size_t i = 0; i < packed.size(); ++i) {
    for (const char bad : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string wrong = packed;
      wrong[i] = bad;
      ForRecords(wrong, check);
      EXPECT_LE(WholeRecords(wrong, wrong.size()), wrong.size());
    }
    int complete = 0;
    ForRecords(packed.substr(0, i), [&](const TimelineRecord& r) {
      check(r);
      ++complete;
    });
    EXPECT_EQ(complete, static_cast<int>(i / (packed.size() / 3)));
  }
}

}  // namespace
}  // namespace maypole
