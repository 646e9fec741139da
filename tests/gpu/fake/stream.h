// Stream, Event, Engine: work in order, done by a thread for each stream.
//
// Purpose: an operation runs after those before it in its stream and after the
// operations that it names. A seed makes operations late, so that streams run
// in any order and missing synchronisation shows as wrong bytes.
//
//   auto stream = engine.Add(handle, CU_STREAM_NON_BLOCKING);
//   engine.Push(*stream, {.work = [=] { std::memcpy(to, from, bytes); }});
//   changed.wait(held, [&] { return stream->idle(); });
//
// Thread contract: one mutex guards all objects; the caller of every function
// holds it. A stream's thread releases it while an operation works.
//
// Invariants: an operation is in its stream's queue until it is done. A legacy
// stream and the blocking streams of its GPU wait for each other.
#ifndef MAYPOLE_TESTS_GPU_FAKE_STREAM_H_
#define MAYPOLE_TESTS_GPU_FAKE_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "common/gpu/cuda_types.h"

namespace maypole::cuda::fake {

struct Range {
  CUdeviceptr start;
  size_t bytes;

  bool Overlaps(const Range& other) const {
    return start < other.start + other.bytes && other.start < start + bytes;
  }
};

struct Operation {
  using Clock = std::chrono::steady_clock;

  std::function<void()> work = {};
  std::vector<Range> uses = {};  // memory that `work` accesses
  std::vector<std::shared_ptr<Operation>> after = {};
  Clock::time_point done_at = {};
  bool done = false;

  bool CanRun() const;
};

struct Stream;

// What streams record instead of doing, from BeginCapture to EndCapture.
struct Capture {
  const Stream* origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalidated = false;
  bool ended = false;
};

struct Stream {
  enum class Kind { kLegacy, kBlocking, kNonBlocking };

  CUstream handle;
  int device;
  Kind kind;
  std::deque<std::shared_ptr<Operation>> queue = {};
  std::shared_ptr<Operation> last = nullptr;   // null if there was none
  std::shared_ptr<Capture> capture = nullptr;  // null if it does not capture
  bool has_thread = false;
  bool removed = false;

  bool idle() const { return queue.empty(); }
};

struct Event {
  int device;
  bool timing;
  std::shared_ptr<Operation> record = nullptr;  // null if never recorded
  std::shared_ptr<Capture> capture = nullptr;   // that the record belongs to

  bool done() const { return record == nullptr || record->done; }
};

class Engine {
 public:
  // `changed` is notified when there is new work, and when work is done.
  Engine(std::mutex& mutex, std::condition_variable& changed, int device,
         uint64_t seed, std::chrono::microseconds late);

  std::shared_ptr<Stream> Add(CUstream handle, Stream::Kind kind);
  // The stream's work goes on; it is forgotten when that is done.
  void Remove(const std::shared_ptr<Stream>& stream);
  void Push(Stream& stream, Operation operation);

  // What has been pushed last to each stream that is not idle.
  std::vector<std::shared_ptr<Operation>> Pending() const;
  bool Uses(const Range& range) const;
  // The capture of a blocking stream; null if none of them captures.
  std::shared_ptr<Capture> BlockingCapture() const;
  void EndCapture(const Capture& capture);

  // The threads end after the operations that they execute.
  void Stop() { stopping_ = true; }
  bool stopped() const { return threads_ == 0; }

 private:
  using Held = std::unique_lock<std::mutex>;

  void AddLegacyOrder(const Stream& stream, Operation& operation) const;
  void StartThread(Stream& stream);
  void Run(const std::shared_ptr<Stream>& stream);
  void WaitUntilReady(Operation& operation, Held& held);
  void Execute(Stream& stream, Held& held);

  std::mutex& mutex_;
  std::condition_variable& changed_;
  const int device_;
  const uint64_t seed_;
  const std::chrono::microseconds late_;
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<Stream>> streams_;
  int threads_ = 0;
  bool stopping_ = false;
};

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_STREAM_H_
