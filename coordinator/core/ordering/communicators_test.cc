// Operations on the GPUs of several nodes.
#include "coordinator/core/ordering/communicators.h"

#include <algorithm>
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
  m.set_epoch(1);
  for (int i = 0; i < nodes; ++i) m.mutable_endpoint()->add_addresses("x");
  m.mutable_endpoint()->set_nccl_version(nccl);
  return m;
}

// One GPU for each of the node's two ranks; or one for both.
proto::PresentOperation On(std::vector<uint32_t> gpus,
                           proto::PresentOperation op) {
  if (gpus.size() == 1) gpus.push_back(gpus.front());
  op.mutable_gpus()->Assign(gpus.begin(), gpus.end());
  return op;
}

proto::PresentOperation WithRooms(const std::vector<uint64_t>& rooms,
                                  proto::PresentOperation op) {
  op.mutable_gpu_rooms()->Assign(rooms.begin(), rooms.end());
  return op;
}

std::vector<uint32_t> MemberGpus(const proto::Run& run) {
  return {run.member_gpus().begin(), run.member_gpus().end()};
}

proto::ExecutorMessage Id(uint32_t number, const std::string& id) {
  proto::ExecutorMessage m;
  m.set_epoch(1);
  m.mutable_communicator_id()->set_number(number);
  m.mutable_communicator_id()->set_id(id);
  return m;
}

proto::ExecutorMessage Uses(uint32_t rank, uint32_t gpu,
                            const std::string& uuid, uint64_t nccl_host = 0) {
  proto::ExecutorMessage m;
  m.set_epoch(1);
  m.mutable_rank_gpu()->set_rank(rank);
  m.mutable_rank_gpu()->set_gpu(gpu);
  m.mutable_rank_gpu()->set_uuid(uuid);
  m.mutable_rank_gpu()->set_nccl_host(nccl_host);
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

// Executors of one machine may share GPUs (--nodes).
TEST_F(CommunicatorsTest, NodesThatShareAGpuUseTheHostThereAndItIsLoggedOnce) {
  Endpoints(22809, 22809);
  const std::string shared(kGpuUuidBytes, 'x');
  const std::string other(kGpuUuidBytes, 'y');
  bed_.From(a_, Uses(0, 0, shared));
  bed_.From(b_, Uses(2, 0, other));
  bed_.From(b_, Uses(3, 1, shared));
  Both("x", {0}, {0, 1});
  Both("y", {0}, {1});
  Both("z", {0}, {0});
  ASSERT_EQ(a_.runs.size(), 3u);
  EXPECT_EQ(a_.runs[0].communicator(), 0u);
  EXPECT_EQ(a_.runs[1].communicator(), 0u);
  EXPECT_EQ(a_.runs[2].communicator(), 1u);
  EXPECT_EQ(bed_.log().size(),
            1 + std::count_if(bed_.log().begin(), bed_.log().end(),
                              [](const std::string& line) {
                                return line.find("event=shared_gpu") ==
                                       std::string::npos;
                              }));
  EXPECT_THAT(bed_.log(), ::testing::Contains(::testing::AllOf(
                              ::testing::HasSubstr("event=shared_gpu"),
                              ::testing::HasSubstr("gpu=GPU-78787878-7878"),
                              ::testing::HasSubstr("node=n0 other=n1"))));
}

// So may executors of one machine whose ranks have set NCCL_HOSTID.
TEST_F(CommunicatorsTest, NodesThatShareAGpuConnectItIfNcclTakesThemForTwo) {
  Endpoints(22809, 22809);
  const std::string shared(kGpuUuidBytes, 'x');
  bed_.From(a_, Uses(0, 0, shared, 1));
  bed_.From(b_, Uses(2, 0, shared, 2));
  bed_.From(b_, Uses(3, 1, shared, 1));
  Both("x", {0}, {0});
  Both("y", {0}, {1});  // a host that is also the other node's
  ASSERT_EQ(a_.runs.size(), 2u);
  EXPECT_EQ(a_.runs[0].communicator(), 1u);
  EXPECT_EQ(a_.runs[1].communicator(), 0u);
}

struct WrongUse {
  uint32_t rank;
  uint32_t gpu;
  size_t uuid_bytes;
};
class WrongUseTest : public CommunicatorsTest,
                     public ::testing::WithParamInterface<WrongUse> {};

TEST_P(WrongUseTest, IsABadMessage) {
  bed_.From(a_, Uses(0, 0, std::string(kGpuUuidBytes, 'x')));
  EXPECT_FALSE(a_.refused);
  const auto [rank, gpu, bytes] = GetParam();
  bed_.From(a_, Uses(rank, gpu, std::string(bytes, 'z')));
  EXPECT_TRUE(a_.refused);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongUseTest,
    ::testing::Values(WrongUse{2, 0, kGpuUuidBytes},  // of the other node
                      WrongUse{0, kMaxGpus, kGpuUuidBytes},
                      WrongUse{0, 1, kGpuUuidBytes - 1},
                      WrongUse{1, 0, kGpuUuidBytes}));  // another GPU 0

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
  bed_.From(a_, Present(1, {On({1, 1, 1}, Allreduce("x", {0, 1}, {3}))}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CommunicatorsTest, ARunSaysOnWhichGpusItsRanksAre) {
  Endpoints(22809, 22809);
  bed_.From(a_, Present(1, {On({3, 0}, Broadcast("x", {0, 1}, {3}, 2))}));
  bed_.From(b_, Present(1, {On({1}, Broadcast("x", {2, 3}, {3}, 2))}));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->runs.size(), 1u);
    EXPECT_EQ(e->runs[0].communicator(), 1u);
    EXPECT_THAT(MemberGpus(e->runs[0]), ElementsAre(1, 0, 2, 2));
  }
  EXPECT_THAT(Gpus(Announced(a_).at(0)), ElementsAre(0, 3));
  // An allreduce does not need it.
  Both("y", {3, 0}, {1});
  EXPECT_EQ(a_.runs.at(1).communicator(), 1u);
  EXPECT_EQ(a_.runs.at(1).member_gpus_size(), 0);
}

