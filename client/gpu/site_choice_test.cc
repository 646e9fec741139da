#include "client/gpu/site_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "client/testing/fake_communicator.h"

namespace maypole {
namespace {

using Site = SiteChoice::Site;
using GpuUse = Communicator::GpuUse;

class SiteChoiceTest : public testing::Test {
 protected:
  Site Of(SiteChoice& choice) {
    return choice.Of(communicator_, set_, side_by_side_);
  }
  std::string Told(SiteChoice& choice) {
    testing::internal::CaptureStderr();
    Of(choice);
    return testing::internal::GetCapturedStderr();
  }

  FakeCommunicator communicator_;
  ProcessSet set_{0, {0, 1}, {0, 1}};
  bool side_by_side_ = false;
  SiteChoice auto_{{.chooses_site = true, .tells_site = true}};
};

TEST_F(SiteChoiceTest, OpenUntilTheOthersGpusAreKnown) {
  EXPECT_EQ(Of(auto_), Site::kOpen);
  communicator_.use = GpuUse::kOwn;
  EXPECT_NE(Told(auto_).find("site client, by NCCL in this process: each rank "
                             "of this node has a GPU of its own"),
            std::string::npos);
  EXPECT_EQ(Of(auto_), Site::kRanks);
  communicator_.use = GpuUse::kShared;  // it is late
  EXPECT_EQ(Told(auto_), "");
  EXPECT_EQ(Of(auto_), Site::kRanks);
}

TEST_F(SiteChoiceTest, ASharedGpuIsForTheExecutor) {
  communicator_.use = GpuUse::kShared;
  EXPECT_NE(Told(auto_).find("site agent, in the executor of the node: ranks "
                             "of this node share a GPU; the GPU runs one "
                             "process after the other, with an MPS server"),
            std::string::npos);
  communicator_.use = GpuUse::kOwn;
  EXPECT_EQ(Of(auto_), Site::kExecutors);
}

TEST_F(SiteChoiceTest, UnderMpsThereIsNoMpsToAdvise) {
  communicator_.use = GpuUse::kShared;
  side_by_side_ = true;
  EXPECT_NE(Told(auto_).find("ranks of this node share a GPU\n"),
            std::string::npos);
}

TEST_F(SiteChoiceTest, SoIsAJobWithoutNccl) {
  communicator_.nccl = false;
  EXPECT_EQ(Of(auto_), Site::kExecutors);
}

TEST_F(SiteChoiceTest, AloneThereIsNothingToChoose) {
  communicator_.use = GpuUse::kOwn;
  EXPECT_EQ(auto_.Of(communicator_, {0, {0}, {0}}, false), Site::kOpen);
}

TEST_F(SiteChoiceTest, ItDoesNotStayOpenForARankWithoutAGpu) {
  for (int i = 0; i < SiteChoice::kMostOpen; ++i) {
    ASSERT_EQ(Of(auto_), Site::kOpen);
  }
  EXPECT_EQ(Of(auto_), Site::kExecutors);
}

TEST_F(SiteChoiceTest, SharedMemoryDecides) {
  EXPECT_TRUE(auto_.Share());
  communicator_.use = GpuUse::kOwn;
  EXPECT_EQ(Of(auto_), Site::kExecutors);
}

TEST_F(SiteChoiceTest, NoMemoryIsSharedByARankThatCallsNccl) {
  communicator_.use = GpuUse::kOwn;
  EXPECT_EQ(Of(auto_), Site::kRanks);
  EXPECT_FALSE(auto_.Share());
  auto_.LeaveToExecutors();
  EXPECT_TRUE(auto_.Share());
}

TEST_F(SiteChoiceTest, WhatTheUserSaysCounts) {
  SiteChoice client{{.mode = GpuMemoryMode::kOwn, .tells_site = true}};
  EXPECT_NE(Told(client).find("MAYPOLE_GPU_SITE=client"), std::string::npos);
  EXPECT_EQ(Of(client), Site::kRanks);
  SiteChoice agent{{}};
  communicator_.use = GpuUse::kOwn;
  EXPECT_EQ(Told(agent), "");  // another rank says so
  EXPECT_EQ(Of(agent), Site::kExecutors);
}

}  // namespace
}  // namespace maypole
