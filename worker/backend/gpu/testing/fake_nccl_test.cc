// Communicators of fake GPUs, in one process.
#include <cstdlib>

#include "worker/backend/gpu/testing/fake_testing.h"

namespace maypole::gpu {
namespace {

class FakeNcclTest : public testing::Test {
 protected:
  // Ranks in processes of their own, on one device.
  void Join(int ranks, const std::vector<std::string>& hosts) {
    for (int i = 0; i < ranks; ++i) {
      processes_.push_back(std::make_unique<TestProcess>(machine_));
      TestProcess& process = *processes_.back();
      process.driver->SetHostId(hosts[static_cast<size_t>(i)]);
      data_.push_back(process.Allocate(4 * kMiB));
    }
    id_ = processes_[0]->gpu->MakeNcclId().value();
    for (int i = 0; i < ranks; ++i) {
      communicators_.push_back(gpu(i).JoinCommunicator(id_, ranks, i).value());
    }
  }
  Gpu& gpu(int rank) { return *processes_[static_cast<size_t>(rank)]->gpu; }
  Stream stream(int rank) {
    return processes_[static_cast<size_t>(rank)]->stream;
  }
  Communicator communicator(int rank) {
    return communicators_[static_cast<size_t>(rank)];
  }
  absl::StatusOr<CommunicatorState> Poll(int rank) {
    return gpu(rank).PollCommunicator(communicator(rank));
  }
  float* data(int rank) { return At<float>(data_[static_cast<size_t>(rank)]); }
  absl::Status AllReduce(int rank, uint64_t elements,
                         DType dtype = DType::kFloat32) {
    return gpu(rank).AllReduce(communicator(rank), stream(rank),
                               data_[static_cast<size_t>(rank)], elements,
                               dtype);
  }
  void ExpectReady(int rank) {
    EXPECT_EQ(Poll(rank).value(), CommunicatorState::kReady);
  }

