#include "coordinator/core/results/result_comparison.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ranks = std::vector<uint32_t>;

// Node n0 has ranks 0 and 1, n1 has 2 and 3, n2 has 4.
class ResultComparisonTest : public ::testing::Test {
 protected:
  struct Copies {
    uint32_t checksum;
    Ranks ranks;
  };
  static proto::Results Message(uint32_t id, uint32_t generation,
                                const std::vector<Copies>& all) {
    proto::Results message;
    proto::Result* result = message.add_results();
    result->mutable_identity()->set_name("w");
    result->set_id(id);
    result->set_generation(generation);
    for (const Copies& c : all) {
      proto::ResultCopies* copies = result->add_copies();
      copies->set_checksum(c.checksum);
      copies->set_bytes(400);
      copies->mutable_ranks()->Assign(c.ranks.begin(), c.ranks.end());
    }
    return message;
  }
  absl::Status Take(size_t node, const proto::Results& message) {
    return comparison_.Take(node, message, &found_);
  }
  static NodeMember Member(const std::string& node, const Ranks& ranks) {
    NodeMember m;
    m.node = m.host = node;
    m.ranks = ranks;
    return m;
  }

  JobOutput output_;
  EpochNodes nodes_{
      1,
      "j",
      {Member("n0", {0, 1}), Member("n1", {2, 3}), Member("n2", {4})},
      &output_};
  Departures departures_{&nodes_, 5};
  ProcessSets sets_{&nodes_, &departures_, 5};
  ResultComparison comparison_{&nodes_, &sets_, 3};
  std::vector<ResultDifference> found_;
};

