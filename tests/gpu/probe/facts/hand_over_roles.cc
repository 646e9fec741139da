// The processes of fact 3.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/facts/hand_over.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr Duration kPartner = Seconds(20);
// Rounds that are enqueued at once: 2 operations each, fewer than a stream
// takes before enqueueing waits, which would wait for ever before the gate. The
// first of them warm up and are not counted.
constexpr uint64_t kBatch = 128;
constexpr int kCountBits = 16;

struct Limits {
  uint64_t rounds = 0;
  int64_t until = 0;  // of Now()
};

// Nanoseconds of hand-overs.
struct Found {
  std::vector<double> each;
  std::vector<double> pieces;
  uint64_t left_out = 0;  // rounds that ended before they could be timed

  std::string Answer() {
    const double p50 = Quantile(each, 0.5), p99 = Quantile(each, 0.99);
    const double least = each.empty() ? 0 : each.front();
    const double most = each.empty() ? 0 : each.back();
    const double piece = pieces.empty() ? 0 : Quantile(pieces, 0.5);
    return absl::StrCat("took ", each.size(), " ", p50, " ", p99, " ", least,
                        " ", most, " ", piece, " ", left_out);
  }
};

// What both have: the page, a stream, an event, the words of either side.
class Player {
 public:
  Player(Stage& stage, bool first)
      : gpu_(stage.gpu()),
        mine_(first ? kFirstAt : kSecondAt),
        theirs_(first ? kSecondAt : kFirstAt),
        spare_(first ? kFirstSpare : kSecondSpare),
        my_handle_(first ? kFirstHandle : kSecondHandle),
        their_handle_(first ? kSecondHandle : kFirstHandle) {}

