// The processes of facts 1 and 2: the spinner and the copier.
#include <algorithm>
#include <array>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/facts/overlap.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr Duration kWarmTimeout = Seconds(20);
constexpr Duration kDrainTimeout = Seconds(20);
constexpr Duration kBatchTimeout = Seconds(30);
// Spins that are enqueued ahead: the device never runs out while the host looks
// away for less than two of them.
constexpr size_t kAhead = 3;
// One warp a block: so many of them leave no room on a multiprocessor.
constexpr int kBlocksThatFill = 32;
// Fewer than a stream takes before enqueueing waits.
constexpr int64_t kMostPieces = 400;
constexpr size_t kPageBytes = 4096;

// Waits for that time; an error if it has passed, as then the two processes
// would not begin together.
absl::Status AwaitTime(int64_t at) {
  if (at == 0) return absl::OkStatus();
  if (Now() > at) {
    return absl::InternalError("came too late to begin together");
  }
  constexpr int64_t kSpinBefore = 2'000'000;
  const int64_t left = at - Now() - kSpinBefore;
  if (left > 0) std::this_thread::sleep_for(Duration(left));
  while (Now() < at) {
  }
  return absl::OkStatus();
}

class Spinner {
 public:
  explicit Spinner(Stage& stage) : stage_(stage), gpu_(stage.gpu()) {}

