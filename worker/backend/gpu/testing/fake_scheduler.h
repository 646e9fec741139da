// FakeScheduler: runs the streams of the fake processes in this process.
//
// Purpose: decides what runs when: by a seed in stepped mode, by a thread per
// stream in threads mode (see fake_gpu.h).
//
// Thread contract: mutex() guards all fake objects of one machine in this
// process, except the work of operations. Functions that take a Held need it
// locked; they unlock it only where they wait.
//
// Invariants: an operation is in its stream until it is done, so a stream with
// an empty queue is idle. A stopped stream does no further work.
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
  bool running = false;  // the thread has not ended
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
  // Waits until all streams are idle, or given_up() returns true.
  absl::Status WaitIdle(const FakeStreams& streams,
                        const std::function<bool()>& given_up, Held& held);
  // Stops the streams, even within an operation; waits until they have stopped.
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