TEST_F(CommunicatorsTest, RanksOnOtherGpusDoNotFuse) {
  Endpoints(22809, 22809);
  bed_.From(a_, Present(1, {On({0, 3}, Broadcast("x", {0, 1}, {3}, 2)),
                            On({3, 0}, Broadcast("y", {0, 1}, {3}, 2)),
                            On({0, 3}, Broadcast("z", {0, 1}, {3}, 2))}));
  bed_.From(b_, Present(1, {On({0}, Broadcast("x", {2, 3}, {3}, 2)),
                            On({0}, Broadcast("y", {2, 3}, {3}, 2)),
                            On({0}, Broadcast("z", {2, 3}, {3}, 2))}));
  ASSERT_EQ(a_.runs.size(), 2u);
  EXPECT_EQ(a_.runs[0].operations_size(), 2);
  EXPECT_THAT(MemberGpus(a_.runs[0]), ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(MemberGpus(a_.runs[1]), ElementsAre(1, 0, 2, 2));
}

// Of rows of 4 bytes; ranks 0 to 3 have 5, 0, 2 and 1 of them.
class GatherTest : public CommunicatorsTest {
 protected:
  void Gather(const std::vector<uint64_t>& rooms_of_a,
              const std::vector<uint64_t>& rooms_of_b) {
    Endpoints(22809, 22809);
    bed_.From(
        a_, Present(1, {WithRooms(rooms_of_a, On({0}, Allgather("x", {0, 1},
                                                                {5, 0}, 1)))}));
    bed_.From(
        b_, Present(1, {WithRooms(rooms_of_b, On({0}, Allgather("x", {2, 3},
                                                                {2, 1}, 1)))}));
  }
};

TEST_F(GatherTest, ItRunsWhereAllResultsHaveRoom) {
  Gather({32, 32}, {32, 100});
  ASSERT_EQ(b_.runs.size(), 1u);
  EXPECT_EQ(b_.runs[0].communicator(), 1u);
  EXPECT_THAT(MemberGpus(b_.runs[0]), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(b_.runs[0].first_dims_size(), 4);
}

TEST_F(GatherTest, OneResultWithoutRoomMeansTheHost) {
  Gather({32, 32}, {31, 100});
  ASSERT_EQ(a_.runs.size(), 1u);
  EXPECT_EQ(a_.runs[0].communicator(), 0u);
  EXPECT_EQ(a_.runs[0].member_gpus_size(), 0);
  EXPECT_TRUE(Announced(a_).empty());
}

TEST_F(GatherTest, ARoomForEachRankIsExpected) {
  Gather({32}, {32, 32});
  EXPECT_TRUE(a_.refused);
}

TEST_F(GatherTest, ARoomHasALimit) {
  Gather({32, kMaxGpuMemoryBytes + 1}, {32, 32});
  EXPECT_TRUE(a_.refused);
}

TEST_F(CommunicatorsTest, ARoomForNothingGatheredIsABadMessage) {
  Endpoints(22809, 22809);
  bed_.From(
      a_,
      Present(1, {WithRooms({1, 1}, On({0}, Allreduce("x", {0, 1}, {3})))}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CommunicatorsTest, AGpuBeyondTheLimitIsABadMessage) {
  Endpoints(22809, 22809);
  bed_.From(b_, Present(1, {On({kMaxGpus}, Allreduce("x", {2, 3}, {3}))}));
  EXPECT_TRUE(b_.refused);
}

// --- Ranks that call NCCL themselves -----------------------------------------

class RanksTest : public CommunicatorsTest {
 protected:
  static proto::PresentOperation OnOwn(const std::vector<uint32_t>& gpus,
                                       proto::PresentOperation op) {
    op.set_ranks_call_nccl(true);
    return On(gpus, std::move(op));
  }
  void OwnOf(Executor& e, const std::vector<uint32_t>& ranks,
             const std::vector<uint32_t>& gpus, uint32_t generation) {
    bed_.From(
        e, Present(1, {OnOwn(gpus, Allreduce("x", ranks, {3}, generation))}));
  }
  void SetUp() override {
    CommunicatorsTest::SetUp();
    Endpoints(22809, 22809);
  }
};

TEST_F(RanksTest, EachMemberIsAnNcclRank) {
  OwnOf(a_, {0, 1}, {1, 0}, 1);
  OwnOf(b_, {2, 3}, {0, 1}, 1);
  ASSERT_EQ(Announced(a_).size(), 1u);
  ASSERT_EQ(Announced(b_).size(), 1u);
  const proto::Communicator a = Announced(a_)[0];
  const proto::Communicator b = Announced(b_)[0];
  EXPECT_TRUE(a.ranks_call_nccl() && b.ranks_call_nccl());
  EXPECT_EQ(a.process_set(), 0u);
  EXPECT_EQ(a.size(), 4u);
  EXPECT_EQ(a.first(), 0u);
  EXPECT_NE(b.first(), 0u);  // one node makes the id
  EXPECT_THAT(Gpus(a), ElementsAre(1, 0));
  EXPECT_THAT(Gpus(b), ElementsAre(0, 1));
  EXPECT_EQ(a_.runs.at(0).communicator(), 1u);
  bed_.From(a_, Id(1, "unique"));
  EXPECT_EQ(b_.Last().communicator_id().id(), "unique");
}

TEST_F(RanksTest, GathersNeedRoomAndSayTheSizes) {
  const auto gather = [&](uint64_t room, uint32_t generation) {
    bed_.From(a_,
              Present(1, {WithRooms({32, 32},
                                    OnOwn({1, 0}, Allgather("x", {0, 1}, {3, 2},
                                                            generation)))}));
    bed_.From(b_,
              Present(1, {WithRooms({32, room},
                                    OnOwn({0, 1}, Allgather("x", {2, 3}, {2, 1},
                                                            generation)))}));
  };
  gather(32, 1);
  gather(31, 2);
  ASSERT_EQ(b_.runs.size(), 2u);
  EXPECT_EQ(b_.runs[0].communicator(), 1u);
  EXPECT_EQ(b_.runs[0].first_dims_size(), 4);
  EXPECT_EQ(b_.runs[0].member_gpus_size(), 0);
  EXPECT_EQ(b_.runs[1].communicator(), 0u);
}

TEST_F(RanksTest, RanksThatChangeTheirGpusGetAnotherCommunicator) {
  OwnOf(a_, {0, 1}, {1, 0}, 1);
  OwnOf(b_, {2, 3}, {0, 1}, 1);
  OwnOf(a_, {0, 1}, {0, 1}, 2);
  OwnOf(b_, {2, 3}, {0, 1}, 2);
  EXPECT_EQ(a_.runs.at(0).communicator(), 1u);
  EXPECT_EQ(a_.runs.at(1).communicator(), 2u);
}

TEST_F(RanksTest, SomeNodesAloneRunOnTheHost) {
  OwnOf(a_, {0, 1}, {1, 0}, 1);
  bed_.From(b_, Present(1, {On({0, 1}, Allreduce("x", {2, 3}, {3}, 1))}));
  EXPECT_EQ(a_.runs.at(0).communicator(), 0u);
  EXPECT_TRUE(Announced(a_).empty());
}

}  // namespace
}  // namespace maypole::coordinator
