// A rank's process sets, groups and aborts, and when it reports that it is
// blocked.
#include "client/engine/rank_core.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

TEST(RankCoreTest, ASetIsThereWhenAllHaveAskedAndItsOperationsAreItsOwn) {
  World w(3);
  EXPECT_EQ(w.MakeSet({0, 2}), 1u);
  EXPECT_EQ(w.MakeSet({1, 2}), 2u);
  Tensor a = Make(Kind::kAllreduce, "x", {1, 2}, Op::kSum, 1);
  Tensor b = Make(Kind::kAllreduce, "x", {10, 20}, Op::kSum, 1);
  Tensor c = Make(Kind::kAllreduce, "x", {5}, Op::kMax, 2);
  Tensor d = Make(Kind::kAllreduce, "x", {7}, Op::kMax, 2);
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_TRUE(w.Submit(2, d).ok());  // the same name, another set
  EXPECT_TRUE(w.Submit(2, b).ok());
  EXPECT_TRUE(w.Submit(1, c).ok());
  w.Settle();
  for (Tensor* t : {&a, &b}) {
    ASSERT_TRUE(t->op->done.load());
    EXPECT_EQ(t->output, (std::vector<int32_t>{11, 22}));
  }
  EXPECT_EQ(c.output, std::vector<int32_t>{7});
  EXPECT_EQ(d.output, std::vector<int32_t>{7});
}

TEST(RankCoreTest, AGroupIsTakenWholeOrNotAtAll) {
  World w(2);
  Tensor pending = Make(Kind::kAllreduce, "b", {1});
  EXPECT_TRUE(w.Submit(0, pending).ok());
  std::vector<Tensor> group;
  for (const char* name : {"a", "b", "c"}) {
    group.push_back(Make(Kind::kAllreduce, name, {1}));
    group.back().op->set = w.cores[0]->FindSet(0);
  }
  std::vector<std::shared_ptr<Operation>> ops;
  for (Tensor& t : group) ops.push_back(t.op);
  const Status s = w.cores[0]->Start(ops);
  EXPECT_EQ(s.code(), Code::kAlreadyExists);
  EXPECT_NE(s.message().find("allreduce 'b'"), std::string::npos);
  EXPECT_NE(s.message().find("none of the group's 3"), std::string::npos);
  EXPECT_EQ(w.cores[0]->outstanding(), 1u);
  ops[1]->name = "a";
  EXPECT_NE(w.cores[0]->Start(ops).message().find("occurs twice"),
            std::string::npos);
  // The names of the refused operations can be used.
  Tensor a = Make(Kind::kAllreduce, "a", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
}

TEST(RankCoreTest, ASetWithPendingOperationsIsNotRemoved) {
  World w(2);
  const uint32_t id = w.MakeSet({0});
  Tensor a = Make(Kind::kAllreduce, "a", {1}, Op::kSum, id);
  EXPECT_TRUE(w.Submit(0, a).ok());
  auto remove = std::make_shared<Operation>();
  remove->control = Control::kSetRequest;
  remove->name = "removal of process set 1";
  remove->removes = id;
  const Status s = w.Start(0, remove);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            "removal of process set 1: allreduce 'a' is still pending on it; "
            "wait for it first");
  w.Settle();
  EXPECT_TRUE(a.op->done.load());
  auto other = std::make_shared<Operation>();
  other->control = Control::kSetRequest;
  other->name = remove->name;
  other->removes = id;
  EXPECT_TRUE(w.Start(0, remove).ok());
  EXPECT_TRUE(w.Start(1, other).ok());
  w.Settle();
  EXPECT_TRUE(remove->done.load());
  EXPECT_EQ(w.cores[0]->FindSet(id), nullptr);
}

TEST(RankCoreTest, ASetThatIsBeingRemovedTakesNoOperations) {
  World w(2);
  const uint32_t id = w.MakeSet({0});
  auto remove = std::make_shared<Operation>();
  remove->control = Control::kSetRequest;
  remove->name = "removal";
  remove->removes = id;
  EXPECT_TRUE(w.Start(0, remove).ok());
  Tensor a = Make(Kind::kAllreduce, "a", {1}, Op::kSum, id);
  const Status s = w.Submit(0, a);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            "allreduce 'a' of process set 1: the process set is being removed");
}

TEST(RankCoreTest, ARankIsNotBlockedWhileSomethingOfItMayStillBegin) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "a", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
  w.Settle();
  Tensor other = Make(Kind::kAllreduce, "b", {1});
  EXPECT_TRUE(w.Submit(0, other).ok());  // its slot is not allotted yet
  EXPECT_FALSE(w.cores[0]->SetBlocked(*a.op));
  w.Settle();
  EXPECT_TRUE(w.cores[0]->SetBlocked(*a.op));
}

TEST(RankCoreTest, AnAbortEndsJoinsAndRequests) {
  World w(2);
  const auto join = w.Join(0);
  auto set = std::make_shared<Operation>();
  set->control = Control::kSetRequest;
  set->name = "new process set [0]";
  set->ranks = {0};
  EXPECT_TRUE(w.Start(1, set).ok());
  w.Settle();
  EXPECT_FALSE(join->done.load());
  w.board->Abort(Code::kAborted, "rank 9 died");
  w.Settle();
  ASSERT_TRUE(join->done.load() && set->done.load());
  EXPECT_EQ(join->status.message(), "join: rank 9 died");
  EXPECT_EQ(set->status.message(), "new process set [0]: rank 9 died");
  EXPECT_EQ(w.cores[0]->outstanding() + w.cores[1]->outstanding(), 0u);
}

TEST(RankCoreTest, TheLastRankToBlockWakesTheExecutor) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "a", {1});
  Tensor b = Make(Kind::kAllgather, "a", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_FALSE(w.cores[0]->SetBlocked(*a.op));  // no slot yet
  EXPECT_TRUE(w.Submit(1, b).ok());
  w.Settle();
  EXPECT_TRUE(w.cores[0]->SetBlocked(*a.op));
  EXPECT_EQ(w.shells[0]->executor_wakes, 0);
  EXPECT_TRUE(w.cores[1]->SetBlocked(*b.op));
  EXPECT_EQ(w.shells[1]->executor_wakes, 1);
  const RankBlock& rank = w.board->rank(1);
  EXPECT_EQ(rank.blocked_on.load(), Tagged(1, b.op->slot));
  EXPECT_EQ(rank.blocked_count.load() % 2, 1u);
  w.cores[1]->ClearBlocked();
  EXPECT_EQ(rank.blocked_count.load(), 2u);
}

}  // namespace
}  // namespace maypole