  const std::shared_ptr<FakeMachine> machine_ = Stepped(3);
  std::vector<std::unique_ptr<TestProcess>> processes_;
  std::vector<Address> data_;
  NcclId id_;
  std::vector<Communicator> communicators_;
};

TEST_F(FakeNcclTest, SumsInPlaceWhateverTheSize) {
  Join(3, {"a", "b", "c"});
  for (int i = 0; i < 3; ++i) ExpectReady(i);
  // The second one is longer than what is exchanged at a time.
  for (const uint64_t elements : {uint64_t{5}, kMiB / 2 + 3}) {
    for (int i = 0; i < 3; ++i) {
      for (uint64_t e = 0; e < elements; ++e) {
        data(i)[e] = static_cast<float>(i + 1) * static_cast<float>(e % 7);
      }
      EXPECT_OK(AllReduce(i, elements));
      EXPECT_EQ(Poll(i).value(), CommunicatorState::kInProgress);
      ExpectReady(i);
    }
    machine_->Run();
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(gpu(i).Done(stream(i)).value());
      uint64_t wrong = 0;
      for (uint64_t e = 0; e < elements; ++e) {
        wrong += data(i)[e] != 6 * static_cast<float>(e % 7);
      }
      EXPECT_EQ(wrong, 0u);
    }
  }
}

TEST_F(FakeNcclTest, OneIsNoUseBeforeAllHaveJoined) {
  TestProcess a(machine_), b(machine_);
  b.driver->SetHostId("b");
  const NcclId id = a.gpu->MakeNcclId().value();
  const Communicator first = a.gpu->JoinCommunicator(id, 2, 0).value();
  EXPECT_EQ(a.gpu->PollCommunicator(first).value(),
            CommunicatorState::kInProgress);
  EXPECT_REFUSED(
      a.gpu->AllReduce(first, a.stream, a.Allocate(), 4, DType::kFloat32),
      kFailedPrecondition, "poll it");
  EXPECT_REFUSED(b.gpu->JoinCommunicator(id, 2, 0), kInvalidArgument,
                 "rank 0 has joined already");
  EXPECT_REFUSED(b.gpu->JoinCommunicator(id, 3, 1), kInvalidArgument,
                 "2 ranks, not 3");
  EXPECT_REFUSED(b.gpu->JoinCommunicator(id, 2, 2), kInvalidArgument,
                 "rank 2 of 2");
  EXPECT_REFUSED(b.gpu->JoinCommunicator(id, 65, 2), kInvalidArgument,
                 "at most 64");
  EXPECT_REFUSED(b.gpu->JoinCommunicator(NcclId{}, 2, 1), kInvalidArgument,
                 "not an id");
  const Communicator second = b.gpu->JoinCommunicator(id, 2, 1).value();
  EXPECT_EQ(a.gpu->PollCommunicator(first).value(), CommunicatorState::kReady);
  EXPECT_REFUSED(a.gpu->PollCommunicator(second), kInvalidArgument,
                 "no communicator");
  EXPECT_OK(a.gpu->AbortCommunicator(first));
  EXPECT_REFUSED(a.gpu->AbortCommunicator(first), kInvalidArgument,
                 "no communicator");
}

TEST_F(FakeNcclTest, AnIdEndsWithItsMaker) {
  TestProcess a(machine_), b(machine_);
  const NcclId id = a.gpu->MakeNcclId().value();
  a.driver->Kill();
  EXPECT_REFUSED(b.gpu->JoinCommunicator(id, 2, 1), kInvalidArgument, "gone");
}

TEST_F(FakeNcclTest, OneDeviceOfOneHostIsRefusedToAll) {
  Join(3, {"x", "y", "x"});
  for (int i = 0; i < 3; ++i) {
    EXPECT_REFUSED(Poll(i), kAborted,
                   "Duplicate GPU detected : rank 0 and rank 2");
  }
}

TEST_F(FakeNcclTest, TheHostIsTheEnvironmentsOrTheMachines) {
  setenv("NCCL_HOSTID", "x", 1);
  Join(2, {"y", ""});
  ExpectReady(0);
  unsetenv("NCCL_HOSTID");
  communicators_.clear();
  data_.clear();
  processes_.clear();
  Join(2, {"", ""});
  EXPECT_REFUSED(Poll(0), kAborted, "Duplicate GPU");
}

TEST_F(FakeNcclTest, WhatDoesNotFitIsRefused) {
  Join(2, {"a", "b"});
  ExpectReady(0);
  EXPECT_REFUSED(AllReduce(0, 4, DType::kBool), kInvalidArgument, "bool");
  EXPECT_REFUSED(AllReduce(0, 0), kInvalidArgument, "0 elements");
  EXPECT_REFUSED(AllReduce(0, kMiB + 1), kInvalidArgument, "outside");
  EXPECT_OK(AllReduce(0, kMiB));
  EXPECT_REFUSED(AllReduce(0, 4), kFailedPrecondition, "poll it");
  machine_->Run();
  EXPECT_REFUSED(gpu(0).Synchronize(stream(0)), kFailedPrecondition,
                 "other ranks of an AllReduce of 1048576 x float32");
}

TEST_F(FakeNcclTest, MembersThatDisagreeAreTold) {
  Join(2, {"a", "b"});
  for (int i = 0; i < 2; ++i) ExpectReady(i);
  EXPECT_OK(AllReduce(0, 4));
  EXPECT_OK(AllReduce(1, 5));
  machine_->Run();
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(gpu(i).Done(stream(i)).value());
    EXPECT_REFUSED(Poll(i), kAborted, "not all ranks call the same");
  }
}

TEST_F(FakeNcclTest, AnAbortReleasesWhatWaitsHereOnly) {
  Join(3, {"a", "b", "c"});
  for (int i = 0; i < 3; ++i) ExpectReady(i);
  EXPECT_OK(AllReduce(0, 4));
  EXPECT_OK(AllReduce(1, 4));
  EXPECT_OK(gpu(0).WriteValue(stream(0), data_[0] + 64, 7));
  processes_[2]->driver->Kill();
  machine_->Run();
  EXPECT_FALSE(gpu(0).Done(stream(0)).value());
  EXPECT_OK(gpu(0).AbortCommunicator(communicator(0)));
  EXPECT_OK(gpu(0).Synchronize(stream(0)));
  EXPECT_EQ(*At<uint64_t>(data_[0] + 64), 7u);
  EXPECT_FALSE(gpu(1).Done(stream(1)).value());
  EXPECT_OK(gpu(1).AbortCommunicator(communicator(1)));
  EXPECT_OK(gpu(1).Synchronize(stream(1)));
}

}  // namespace
}  // namespace maypole::gpu
