// Operations on the GPUs of several nodes.
#include "coordinator/core/ordering/communicators.h"

#include <string>
#include <vector>

#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;

proto::ExecutorMessage Endpoint(int nodes, uint32_t nccl) {
  proto::ExecutorMessage m;
  m.mutable_endpoint()->set_epoch(1);
  for (int i = 0; i < nodes; ++i) m.mutable_endpoint()->add_addresses("x");
  m.mutable_endpoint()->set_nccl_version(nccl);
  return m;
}

proto::PresentOperation On(const std::vector<uint32_t>& gpus,
                           proto::PresentOperation op) {
  op.mutable_gpus()->Assign(gpus.begin(), gpus.end());
  return op;
}

proto::ExecutorMessage Id(uint32_t number, const std::string& id) {
  proto::ExecutorMessage m;
  m.mutable_communicator_id()->set_epoch(1);
  m.mutable_communicator_id()->set_number(number);
  m.mutable_communicator_id()->set_id(id);
  return m;
}

std::vector<proto::Communicator> Announced(const Executor& e) {
  std::vector<proto::Communicator> out;
  for (const proto::CoordinatorMessage& m : e.inbox) {
    if (m.has_communicator()) out.push_back(m.communicator());
  }
  return out;
}

std::vector<uint32_t> Gpus(const proto::Communicator& c) {
  return {c.gpus().begin(), c.gpus().end()};
}

// Node n0 with ranks 0 and 1, node n1 with ranks 2 and 3; epoch 1 runs.
class CommunicatorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed_.Ready(a_, 4, {0, 1});
    bed_.Ready(b_, 4, {2, 3});
  }
  void Endpoints(uint32_t nccl_of_a, uint32_t nccl_of_b) {
    bed_.From(a_, Endpoint(2, nccl_of_a));
    bed_.From(b_, Endpoint(2, nccl_of_b));
  }
  void Both(const std::string& name, const std::vector<uint32_t>& gpus_of_a,
            const std::vector<uint32_t>& gpus_of_b, uint32_t generation = 1) {
    bed_.From(
        a_,
        Present(1, {On(gpus_of_a, Allreduce(name, {0, 1}, {3}, generation))}));
    bed_.From(
        b_,
        Present(1, {On(gpus_of_b, Allreduce(name, {2, 3}, {3}, generation))}));
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(CommunicatorsTest, TheNodesLearnTheirParts) {
  Endpoints(22809, 22809);
  EXPECT_EQ(a_.Last().endpoints().nccl_version(), 22809u);
  Both("x", {0, 3}, {1});
  ASSERT_EQ(Announced(a_).size(), 1u);
  ASSERT_EQ(Announced(b_).size(), 1u);
  const proto::Communicator a = Announced(a_)[0];
  const proto::Communicator b = Announced(b_)[0];
  EXPECT_EQ(a.number(), 1u);
  EXPECT_EQ(b.number(), 1u);
  EXPECT_EQ(a.size(), 3u);
  EXPECT_EQ(b.size(), 3u);
  EXPECT_EQ(a.first(), 0u);
  EXPECT_EQ(b.first(), 2u);
  EXPECT_THAT(Gpus(a), ElementsAre(0, 3));
  EXPECT_THAT(Gpus(b), ElementsAre(1));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->runs.size(), 1u);
    EXPECT_EQ(e->runs[0].communicator(), 1u);
  }
  bed_.From(a_, Id(1, "unique"));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_TRUE(e->Last().has_communicator_id());
    EXPECT_EQ(e->Last().communicator_id().number(), 1u);
    EXPECT_EQ(e->Last().communicator_id().id(), "unique");
  }
}

TEST_F(CommunicatorsTest, EqualGpusHaveOneCommunicator) {
  Endpoints(22809, 22809);
  Both("x", {0}, {1});
  Both("y", {0}, {1});
  Both("z", {0}, {0});
  ASSERT_EQ(a_.runs.size(), 3u);
  EXPECT_EQ(a_.runs[0].communicator(), 1u);
  EXPECT_EQ(a_.runs[1].communicator(), 1u);
  EXPECT_EQ(a_.runs[2].communicator(), 2u);
  EXPECT_EQ(Announced(a_).size(), 2u);
}