  absl::Status Open() {
    auto stream = gpu::OwnedStream::Create(gpu_);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Map(Fd fd) {
    auto page = FlagPage::Map(gpu_, std::move(fd), kHandOverBytes);
    if (!page.ok()) return page.status();
    page_ = *std::move(page);
    return "mapped";
  }

 protected:
  // The two sides' events, each known to the other.
  struct EventPair {
    gpu::OwnedEvent mine, theirs;
  };

  absl::StatusOr<EventPair> ExchangeEvents() {
    EventPair out;
    auto mine = gpu::OwnedEvent::Create(gpu_, gpu::EventUse::kInterprocess);
    if (!mine.ok()) return mine.status();
    out.mine = *std::move(mine);
    const auto handle = gpu_.ExportEvent(out.mine.get());
    if (!handle.ok()) return handle.status();
    std::memcpy(&page_.memory().word(my_handle_), handle->data(),
                handle->size());
    StoreWord(page_.memory(), my_handle_ + kHandleWords, 1);
    if (!AwaitWord(page_.memory(), their_handle_ + kHandleWords, 1, kPartner)) {
      return absl::DeadlineExceededError("the other side gave no event");
    }
    gpu::EventHandle other;
    std::memcpy(other.data(), &page_.memory().word(their_handle_),
                other.size());
    const auto theirs = gpu_.ImportEvent(other);
    if (!theirs.ok()) return theirs.status();
    out.theirs = gpu::OwnedEvent(gpu_, *theirs);
    return out;
  }

  // The other side's word is at least `value`.
  absl::Status AwaitThem(uint64_t value) {
    if (AwaitWord(page_.memory(), theirs_, value, kPartner)) {
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError("the other side does not go on");
  }
  uint64_t Them() const { return LoadWord(page_.memory(), theirs_); }
  void Say(uint64_t value) { StoreWord(page_.memory(), mine_, value); }

  absl::Status Write(size_t word, uint64_t value) {
    return gpu_.WriteValue(stream_.get(), page_.address(word), value);
  }
  absl::Status Wait(size_t word, uint64_t value) {
    return gpu_.WaitValue(stream_.get(), page_.address(word), value);
  }
  absl::Status WaitDone() {
    return probe::WaitDone(gpu_, stream_.get(), kPartner);
  }

  gpu::Gpu& gpu_;
  const size_t mine_, theirs_, spare_, my_handle_, their_handle_;
  FlagPage page_;
  gpu::OwnedStream stream_;
};

class First : public Player {
 public:
  explicit First(Stage& stage) : Player(stage, true) {}

  absl::StatusOr<std::string> Handle(Words& words) {
    if (words[0] == "page") return Map(words.TakeFd());
    const Limits limits{static_cast<uint64_t>(words.Integer(1)),
                        Now() + words.Integer(2)};
    Found found;
    const absl::Status status = words[0] == "flags"  ? Flags(limits, &found)
                                : words[0] == "host" ? Host(limits, &found)
                                                     : Events(limits, &found);
    Say(kNoMore);
    if (!status.ok()) return status;
    return found.Answer();
  }

 private:
  // --- Flags -----------------------------------------------------------------

  absl::Status Flags(const Limits& limits, Found* found) {
    for (gpu::OwnedEvent* event : {&begin_, &end_}) {
      auto made = gpu::OwnedEvent::Create(gpu_, gpu::EventUse::kTiming);
      if (!made.ok()) return made.status();
      *event = *std::move(made);
    }
    Found warm;
    absl::Status status = FlagBatch(1, 0, kBatch, &warm);
    uint64_t done = kBatch;
    for (uint64_t batch = 2;
         status.ok() && done < kBatch + limits.rounds && Now() < limits.until;
         ++batch) {
      const uint64_t count = std::min(kBatch, kBatch + limits.rounds - done);
      status = FlagBatch(batch, done, count, found);
      done += count;
    }
    return status;
  }

  absl::Status FlagBatch(uint64_t batch, uint64_t done, uint64_t count,
                         Found* found) {
    Say(batch << kCountBits | count);
    absl::Status status = Wait(kGate, batch);
    if (status.ok()) status = gpu_.Record(begin_.get(), stream_.get());
    for (uint64_t i = done + 1; i <= done + count && status.ok(); ++i) {
      status = Write(kThere, i);
      if (status.ok()) status = Wait(kBack, i);
    }
    if (status.ok()) status = gpu_.Record(end_.get(), stream_.get());
    if (status.ok()) status = AwaitThem(batch);
    if (!status.ok()) return status;
    StoreWord(page_.memory(), kGate, batch);
    status = WatchRounds(done, count, found);
    if (status.ok()) status = WaitDone();
    if (!status.ok()) return status;
    const auto ms = gpu_.Milliseconds(begin_.get(), end_.get());
    if (!ms.ok()) return ms.status();
    found->pieces.push_back(*ms * 1e6 / 2 / static_cast<double>(count));
    return absl::OkStatus();
  }

  // Polls the word by which the rounds end. Of rounds that ended between two
  // looks each counts with the mean; the first of a batch is left out, as it
  // begins with the gate.
  absl::Status WatchRounds(uint64_t done, uint64_t count, Found* found) {
    uint64_t seen = done;
    int64_t last = 0;
    uint64_t looks = 0;
    const int64_t deadline = Now() + kPartner.count();
    while (seen < done + count) {
      const uint64_t value = LoadWord(page_.memory(), kBack);
      const int64_t now = Now();
      if (now > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("round ", seen + 1, " does not end"));
      }
      if (value == seen) {
        if (++looks % 16 == 0) std::this_thread::yield();
        continue;
      }
      const uint64_t rounds = value - seen;
      if (last != 0) {
        found->each.insert(
            found->each.end(), rounds,
            static_cast<double>(now - last) / 2 / static_cast<double>(rounds));
      } else {
        found->left_out += rounds;
      }
      last = now;
      seen = value;
    }
    return absl::OkStatus();
  }

  // --- Events ----------------------------------------------------------------

  absl::Status Events(const Limits& limits, Found* found) {
    auto events = ExchangeEvents();
    if (!events.ok()) return events.status();
    uint64_t round = 0;
    absl::Status status;
    for (; status.ok() && round < limits.rounds + kBatch &&
           (round < kBatch || Now() < limits.until);
         ++round) {
      const int64_t start = Now();
      status = EventRound(*events, round + 1);
      if (status.ok()) status = WaitDone();
      if (round < kBatch) continue;
      found->each.push_back(static_cast<double>(Now() - start) / 2);
    }
    // Again, with hosts that run ahead of the device.
    const int64_t start = Now();
    for (uint64_t i = 0; i < kBatch && status.ok(); ++i) {
      status = EventRound(*events, ++round);
    }
    if (status.ok()) status = WaitDone();
    found->pieces.push_back(static_cast<double>(Now() - start) / 2 /
                            static_cast<double>(kBatch));
    return status;
  }

  absl::Status EventRound(const EventPair& events, uint64_t round) {
    absl::Status status = Write(spare_, round);
    if (status.ok()) status = gpu_.Record(events.mine.get(), stream_.get());
    if (!status.ok()) return status;
    Say(round);
    status = AwaitThem(round);
    if (!status.ok()) return status;
    return gpu_.WaitEvent(stream_.get(), events.theirs.get());
  }

  // --- Hosts -----------------------------------------------------------------

  absl::Status Host(const Limits& limits, Found* found) {
    for (uint64_t round = 1; round <= limits.rounds + kBatch &&
                             (round <= kBatch || Now() < limits.until);
         ++round) {
      const int64_t start = Now();
      absl::Status status = Write(spare_, round);
      if (status.ok()) status = WaitDone();
      if (!status.ok()) return status;
      Say(round);
      status = AwaitThem(round);
      if (!status.ok()) return status;
      if (round <= kBatch) continue;
      found->each.push_back(static_cast<double>(Now() - start) / 2);
    }
    return absl::OkStatus();
  }

  gpu::OwnedEvent begin_, end_;
};

class Second : public Player {
 public:
  explicit Second(Stage& stage) : Player(stage, false) {}

