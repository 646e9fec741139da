#include "client/engine/process_set_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

class ProcessSetTableTest : public testing::Test {
 protected:
  ProcessSetTableTest() {
    BoardConfig config;
    config.size = config.local_size = 3;
    config.slots = 64;
    config.chunk_bytes = 4096;
    for (int i = 0; i < 3; ++i) config.global_rank[i] = i;
    EXPECT_TRUE(Board::Create(config, &board_).ok());
    requests_ = std::make_unique<ExecutorRequests>(&shell_);
    table_ = std::make_unique<ProcessSetTable>(board_.get(), requests_.get());
  }
  std::shared_ptr<Operation> Request(std::vector<int> ranks,
                                     uint32_t removes = 0,
                                     bool by_members = false) {
    auto op = std::make_shared<Operation>();
    op->control = Control::kSetRequest;
    op->name = "process set";
    op->ranks = std::move(ranks);
    op->removes = removes;
    op->by_members = by_members;
    EXPECT_TRUE(table_->CheckRequest(*op).ok());
    table_->Request(op);
    return op;
  }
  session::SetRequest LastSent() const {
    session::SetRequest request;
    EXPECT_TRUE(session::Parse(shell_.sent.back().data(),
                               shell_.sent.back().size(), &request)
                    .ok());
    return request;
  }
  auto Reply(uint32_t number, uint32_t set, bool by_members = false,
             const std::string& error = "") {
    auto reply = session::Make<session::SetReply>();
    reply.number = number;
    reply.process_set = set;
    reply.by_members = by_members ? 1 : 0;
    if (!error.empty()) {
      reply.code = static_cast<uint32_t>(Code::kInvalidArgument);
      session::SetText(reply.text, error);
    }
    return table_->OnReply(reply);
  }

  Shell shell_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<ExecutorRequests> requests_;
  std::unique_ptr<ProcessSetTable> table_;
};

TEST_F(ProcessSetTableTest, IsAddedAndRemoved) {
  EXPECT_EQ(table_->Find(0), table_->global());
  const auto added = Request({0, 2});
  EXPECT_EQ(LastSent().members[0], 0b101u);
  EXPECT_EQ(table_->Find(4), nullptr);
  EXPECT_EQ(Reply(1, 4).first, added);
  EXPECT_EQ(added->answer, 4);
  ASSERT_NE(table_->Find(4), nullptr);
  EXPECT_EQ(table_->Find(4)->ranks, (std::vector<int>{0, 2}));

  auto use = std::make_shared<Operation>();
  use->name = "x";
  use->signature.process_set = 4;
  EXPECT_TRUE(table_->CheckNotRemoved({&use, 1}).ok());
  const auto removed = Request({}, 4);
  EXPECT_EQ(LastSent().remove, 1u);
  EXPECT_NE(table_->Find(4), nullptr) << "until all ranks have requested it";
  EXPECT_EQ(table_->CheckNotRemoved({&use, 1}).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(Reply(2, 4).first, removed);
  EXPECT_EQ(table_->Find(4), nullptr);
  EXPECT_FALSE(requests_->any());
  EXPECT_EQ(table_->CheckRequest(*removed).code(), Code::kInvalidArgument);
}

TEST_F(ProcessSetTableTest, RequestsOfMembersAreNumberedApart) {
  const auto of_all = Request({0, 1});
  const auto of_members = Request({0, 1}, 0, /*by_members=*/true);
  EXPECT_EQ(LastSent().number, 1u);
  EXPECT_EQ(table_->pending(), 2u);
  EXPECT_EQ(Reply(1, 5, /*by_members=*/true).first, of_members);
  EXPECT_EQ(Reply(1, 6).first, of_all);
  EXPECT_EQ(Reply(1, 6).first, nullptr) << "nobody waits for it";
}

TEST_F(ProcessSetTableTest, ARefusedRemovalLeavesTheSet) {
  Request({0, 1});
  Reply(1, 4);
  Request({}, 4);
  const auto [op, status] = Reply(2, 4, false, "other ranks add one");
  EXPECT_EQ(status.message(), "process set: other ranks add one");
  auto use = std::make_shared<Operation>();
  use->signature.process_set = 4;
  EXPECT_TRUE(table_->CheckNotRemoved({&use, 1}).ok());
  EXPECT_NE(table_->Find(4), nullptr);
}

TEST_F(ProcessSetTableTest, UnansweredRequestsHaveALimit) {
  for (uint32_t i = 0; i < kMaxSetRequests; ++i) Request({0, 1});
  Operation op;
  EXPECT_EQ(table_->CheckRequest(op).code(), Code::kResourceExhausted);
  EXPECT_EQ(table_->TakePending().size(), kMaxSetRequests);
  EXPECT_FALSE(requests_->any());
  EXPECT_EQ(table_->pending(), 0u);
  EXPECT_TRUE(table_->CheckRequest(op).ok());
}

}  // namespace
}  // namespace maypole