TEST_F(CommunicatorsTest, OneNodeOnTheHostMeansAllOnTheHost) {
  Endpoints(22809, 22809);
  Both("x", {0}, {});
  EXPECT_EQ(a_.runs.at(0).communicator(), 0u);
  EXPECT_EQ(b_.runs.at(0).communicator(), 0u);
  EXPECT_TRUE(Announced(a_).empty());
}

TEST_F(CommunicatorsTest, DifferentVersionsMeanTheHostAndAreLogged) {
  Endpoints(22809, 22304);
  EXPECT_EQ(a_.Last().endpoints().nccl_version(), 0u);
  Both("x", {0}, {0});
  EXPECT_EQ(a_.runs.at(0).communicator(), 0u);
  EXPECT_THAT(bed_.log(), ::testing::Contains(::testing::AllOf(
                              ::testing::HasSubstr("event=no_nccl"),
                              ::testing::HasSubstr("n0=22809 n1=22304"))));
}

TEST_F(CommunicatorsTest, OperationsOnTheHostAndOnGpusDoNotFuse) {
  Endpoints(22809, 22809);
  bed_.From(a_, Present(1, {On({0}, Allreduce("x", {0, 1}, {3})),
                            Allreduce("y", {0, 1}, {3}),
                            On({0}, Allreduce("z", {0, 1}, {3}))}));
  bed_.From(b_, Present(1, {On({0}, Allreduce("x", {2, 3}, {3})),
                            Allreduce("y", {2, 3}, {3}),
                            On({0}, Allreduce("z", {2, 3}, {3}))}));
  ASSERT_EQ(a_.runs.size(), 2u);
  EXPECT_EQ(a_.runs[0].operations_size(), 2);
  EXPECT_EQ(a_.runs[0].communicator(), 1u);
  EXPECT_EQ(a_.runs[1].operations_size(), 1);
  EXPECT_EQ(a_.runs[1].communicator(), 0u);
}

TEST_F(CommunicatorsTest, MoreGroupsOfGpusThanAllowedRunOnTheHost) {
  Endpoints(22809, 22809);
  for (uint32_t i = 0; i < kMaxCommunicators; ++i) {
    Both("x" + std::to_string(i), {i}, {0});
  }
  Both("more", {0}, {1});
  EXPECT_EQ(a_.runs.at(kMaxCommunicators - 1).communicator(),
            kMaxCommunicators);
  EXPECT_EQ(a_.runs.at(kMaxCommunicators).communicator(), 0u);
}

TEST_F(CommunicatorsTest, AnIdOfAnotherNodeIsABadMessage) {
  Endpoints(22809, 22809);
  Both("x", {0}, {0});
  bed_.From(b_, Id(1, "not the first node"));
  EXPECT_TRUE(b_.refused);
}

TEST_F(CommunicatorsTest, ATooLongIdIsABadMessage) {
  Endpoints(22809, 22809);
  Both("x", {0}, {0});
  bed_.From(a_, Id(1, std::string(kMaxCommunicatorIdBytes + 1, 'x')));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CommunicatorsTest, ASecondIdIsABadMessage) {
  Endpoints(22809, 22809);
  Both("x", {0}, {0});
  bed_.From(a_, Id(1, "id"));
  EXPECT_FALSE(a_.refused);
  bed_.From(a_, Id(1, "id"));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CommunicatorsTest, WrongGpusAreABadMessage) {
  Endpoints(22809, 22809);
  bed_.From(a_, Present(1, {On({1, 1}, Allreduce("x", {0, 1}, {3}))}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CommunicatorsTest, AGpuBeyondTheLimitIsABadMessage) {
  Endpoints(22809, 22809);
  bed_.From(b_, Present(1, {On({kMaxGpus}, Allreduce("x", {2, 3}, {3}))}));
  EXPECT_TRUE(b_.refused);
}

}  // namespace
}  // namespace maypole::coordinator
