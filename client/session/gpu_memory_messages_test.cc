// Requests for shared GPU memory and their replies, between BoardCommunicator
// and an executor, without a GPU.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/session/board_communicator.h"
#include "client/session/local_communicator.h"
#include "client/testing/fake_executor.h"

namespace maypole {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class GpuMemoryMessagesTest : public testing::Test {
 protected:
  void SetUp() override { Start(0); }

  void Start(uint32_t gpu_communicators) {
    communicator_.reset();
    executor_.reset();
    std::string dir = std::string(getenv("TEST_TMPDIR")) + "/mXXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    ASSERT_EQ(chdir(dir.c_str()), 0);  // socket paths are short
    executor_ =
        std::make_unique<FakeExecutor>("agent.sock", 1, gpu_communicators);
    RankOptions o;
    o.job = "test";
    o.agent = "agent.sock";
    const Status s = BoardCommunicator::Join(o, &communicator_);
    ASSERT_TRUE(s.ok()) << s.message();
    communicator_->OnGpuMemoryReply([this](const auto& reply) {
      std::lock_guard lock(mutex_);
      replies_.push_back(reply);
    });
  }

  // The descriptor's file contains the number.
  void Ask(uint32_t number) {
    const Fd file(memfd_create("memory", MFD_CLOEXEC));
    const std::string text = std::to_string(number);
    ASSERT_EQ(write(file.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
    auto request = session::Make<session::GpuMemoryRequest>();
    request.number = number;
    const Status s = communicator_->SendGpuMemory(request, file.get());
    EXPECT_TRUE(s.ok()) << s.message();
  }

  std::vector<session::GpuMemoryReply> Await(size_t count) {
    const auto until = steady_clock::now() + seconds(20);
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (replies_.size() >= count || steady_clock::now() > until) {
          return replies_;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::unique_ptr<FakeExecutor> executor_;
  std::mutex mutex_;
  std::vector<session::GpuMemoryReply> replies_;
  std::unique_ptr<BoardCommunicator> communicator_;
};

// The reply arrives although nothing is outstanding and no thread waits.
TEST_F(GpuMemoryMessagesTest, TheReplyComesToTheHandler) {
  executor_->AnswerGpuMemory();
  const auto begun = steady_clock::now();
  Ask(1);
  const auto replies = Await(1);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].number, 1u);
  EXPECT_EQ(replies[0].gpu, 3u);
  EXPECT_STREQ(replies[0].text, "1");
  EXPECT_LT(steady_clock::now() - begun, std::chrono::milliseconds(900));
  EXPECT_EQ(communicator_->eager_bytes(), 64u * 1024);
}

TEST_F(GpuMemoryMessagesTest, WithCommunicatorsAllGpusReduceTogether) {
  const ProcessSet two_nodes{0, {0, 1}, {0}};
  const ProcessSet alone{0, {0}, {0}};
  const auto may = [&](const ProcessSet& set, DType dtype) {
    return communicator_->MayRunOnGpus(set, Kind::kAllreduce, dtype, "GPU-1");
  };
  EXPECT_FALSE(may(two_nodes, DType::kFloat32));
  EXPECT_FALSE(may(alone, DType::kFloat32));
  Start(1);
  EXPECT_TRUE(may(two_nodes, DType::kFloat32));
  EXPECT_FALSE(may(two_nodes, DType::kInt16));  // NCCL has no such type
  EXPECT_FALSE(may(alone, DType::kFloat32));
}

TEST_F(GpuMemoryMessagesTest, InOrderThroughAFullSocket) {
  constexpr uint32_t kCount = 500;
  executor_->AnswerGpuMemory();
  executor_->Hold(true);
  for (uint32_t n = 1; n <= kCount; ++n) Ask(n);
  executor_->Hold(false);
  const auto replies = Await(kCount);
  ASSERT_EQ(replies.size(), kCount);
  for (uint32_t n = 1; n <= kCount; ++n) {
    ASSERT_EQ(replies[n - 1].number, n);
    ASSERT_EQ(replies[n - 1].text, std::to_string(n));
  }
}

TEST_F(GpuMemoryMessagesTest, WithoutAReplyNothingElseIsHeldUp) {
  Ask(1);
  communicator_->OnGpuMemoryReply(nullptr);
  communicator_->Leave();
  EXPECT_TRUE(Await(0).empty());
}

TEST(LocalCommunicatorTest, HasNoExecutor) {
  LocalCommunicator communicator;
  EXPECT_EQ(
      communicator.SendGpuMemory(session::Make<session::GpuMemoryRequest>(), -1)
          .code(),
      Code::kUnimplemented);
  EXPECT_EQ(
      communicator.CallForState(session::StateCall::kFind, "state", -1, nullptr)
          .code(),
      Code::kUnimplemented);
}

}  // namespace
}  // namespace maypole
