#include "worker/backend/gpu/testing/fake_scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::gpu {
namespace {

constexpr int64_t kStepNanoseconds = 1000;
constexpr uint64_t kSliceBytes = 1 << 20;
// A blocked stream polls this many times at once, then at intervals that grow
// with the number of blocked streams, so that many cost no more than a few.
constexpr int kEagerLooks = 64;
constexpr std::chrono::microseconds kLookInterval(50);

int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class ThreadPace final : public Pace {
 public:
  uint64_t Share(uint64_t left, uint64_t) override {
    return std::min(left, kSliceBytes);
  }
  int64_t Now() const override { return SteadyNow(); }
  bool Elapsed(int64_t begin, int64_t nanoseconds) override {
    return Now() - begin >= nanoseconds;
  }
};

std::string NameOf(const FakeStream& stream) {
  return absl::StrCat("stream ", stream.id & 0xffffffff, " of process ",
                      stream.id >> 32);
}

}  // namespace

class FakeScheduler::SteppedPace final : public Pace {
 public:
  SteppedPace(std::mt19937_64& random, int64_t& now)
      : random_(random), now_(now) {}
  uint64_t Share(uint64_t left, uint64_t unit) override {
    const uint64_t units = left / unit;
    if (units < 2 || random_() % 4 != 0) return left;
    return (1 + random_() % (units - 1)) * unit;
  }
  int64_t Now() const override { return now_; }
  bool Elapsed(int64_t begin, int64_t nanoseconds) override {
    now_ = std::max(now_, begin + nanoseconds);
    return true;
  }

 private:
  std::mt19937_64& random_;
  int64_t& now_;
};

FakeScheduler::FakeScheduler(std::unique_ptr<FakeLedger> ledger,
                             FakeMachine::Mode mode, uint64_t seed)
    : ledger_(std::move(ledger)), mode_(mode), random_(seed) {}

FakeScheduler::~FakeScheduler() = default;

std::shared_ptr<FakeStream> FakeScheduler::Start(uint64_t id, const Held&) {
  auto stream = std::make_shared<FakeStream>(id);
  streams_.push_back(stream);
  if (!stepped()) {
    stream->running = true;
    stream->thread = std::thread([this, &s = *stream] { Execute(s); });
  }
  return stream;
}

void FakeScheduler::Push(FakeStream& stream,
                         std::unique_ptr<FakeOperation> operation,
                         const Held&) {
  stream.queue.push_back(std::move(operation));
  stream.more.notify_one();
}

absl::Status FakeScheduler::WaitIdle(const FakeStreams& streams,
                                     const std::function<bool()>& given_up,
                                     Held& held) {
  while (!given_up()) {
    const auto busy =
        std::find_if(streams.begin(), streams.end(), [](const auto& stream) {
          return !stream->stopped && !stream->queue.empty();
        });
    if (busy == streams.end()) break;
    if (!stepped()) {
      idle_.wait(held);
    } else if (!Step(held)) {
      return absl::FailedPreconditionError(WhyStuck(**busy));
    }
  }
  return absl::OkStatus();
}

void FakeScheduler::Stop(const FakeStreams& streams, Held& held) {
  std::vector<std::thread> threads;
  for (const std::shared_ptr<FakeStream>& stream : streams) {
    stream->stopped = true;
    stream->more.notify_all();
    if (stream->thread.joinable()) threads.push_back(std::move(stream->thread));
    std::erase(streams_, stream);
  }
  idle_.notify_all();
  idle_.wait(held, [&] {
    return std::ranges::none_of(
        streams, [](const auto& stream) { return stream->running; });
  });
  for (std::thread& thread : threads) thread.join();
}

// --- Threads mode ------------------------------------------------------------

void FakeScheduler::Execute(FakeStream& stream) {
  Held held(mutex_);
  while (true) {
    stream.more.wait(held,
                     [&] { return stream.stopped || !stream.queue.empty(); });
    if (stream.stopped) break;
    FakeOperation& operation = *stream.queue.front();
    held.unlock();
    const bool done = RunToEnd(operation, stream.stopped);
    held.lock();
    if (!done) break;
    stream.queue.pop_front();
    if (stream.queue.empty()) idle_.notify_all();
  }
  stream.running = false;
  idle_.notify_all();
}

// Returns false if the operation was stopped before its end.
bool FakeScheduler::RunToEnd(FakeOperation& operation,
                             const std::atomic<bool>& stopped) {
  ThreadPace pace;
  const int64_t begin = pace.Now();
  int looks = 0;
  bool counted = false;
  Progress progress = Progress::kBlocked;
  while (!stopped) {
    progress = pace.Elapsed(begin, operation.delay) ? operation.Advance(pace)
                                                    : Progress::kBlocked;
    if (progress == Progress::kFinished) break;
    if (progress == Progress::kSome) {
      looks = 0;
    } else if (++looks <= kEagerLooks) {
      std::this_thread::yield();
    } else {
      if (!std::exchange(counted, true)) ++blocked_;
      std::this_thread::sleep_for(kLookInterval * blocked_.load());
    }
  }
  if (counted) --blocked_;
  return progress == Progress::kFinished;
}

// --- Stepped mode ------------------------------------------------------------

bool FakeScheduler::Step(const Held&) {
  now_ += kStepNanoseconds;
  FakeStreams ready;
  bool delayed = false;
  for (const std::shared_ptr<FakeStream>& stream : streams_) {
    if (stream->queue.empty()) continue;
    if (int64_t& delay = stream->queue.front()->delay; delay > 0) {
      --delay;
      delayed = true;
    } else {
      ready.push_back(stream);
    }
  }
  while (!ready.empty()) {
    const size_t index = random_() % ready.size();
    if (Advance(*ready[index])) return true;
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(index));
  }
  return delayed;
}

// Returns false if the stream's first operation is blocked.
bool FakeScheduler::Advance(FakeStream& stream) {
  SteppedPace pace(random_, now_);
  const Progress progress = stream.queue.front()->Advance(pace);
  if (progress == Progress::kFinished) stream.queue.pop_front();
  return progress != Progress::kBlocked;
}

std::string FakeScheduler::WhyStuck(const FakeStream& stream) const {
  const FakeOperation& head = *stream.queue.front();
  std::string text =
      absl::StrCat(NameOf(stream), " waits for ", head.WaitsFor());
  const Piece awaited = head.Awaits();
  for (const std::shared_ptr<FakeStream>& other : streams_) {
    const bool writes = std::any_of(
        other->queue.begin(), other->queue.end(),
        [&](const auto& operation) { return operation->Writes(awaited); });
    if (!writes) continue;
    return absl::StrCat(text, ", and ", NameOf(*other),
                        ", which is to write it, waits for ",
                        other->queue.front()->WaitsFor());
  }
  return awaited.bytes > 0 ? text + " and nothing enqueued writes it"
                           : text + " and nothing enqueued can run";
}

}  // namespace maypole::gpu
