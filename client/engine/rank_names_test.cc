#include "client/engine/rank_names.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"
#include "common/unnamed.h"

namespace maypole {
namespace {

class RankNamesTest : public testing::Test {
 protected:
  RankNamesTest() {
    BoardConfig config;
    config.size = config.local_size = 1;
    config.slots = 64;
    config.chunk_bytes = 4096;
    EXPECT_TRUE(Board::Create(config, &board_).ok());
    requests_ = std::make_unique<ExecutorRequests>(&shell_);
    names_ = std::make_unique<RankNames>(board_.get(), 0, requests_.get());
  }
  // The executor answers the rank's `request` with this slot.
  Status Answer(uint32_t request, uint32_t slot) {
    RankName* const name = names_->TakeRequested(request);
    if (name == nullptr) return Status(Code::kInternal, "nobody asked");
    auto reply = session::Make<session::SlotReply>();
    reply.request = request;
    reply.slot = slot;
    return names_->Allot(*name, reply);
  }
  void OnBoard(uint32_t slot, const std::string& name, uint32_t base = 0) {
    board_->Allot(slot, 0, Kind::kAllreduce, name, 1, slot + 1, base);
  }
  RankName& Add(const std::string& name) {
    return names_->FindOrAdd(0, Kind::kAllreduce, name);
  }
  // The name that a kind's next unnamed operation gets.
  std::string Unnamed(Kind kind) {
    Operation op;
    op.signature.kind = kind;
    names_->Number(op);
    return op.name;
  }

  Shell shell_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<ExecutorRequests> requests_;
  std::unique_ptr<RankNames> names_;
};

TEST_F(RankNamesTest, ANewNameRequestsASlotOnce) {
  EXPECT_EQ(names_->Find(0, Kind::kAllreduce, "x"), nullptr);
  RankName& x = Add("x");
  EXPECT_FALSE(x.known);
  EXPECT_EQ(&Add("x"), &x);
  ASSERT_EQ(shell_.sent.size(), 1u);
  session::SlotRequest request;
  ASSERT_TRUE(
      session::Parse(shell_.sent[0].data(), shell_.sent[0].size(), &request)
          .ok());
  EXPECT_EQ(request.request, 1u);
  EXPECT_STREQ(request.name, "x");
  EXPECT_TRUE(requests_->any());
  EXPECT_TRUE(names_->AnyQueued()) << "it has no slot";
  OnBoard(3, "x", 7);
  EXPECT_TRUE(Answer(1, 3).ok());
  EXPECT_FALSE(requests_->any());
  EXPECT_FALSE(names_->AnyQueued());
  EXPECT_TRUE(x.known);
  EXPECT_EQ(x.base, 7u);
  EXPECT_EQ(names_->At(3), &x);
  EXPECT_FALSE(Answer(1, 3).ok()) << "it is answered";
  names_->Remove(x);
  EXPECT_EQ(names_->At(3), nullptr);
  EXPECT_EQ(names_->Find(0, Kind::kAllreduce, "x"), nullptr);
}

TEST_F(RankNamesTest, ASlotOfAnotherNameIsRefused) {
  Add("x");
  OnBoard(3, "y");
  EXPECT_EQ(Answer(1, 3).message(),
            "the executor allotted slot 3, which belongs to another operation");
  EXPECT_EQ(names_->At(3), nullptr);
  Add("z");
  EXPECT_FALSE(Answer(2, 64).ok()) << "there is no such slot";
  EXPECT_EQ(names_->At(64), nullptr);
}

TEST_F(RankNamesTest, WaitingOperationsBySlot) {
  std::vector<Operation*> expected;
  for (const uint32_t slot : {5, 2}) {
    const std::string name = std::to_string(slot);
    RankName& n = Add(name);
    OnBoard(slot, name);
    ASSERT_TRUE(Answer(slot == 5 ? 1 : 2, slot).ok());
    n.current = std::make_shared<Operation>();
    n.waiting = true;
    expected.insert(expected.begin(), n.current.get());
  }
  EXPECT_EQ(names_->Waiting(), expected);
  names_->At(2)->waiting = false;
  EXPECT_EQ(names_->Waiting(), std::vector<Operation*>{expected[1]});
  ASSERT_NE(names_->FindBusy(0), nullptr);
  EXPECT_EQ(names_->FindBusy(1), nullptr);
}

TEST_F(RankNamesTest, UnnamedOperationsAreCountedByKind) {
  EXPECT_EQ(Unnamed(Kind::kAllreduce), "unnamed.0");
  EXPECT_EQ(Unnamed(Kind::kAllreduce), "unnamed.1");
  EXPECT_EQ(Unnamed(Kind::kBroadcast), "unnamed.0");
  Operation barrier;
  barrier.name = "b";
  barrier.signature.kind = Kind::kBarrier;
  names_->Number(barrier);
  EXPECT_EQ(barrier.name, "b");
  EXPECT_EQ(barrier.signature.dims, kMaxDims);
  EXPECT_EQ(barrier.signature.shape[1 + static_cast<int>(Kind::kAllreduce)], 2);
  EXPECT_EQ(barrier.signature.shape[1 + static_cast<int>(Kind::kBroadcast)], 1);
}

TEST_F(RankNamesTest, AfterStandingInTheNextUnnamedOperationHasTheNextNumber) {
  RankName name;
  name.kind = Kind::kAllreduce;
  name.name = "unnamed.4";
  name.base = 10;
  name.generation = 11;  // one round of the ring is over
  names_->CountStandIn(name);
  name.name = "unnamed.2";  // found later, earlier in the ring
  names_->CountStandIn(name);
  EXPECT_EQ(Unnamed(Kind::kAllreduce),
            "unnamed." + std::to_string(5 % UnnamedNames(0)));
  name.name = "x";
  names_->CountStandIn(name);
  EXPECT_EQ(Unnamed(Kind::kAllreduce), "unnamed.6");
}

}  // namespace
}  // namespace maypole
