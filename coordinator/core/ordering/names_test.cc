// Names come and go: the table forgets unused names.
#include <string>
#include <vector>

#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config FewNames() {
  Config config;
  config.operations = 4;
  return config;
}

// Node n0 with ranks 0 and 1, n1 with rank 2; there is room for four names.
class NamesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed_.Ready(a_, 3, {0, 1});
    bed_.Ready(b_, 3, {2});
  }
  // By identity; or by id, if one is given.
  static proto::PresentOperation Make(const std::string& name, bool on_a,
                                      uint32_t generation, uint32_t id) {
    auto op = on_a ? Allreduce(name, {0, 1}, {3}, generation)
                   : Allreduce(name, {2}, {3}, generation);
    if (id != 0) {
      op.clear_identity();
      op.set_id(id);
    }
    return op;
  }
  void OnA(const std::string& name, uint32_t generation = 1, uint32_t id = 0) {
    bed_.From(a_, Present(1, {Make(name, true, generation, id)}));
  }
  void OnB(const std::string& name, uint32_t generation = 1, uint32_t id = 0) {
    bed_.From(b_, Present(1, {Make(name, false, generation, id)}));
  }
  void Both(const std::string& name, uint32_t generation = 1, uint32_t id = 0) {
    OnA(name, generation, id);
    OnB(name, generation, id);
    bed_.Pass(Config().fusion_age);
  }
  void FillUp() {
    for (const char* name : {"t1", "t2", "t3", "t4"}) Both(name);
  }
  static std::vector<uint32_t> Retired(const Executor& e) {
    std::vector<uint32_t> ids;
    for (const auto& m : e.inbox) {
      ids.insert(ids.end(), m.names_retired().ids().begin(),
                 m.names_retired().ids().end());
    }
    return ids;
  }
  static proto::ExecutorMessage Retire(const std::vector<uint32_t>& ids) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    m.mutable_retire_names()->mutable_ids()->Assign(ids.begin(), ids.end());
    return m;
  }

  TestBed bed_{FewNames()};
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(NamesTest, ANewNameTakesThePlaceOfTheLeastRecentlyUsed) {
  FillUp();
  Both("t1", 2, 1);
  Both("new");
  EXPECT_EQ(a_.runs.size(), 6u);
  EXPECT_THAT(Retired(a_), ElementsAre(2));
  EXPECT_THAT(Retired(b_), ElementsAre(2));
  EXPECT_EQ(b_.runs[5].operations(0).id(), 2 + kMaxOperations);
  EXPECT_EQ(b_.runs[5].operations(0).identity().name(), "new");
}

// The report was in flight when the node was told.
TEST_F(NamesTest, WhatIsReportedByAForgottenIdComesAgain) {
  FillUp();
  OnA("new");
  OnB("t1", 2, 1);
  EXPECT_FALSE(b_.refused);
  EXPECT_EQ(bed_.core().totals().pending_operations, 1u);
  OnB("t1");
  OnA("t1");
  bed_.Pass(Config().fusion_age);
  ASSERT_EQ(a_.runs.size(), 5u);
  EXPECT_EQ(a_.runs[4].operations(0).identity().name(), "t1");
  EXPECT_EQ(a_.runs[4].operations(0).generation(), 1u);
  EXPECT_EQ(a_.runs[4].operations(0).id(), 2 + kMaxOperations);
  // A wait for it that also crossed has no effect.
  proto::ExecutorMessage urgent;
  urgent.set_epoch(1);
  urgent.mutable_presence()->add_urgent()->set_id(1);
  bed_.From(b_, urgent);
  EXPECT_FALSE(b_.refused);
}

TEST_F(NamesTest, WhatIsPendingIsNotForgotten) {
  for (const char* name : {"t1", "t2", "t3", "t4"}) OnA(name);
  OnA("new");
  EXPECT_FALSE(a_.refused);
  EXPECT_THAT(Retired(a_), IsEmpty());
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].id(), 0u);
  EXPECT_EQ(a_.failures[0].identity().name(), "new");
  EXPECT_THAT(a_.failures[0].message(),
              HasSubstr("4 operations of the job are pending at the same "
                        "time"));
  OnB("t1");
  bed_.Pass(Config().fusion_age);
  OnA("new");
  EXPECT_THAT(Retired(b_), ElementsAre(1));
}

TEST_F(NamesTest, ANodeMayWantNamesForgotten) {
  FillUp();
  OnB("t2", 2, 2);
  bed_.From(a_, Retire({1, 2, 4}));
  EXPECT_THAT(Retired(a_), ElementsAre(1, 4));  // t2 is pending
  EXPECT_THAT(Retired(b_), ElementsAre(1, 4));
  bed_.From(b_, Retire({1, 3}));  // it has not heard of the first yet
  EXPECT_THAT(Retired(a_), ElementsAre(1, 4, 3));
  OnA("t2", 2, 2);
  EXPECT_EQ(a_.runs.size(), 5u);
  Both("t1");
  EXPECT_EQ(a_.runs.size(), 6u);
}

TEST_F(NamesTest, ANodeKnowsOnlyTheIdsOfItsSets) {
  for (const uint32_t rank : {0, 1}) bed_.From(a_, MakeSet(rank, 1, {0, 1}));
  bed_.From(b_, MakeSet(2, 1, {0, 1}));
  bed_.From(a_, Present(1, {In(1, Allreduce("x", {0, 1}, {3}))}));
  bed_.From(b_, Retire({1}));
  ASSERT_TRUE(b_.refused);
  EXPECT_THAT(b_.refused->message(),
              HasSubstr("was retired by a node without ranks of"));
}

TEST_F(NamesTest, UnknownIdsCannotBeForgotten) {
  bed_.From(a_, Retire({99}));
  ASSERT_TRUE(a_.refused);
  EXPECT_THAT(a_.refused->message(), HasSubstr("unknown operation id 99"));
}

// A step counter in all names, for many times as many steps as there is room
// for.
TEST_F(NamesTest, NamesOverAJobsLifeHaveNoLimit) {
  for (int step = 0; step < 100; ++step) {
    Both("t" + std::to_string(step));
    ASSERT_EQ(b_.runs.size(), static_cast<size_t>(step) + 1);
  }
  EXPECT_THAT(a_.failures, IsEmpty());
  EXPECT_EQ(Retired(a_).size(), 96u);
}

}  // namespace
}  // namespace maypole::coordinator
