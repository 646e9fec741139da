// FakeScheduler: runs the streams of the fake processes of this process.
//
// Purpose: one place that decides what runs when: a seed (stepped mode), or a
// thread per stream (threads mode; fake_gpu.h says what the modes are).
//
// Thread contract: mutex() guards everything of the fakes of one machine in
// this process, but for what operations do by themselves. Functions that take a
// Held want it locked; they unlock it only where they say that they wait.
//
// Invariants: an operation is in its stream until it is done, so a stream with
// an empty queue is idle. A stopped stream does nothing any more.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SCHEDULER_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SCHEDULER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/gpu/testing/fake_gpu.h"
#include "worker/backend/gpu/testing/fake_ledger.h"
#include "worker/backend/gpu/testing/fake_operation.h"

namespace maypole::gpu {

struct FakeStream {
  explicit FakeStream(uint64_t id) : id(id) {}
  const uint64_t id;
  std::deque<std::unique_ptr<FakeOperation>> queue;
  std::atomic<bool> stopped = false;
  std::condition_variable more;
  std::thread thread;
  bool running = false;  // the thread
};
using FakeStreams = std::vector<std::shared_ptr<FakeStream>>;

class FakeScheduler {
 public:
  using Held = std::unique_lock<std::mutex>;

  FakeScheduler(std::unique_ptr<FakeLedger> ledger, FakeMachine::Mode mode,
                uint64_t seed);
  ~FakeScheduler();

  std::mutex& mutex() { return mutex_; }
  FakeLedger& ledger() { return *ledger_; }
  bool stepped() const { return mode_ == FakeMachine::Mode::kStepped; }

  std::shared_ptr<FakeStream> Start(uint64_t id, const Held& held);
  void Push(FakeStream& stream, std::unique_ptr<FakeOperation> operation,
            const Held& held);
  // Waits until they are all idle, or given_up() says true.
  absl::Status WaitIdle(const FakeStreams& streams,
                        const std::function<bool()>& given_up, Held& held);
  // Ends the streams wherever they are; waits until they are where they stop.
  void Stop(const FakeStreams& streams, Held& held);

  bool Step(const Held& held);

 private:
  class SteppedPace;

  void Execute(FakeStream& stream);
  bool RunToEnd(FakeOperation& operation, const std::atomic<bool>& stopped);
  bool Advance(FakeStream& stream);
  std::string WhyStuck(const FakeStream& stream) const;

  const std::unique_ptr<FakeLedger> ledger_;
  const FakeMachine::Mode mode_;
  std::mutex mutex_;
  std::condition_variable idle_;  // a stream became idle, or has stopped
  FakeStreams streams_;
  std::mt19937_64 random_;
  int64_t now_ = 0;  // nanoseconds, in stepped mode
  std::atomic<int> blocked_ = 0;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SCHEDULER_H_
