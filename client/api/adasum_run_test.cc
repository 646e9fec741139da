// A job of one rank; the tests decide when its communicator and its completions
// act.
#include "client/api/adasum_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "client/session/local_communicator.h"

namespace maypole {
namespace {

using std::chrono::milliseconds;

// Calls back on the thread that ends the operation, or not at all.
struct DirectQueue : CompletionQueue {
  void Push(std::unique_ptr<Completion> completion) override {
    if (calls) completion->call(*completion->operation);
  }
  bool calls = true;
};

// An operation ends when a wait for it has lasted `time`; at once if that is 0.
class SlowCommunicator : public LocalCommunicator {
 public:
  explicit SlowCommunicator(milliseconds time = {}) : time_(time) {}

  Status Start(std::span<const std::shared_ptr<Operation>> started) override {
    if (time_.count() == 0) return LocalCommunicator::Start(started);
    pending_ = started[0];
    return Status();
  }
  void Want(const Operation& operation) override {
    wanted.push_back(operation.signature.kind);
  }
  Status Await(const Operation&, int timeout_ms) override {
    timeouts.push_back(timeout_ms);
    const int limit = LimitOfWait(timeout_ms);
    if (limit >= 0 && milliseconds(limit) < time_) {
      std::this_thread::sleep_for(milliseconds(limit));
      return Status(Code::kDeadlineExceeded, "still pending");
    }
    std::this_thread::sleep_for(time_);
    const auto ends = std::move(pending_);
    return LocalCommunicator::Start({&ends, 1});
  }

  std::vector<Kind> wanted;
  std::vector<int> timeouts;

 private:
  const milliseconds time_;
  std::shared_ptr<Operation> pending_;
};

struct AdasumRunTest : ::testing::Test {
  void Begin(milliseconds time) {
    communicator = std::make_shared<SlowCommunicator>(time);
    operation = std::make_shared<Operation>();
    operation->name = "x";
    operation->set = communicator->FindSet(0);
    Signature& s = operation->signature;
    s.kind = Kind::kAllreduce;
    s.dtype = DType::kFloat32;
    s.op = Op::kAdasum;
    s.dims = 1;
    s.shape[0] = static_cast<int64_t>(tensor.size());
    operation->output = reinterpret_cast<std::byte*>(tensor.data());
    operation->input = operation->output;
    run = std::make_shared<AdasumRun>(communicator, completions, 0,
                                      AdasumRun::Operations{operation});
    std::shared_ptr<Operation> first;
    ASSERT_TRUE(run->Prepare(&first).ok());
    ASSERT_TRUE(communicator->Start({&first, 1}).ok());
    run->Begin();
  }

  std::vector<float> tensor = {1, 2, 3};
  const std::shared_ptr<DirectQueue> completions =
      std::make_shared<DirectQueue>();
  std::shared_ptr<Operation> operation;
  std::shared_ptr<SlowCommunicator> communicator;
  std::shared_ptr<AdasumRun> run;
};

// The completion thread may be faster than the thread that begins the run,
// which then follows the first part although the run has already reached later
// ones.
TEST_F(AdasumRunTest, APartMayEndBeforeItIsWanted) {
  Begin(milliseconds(0));
  EXPECT_EQ(
      communicator->wanted,
      (std::vector<Kind>{Kind::kAllgather, Kind::kAllreduce, Kind::kAlltoall}));
  EXPECT_TRUE(operation->done);
  EXPECT_EQ(tensor, (std::vector<float>{1, 2, 3}));
}

// Each of the three parts takes less than the limit, but all together take
// more.
TEST_F(AdasumRunTest, ALimitIsOneOfAllParts) {
  for (const int timeout_ms : {100, kWaitInterruptible - 100}) {
    Begin(milliseconds(60));
    EXPECT_EQ(run->Await(timeout_ms).code(), Code::kDeadlineExceeded);
    EXPECT_FALSE(operation->done);
    for (const int part : communicator->timeouts) {
      EXPECT_EQ(part < kWaitInterruptible, timeout_ms < 0) << part;
    }
    EXPECT_TRUE(run->Await(-1).ok());
    EXPECT_TRUE(operation->done);
  }
}

// A wait that can be interrupted also returns between the parts.
TEST_F(AdasumRunTest, ALimitPassesBetweenTwoParts) {
  completions->calls = false;
  Begin(milliseconds(0));
  EXPECT_EQ(run->Await(kWaitInterruptible).code(), Code::kCancelled);
  EXPECT_EQ(run->Await(kWaitInterruptible - 60'000).code(), Code::kCancelled);
  for (const int timeout_ms : {1, kWaitInterruptible - 1}) {
    EXPECT_EQ(run->Await(timeout_ms).code(), Code::kDeadlineExceeded);
  }
}

}  // namespace
}  // namespace maypole