  absl::StatusOr<std::string> Handle(Words& words) {
    if (words[0] == "page") return Map(words.TakeFd());
    const absl::Status status = words[0] == "flags"  ? Flags()
                                : words[0] == "host" ? Host()
                                                     : Events();
    if (!status.ok()) return status;
    return "took 0";
  }

 private:
  absl::Status Flags() {
    uint64_t done = 0;
    for (uint64_t batch = 1;; ++batch) {
      absl::Status status = AwaitThem(batch << kCountBits);
      if (!status.ok()) return status;
      const uint64_t them = Them();
      if (them == kNoMore) return absl::OkStatus();
      const uint64_t count = them & ((1 << kCountBits) - 1);
      status = Wait(kGate, batch);
      for (uint64_t i = done + 1; i <= done + count && status.ok(); ++i) {
        status = Wait(kThere, i);
        if (status.ok()) status = Write(kBack, i);
      }
      if (!status.ok()) return status;
      Say(batch);
      status = WaitDone();
      if (!status.ok()) return status;
      done += count;
    }
  }

  absl::Status Events() {
    auto events = ExchangeEvents();
    if (!events.ok()) return events.status();
    for (uint64_t round = 1;; ++round) {
      absl::Status status = AwaitThem(round);
      if (!status.ok()) return status;
      if (Them() == kNoMore) return WaitDone();
      status = gpu_.WaitEvent(stream_.get(), events->theirs.get());
      if (status.ok()) status = Write(spare_, round);
      if (status.ok()) status = gpu_.Record(events->mine.get(), stream_.get());
      if (!status.ok()) return status;
      Say(round);
    }
  }

  absl::Status Host() {
    for (uint64_t round = 1;; ++round) {
      absl::Status status = AwaitThem(round);
      if (!status.ok()) return status;
      if (Them() == kNoMore) return absl::OkStatus();
      status = Write(spare_, round);
      if (status.ok()) status = WaitDone();
      if (!status.ok()) return status;
      Say(round);
    }
  }
};

template <typename Side>
absl::Status Play(Stage& stage) {
  Side side(stage);
  absl::Status status = side.Open();
  if (status.ok()) status = stage.channel().Send("ready");
  if (!status.ok()) return status;
  return Serve(stage, [&side](Words& words) { return side.Handle(words); });
}

}  // namespace

absl::Status PlayFirst(Stage& stage) { return Play<First>(stage); }

absl::Status PlaySecond(Stage& stage) { return Play<Second>(stage); }

}  // namespace maypole::probe