  absl::Status Open() {
    auto stream = gpu::OwnedStream::Create(gpu_);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    for (gpu::OwnedEvent& event : events_) {
      auto made = gpu::OwnedEvent::Create(gpu_, gpu::EventUse::kOrder);
      if (!made.ok()) return made.status();
      event = *std::move(made);
    }
    auto memory = SharedMemory::Create(kPageBytes);
    if (!memory.ok()) return memory.status();
    auto page = FlagPage::Register(gpu_, *std::move(memory));
    if (!page.ok()) return page.status();
    page_ = *std::move(page);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Handle(Words& words) {
    if (words[0] == "warm") return Warm();
    if (words[0] == "train") return Train(words);
    if (words[0] == "spins") return Spins(words.Integer(1), words.Integer(2));
    return absl::InvalidArgumentError(absl::StrCat("spinner: ", words[0]));
  }

 private:
  int Blocks(int64_t asked) const {
    return asked > 0 ? static_cast<int>(asked)
                     : gpu_.device().multiprocessors * kBlocksThatFill;
  }

  absl::StatusOr<std::string> Warm() {
    for (const int64_t blocks : {8, 0}) {
      const absl::Status spun =
          gpu_.Spin(stream_.get(), Blocks(blocks), kSpinNs);
      if (!spun.ok()) return spun;
    }
    const absl::Status done = WaitDone(gpu_, stream_.get(), kWarmTimeout);
    if (!done.ok()) return done;
    return "warm";
  }

  absl::StatusOr<std::string> Train(Words& words) {
    const int blocks = Blocks(words.Integer(1));
    const auto limit = Clock::now() + Duration(words.Integer(2));
    ++serial_;
    absl::Status status =
        gpu_.WriteValue(stream_.get(), page_.address(), serial_);
    for (size_t i = 0; i < kAhead && status.ok(); ++i) {
      status = SpinOnce(i, blocks);
    }
    if (!status.ok()) return status;
    if (!AwaitWord(page_.memory(), 0, serial_, kWarmTimeout)) {
      return absl::DeadlineExceededError("the first spin did not begin");
    }
    status = stage_.channel().Send("spinning");
    if (!status.ok()) return status;

    for (size_t next = 0; Clock::now() < limit;) {
      const auto line = stage_.channel().Receive(Duration(0));
      if (line.ok()) return Stop();
      if (!absl::IsDeadlineExceeded(line.status())) return line.status();
      const auto done = gpu_.EventDone(events_[next].get());
      if (!done.ok()) return done.status();
      if (*done) {
        status = SpinOnce(next, blocks);
        if (!status.ok()) return status;
        next = (next + 1) % kAhead;
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
    // Long enough: whoever waits for this to end goes on now.
    const auto line = stage_.channel().Receive(kBatchTimeout);
    if (!line.ok()) return line.status();
    return Stop();
  }

  absl::Status SpinOnce(size_t index, int blocks) {
    const absl::Status status = gpu_.Spin(stream_.get(), blocks, kSpinNs);
    if (!status.ok()) return status;
    return gpu_.Record(events_[index].get(), stream_.get());
  }

  absl::StatusOr<std::string> Stop() {
    const auto done = gpu_.Done(stream_.get());
    if (!done.ok()) return done.status();
    const absl::Status drained = WaitDone(gpu_, stream_.get(), kDrainTimeout);
    if (!drained.ok()) return drained;
    return absl::StrCat("stopped ", *done ? 0 : 1);
  }

  absl::StatusOr<std::string> Spins(int64_t count, int64_t at) {
    absl::Status status = AwaitTime(at);
    if (!status.ok()) return status;
    const int64_t start = at == 0 ? Now() : at;
    for (int64_t i = 0; i < count && status.ok(); ++i) {
      status = gpu_.Spin(stream_.get(), Blocks(8), kSpinNs);
    }
    if (status.ok()) status = WaitDone(gpu_, stream_.get(), kBatchTimeout);
    if (!status.ok()) return status;
    return absl::StrCat("took ", Now() - start);
  }

  Stage& stage_;
  gpu::Gpu& gpu_;
  FlagPage page_;
  uint64_t serial_ = 0;
  std::array<gpu::OwnedEvent, kAhead> events_;
  gpu::OwnedStream stream_;
};

class Copier {
 public:
  explicit Copier(Stage& stage)
      : gpu_(stage.gpu()), options_(stage.options()) {}

  absl::Status Open() {
    const uint64_t bytes = PieceBytes(options_, Work::kKernel);
    for (gpu::OwnedMemory* memory : {&from_, &to_}) {
      auto made = gpu::OwnedMemory::Allocate(gpu_, bytes);
      if (!made.ok()) return made.status();
      *memory = *std::move(made);
    }
    auto host = SharedMemory::Create(PieceBytes(options_, Work::kToDevice));
    if (!host.ok()) return host.status();
    host_ = *std::move(host);
    auto registered =
        gpu::HostRegistration::Create(gpu_, host_.data(), host_.bytes());
    if (!registered.ok()) return registered.status();
    registered_ = *std::move(registered);
    for (gpu::OwnedEvent* event : {&begin_, &end_}) {
      auto made = gpu::OwnedEvent::Create(gpu_, gpu::EventUse::kTiming);
      if (!made.ok()) return made.status();
      *event = *std::move(made);
    }
    auto stream = gpu::OwnedStream::Create(gpu_);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    const absl::Status filled =
        gpu_.Fill(stream_.get(), from_.address(), 0x5a17c3e9, bytes / 4);
    if (!filled.ok()) return filled;
    return WaitDone(gpu_, stream_.get(), kWarmTimeout);
  }

  absl::StatusOr<std::string> Handle(Words& words) {
    const Work work = static_cast<Work>(words.Integer(1));
    const int blocks = static_cast<int>(words.Integer(2));
    if (words[0] == "count") return Count(work, blocks, words.Integer(3));
    if (words[0] == "batch") {
      const auto took = Batch(work, blocks, words.Integer(3), words.Integer(4));
      if (!took.ok()) return took.status();
      return absl::StrCat("took ", took->device, " ", took->host);
    }
    return absl::InvalidArgumentError(absl::StrCat("copier: ", words[0]));
  }

 private:
  struct Took {
    int64_t device = 0, host = 0;
  };

  // How many pieces take so long alone. What runs for this warms up besides:
  // code is loaded, clocks rise.
  absl::StatusOr<std::string> Count(Work work, int blocks, int64_t target) {
    int64_t count = 1;
    for (int i = 0; i < 4; ++i) {
      const auto took = Batch(work, blocks, count, 0);
      if (!took.ok()) return took.status();
      const double one = std::max(1.0, static_cast<double>(took->device)) /
                         static_cast<double>(count);
      count = std::clamp<int64_t>(
          static_cast<int64_t>(static_cast<double>(target) / one + 0.5), 1,
          kMostPieces);
    }
    return absl::StrCat("count ", count);
  }

  absl::StatusOr<Took> Batch(Work work, int blocks, int64_t count, int64_t at) {
    absl::Status status = AwaitTime(at);
    const int64_t start = at == 0 ? Now() : at;
    if (status.ok()) status = gpu_.Record(begin_.get(), stream_.get());
    for (int64_t i = 0; i < count && status.ok(); ++i) {
      status = Enqueue(work, blocks);
    }
    if (status.ok()) status = gpu_.Record(end_.get(), stream_.get());
    if (status.ok()) status = WaitDone(gpu_, stream_.get(), kBatchTimeout);
    if (!status.ok()) return status;
    const int64_t host = Now() - start;
    const auto ms = gpu_.Milliseconds(begin_.get(), end_.get());
    if (!ms.ok()) return ms.status();
    return Took{static_cast<int64_t>(*ms * 1e6), host};
  }

  absl::Status Enqueue(Work work, int blocks) {
    const uint64_t bytes = PieceBytes(options_, work);
    switch (work) {
      case Work::kKernel:
        return gpu_.KernelCopy(stream_.get(), to_.address(), from_.address(),
                               bytes, blocks);
      case Work::kWithin:
        return gpu_.Copy(stream_.get(), to_.address(), from_.address(), bytes);
      case Work::kToDevice:
        return gpu_.Copy(stream_.get(), to_.address(), registered_.address(),
                         bytes);
      case Work::kFromDevice:
        return gpu_.Copy(stream_.get(), registered_.address(), from_.address(),
                         bytes);
    }
    return absl::InvalidArgumentError("copier: no such work");
  }

  gpu::Gpu& gpu_;
  const Options& options_;
  SharedMemory host_;
  gpu::HostRegistration registered_;
  gpu::OwnedMemory from_, to_;
  gpu::OwnedEvent begin_, end_;
  gpu::OwnedStream stream_;
};

template <typename Role>
absl::Status Play(Stage& stage, Role& role) {
  absl::Status status = role.Open();
  if (status.ok()) status = stage.channel().Send("ready");
  if (!status.ok()) return status;
  return Serve(stage, [&role](Words& words) { return role.Handle(words); });
}

}  // namespace

absl::Status PlaySpinner(Stage& stage) {
  Spinner spinner(stage);
  return Play(stage, spinner);
}

absl::Status PlayCopier(Stage& stage) {
  Copier copier(stage);
  return Play(stage, copier);
}

}  // namespace maypole::probe