TEST_F(ResultComparisonTest, OneRankDiffersWhateverTheOrderOfNodes) {
  std::vector<size_t> order = {0, 1, 2};
  uint32_t generation = 0;
  do {
    found_.clear();
    ++generation;
    for (const size_t node : order) {
      EXPECT_TRUE(found_.empty());
      const std::vector<Copies> copies =
          node == 0   ? std::vector<Copies>{{7, {0, 1}}}
          : node == 1 ? std::vector<Copies>{{7, {2}}, {8, {3}}}
                      : std::vector<Copies>{{7, {4}}};
      EXPECT_TRUE(Take(node, Message(1, generation, copies)).ok());
    }
    ASSERT_EQ(found_.size(), 1u);
    EXPECT_EQ(found_[0].tensor, "w");
    EXPECT_EQ(found_[0].kind, "allreduce");
    EXPECT_EQ(found_[0].call, generation);
    EXPECT_THAT(found_[0].ranks, ElementsAre(3));
    EXPECT_TRUE(found_[0].certain);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(found_[0].text,
            "results differ: allreduce 'w' (call 6): ranks 0,1,2,4 have "
            "checksum 00000007 of 400 bytes, rank 3 (node n1) has checksum "
            "00000008 of 400 bytes; wrong is the copy of rank 3");
  EXPECT_EQ(comparison_.undecided(), 0u);
  EXPECT_EQ(comparison_.TakeCounts().different, 6u);
}

TEST_F(ResultComparisonTest, OfTwoRanksEitherCanBeWrong) {
  proto::Results message;
  EXPECT_TRUE(Take(0, Message(1, 1, {{7, {0}}})).ok());
  EXPECT_TRUE(Take(1, Message(1, 1, {{8, {2}}})).ok());
  EXPECT_TRUE(Take(2, Message(1, 1, {})).ok()) << "it stands aside";
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_FALSE(found_[0].certain);
  EXPECT_THAT(found_[0].ranks, ElementsAre(0, 2));
  EXPECT_EQ(found_[0].text,
            "results differ: allreduce 'w' (call 1): rank 0 (node n0) has "
            "checksum 00000007 of 400 bytes, rank 2 (node n1) has checksum "
            "00000008 of 400 bytes; there is no majority, so any of them can "
            "be wrong");
}

TEST_F(ResultComparisonTest, EqualResultsAreCounted) {
  for (const size_t node : {2, 0, 1}) {
    const Ranks& ranks = nodes_[node].ranks;
    EXPECT_TRUE(Take(node, Message(1, 1, {{7, ranks}})).ok());
  }
  EXPECT_TRUE(found_.empty());
  EXPECT_EQ(comparison_.TakeCounts().equal, 1u);
  EXPECT_EQ(comparison_.TakeCounts().equal, 0u);
}

TEST_F(ResultComparisonTest, BeyondTheLimitTheOldestIsDecidedAsItIs) {
  EXPECT_TRUE(Take(0, Message(5, 1, {{7, {0}}, {8, {1}}})).ok());
  for (uint32_t id = 1; id <= 3; ++id) {
    EXPECT_TRUE(Take(0, Message(id, 1, {{7, {0, 1}}})).ok());
  }
  EXPECT_EQ(comparison_.undecided(), 3u);
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_THAT(found_[0].ranks, ElementsAre(0, 1));
  EXPECT_TRUE(Take(0, Message(9, 1, {{7, {0, 1}}})).ok());
  const ResultsCompared counts = comparison_.TakeCounts();
  EXPECT_EQ(counts.different, 1u);
  EXPECT_EQ(counts.unchecked, 1u);
}

TEST_F(ResultComparisonTest, AtTheEndWhatIsKnownIsCompared) {
  EXPECT_TRUE(Take(0, Message(1, 1, {{7, {0, 1}}})).ok());
  EXPECT_TRUE(Take(1, Message(1, 1, {{7, {2}}, {8, {3}}})).ok());
  EXPECT_TRUE(Take(1, Message(2, 1, {{7, {2, 3}}})).ok());
  comparison_.Finish(&found_);
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_THAT(found_[0].ranks, ElementsAre(3));
  EXPECT_EQ(comparison_.TakeCounts().unchecked, 1u);
  EXPECT_EQ(comparison_.undecided(), 0u);
}

TEST_F(ResultComparisonTest, MessagesOfNoCorrectExecutorAreRefused) {
  const std::vector<std::tuple<proto::Results, std::string>> wrong = {
      {Message(0, 1, {{7, {0}}, {8, {1}}}), "on 3 nodes"},
      {Message(1, 1, {{7, {2}}}), "wrong rank 2"},
      {Message(1, 1, {{7, {0, 0}}}), "wrong rank 0"},
      {Message(1, 1, {{7, {}}}), "without ranks"},
  };
  for (const auto& [message, text] : wrong) {
    EXPECT_THAT(std::string(Take(0, message).message()), HasSubstr(text));
  }
  proto::Results unknown = Message(1, 1, {});
  unknown.mutable_results(0)->mutable_identity()->set_process_set(5);
  EXPECT_THAT(std::string(Take(0, unknown).message()),
              HasSubstr("without ranks on the node"));
  EXPECT_TRUE(Take(0, Message(1, 1, {{7, {0, 1}}})).ok());
  EXPECT_THAT(std::string(Take(0, Message(1, 1, {{7, {0, 1}}})).message()),
              HasSubstr("two reports"));
  EXPECT_TRUE(found_.empty());
}

// A reported difference would have no second group to describe.
TEST_F(ResultComparisonTest, EqualCopiesAreNotSaidToDiffer) {
  proto::NodeState state;
  state.add_sets()->set_process_set(1);
  state.mutable_sets(0)->add_ranks(0);
  state.mutable_sets(0)->add_ranks(1);
  sets_.Restore(state);
  proto::Results message = Message(0, 1, {{7, {0}}, {7, {1}}});
  message.mutable_results(0)->mutable_identity()->set_process_set(1);
  EXPECT_THAT(std::string(Take(0, message).message()),
              HasSubstr("with equal copies apart"));
  EXPECT_TRUE(found_.empty());
}

}  // namespace
}  // namespace maypole::coordinator
