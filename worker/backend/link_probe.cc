#include "worker/backend/link_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/reduce/reduce.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kSmallBytes = 128;  // two messages each way
constexpr uint64_t kLargeBytes = 256 * 1024;
constexpr size_t kAtOnce = 8;
constexpr int kTries = 5;

// Returns the least nanoseconds of a few calls; an error of `call` is final.
template <typename Call>
absl::StatusOr<uint64_t> Least(const Call& call) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (absl::Status s = call(); !s.ok()) return s;
    const std::chrono::nanoseconds took =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, static_cast<uint64_t>(took.count()));
  }
  return least;
}

uint64_t Difference(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

class Probe {
 public:
  Probe(Backend* backend, const ProbeOptions& options)
      : backend_(backend),
        options_(options),
        deadline_(std::chrono::steady_clock::now() + options.timeout) {
    backend_->OnEnded([this](const absl::Status& s) {
      std::lock_guard lock(mutex_);
      status_.Update(s);
      --open_;
      ended_.notify_all();
    });
  }
  // The backend returns from the callback before it takes another one.
  ~Probe() {
    backend_->OnEnded([](const absl::Status&) {});
  }

  // Exchanges the chunks at once and waits for them. `peer`: who takes part, if
  // it is one node.
  absl::Status Exchange(std::vector<Work> chunks,
                        std::optional<uint32_t> peer = {}) {
    {
      std::lock_guard lock(mutex_);
      open_ += chunks.size();
    }
    for (Work& work : chunks) backend_->Start(std::move(work));
    std::unique_lock lock(mutex_);
    const auto done = [this] { return open_ == 0; };
    if (!ended_.wait_until(lock, deadline_, done)) {
      lock.unlock();
      options_.on_late(peer);
      lock.lock();
      ended_.wait(lock, done);  // the chunks' memory is the caller's
    }
    return status_;
  }

 private:
  Backend* const backend_;
  const ProbeOptions& options_;
  const std::chrono::steady_clock::time_point deadline_;
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t open_ = 0;
  absl::Status status_;
};

uint64_t MeasureReduction() {
  std::vector<float> a(kLargeBytes / sizeof(float)), b(a.size());
  const std::array<const std::byte*, 2> inputs = {
      reinterpret_cast<const std::byte*>(a.data()),
      reinterpret_cast<const std::byte*>(b.data())};
  const uint64_t least = *Least([&] {
    Reduce(DType::kFloat32, Op::kSum, inputs,
           reinterpret_cast<std::byte*>(a.data()), a.size(), {});
    return absl::OkStatus();
  });
  return least * ((1 << 20) / kLargeBytes) / inputs.size();
}

// The nanoseconds of `count` exchanges of `bytes` bytes at once with a node.
absl::StatusOr<uint64_t> TimeWith(Probe& probe, uint32_t self, uint32_t peer,
                                  uint64_t bytes, size_t count) {
  std::vector<std::byte> memory(bytes * count);
  return Least([&] {
    std::vector<Work> chunks;
    for (size_t i = 0; i < count; ++i) {
      chunks.push_back({.chunk = std::span(&memory[i * bytes], bytes),
                        .reduces = true,
                        .nodes = {std::min(self, peer), std::max(self, peer)}});
    }
    return probe.Exchange(std::move(chunks), peer);
  });
}

// Of a MiB, from the times of one small and one large exchange.
uint64_t WireOf(uint64_t small, uint64_t large, uint64_t reduce) {
  return Difference(Difference(large, small) * ((1 << 20) / kLargeBytes),
                    reduce);
}

// In a pair, an exchange takes two messages each way in a row: twice latency
// and message, and twice half of the bytes on the wire.
absl::StatusOr<LinkCosts> MeasurePair(Probe& probe, uint32_t self,
                                      uint64_t reduce) {
  const uint32_t peer = self ^ 1;
  const auto one = TimeWith(probe, self, peer, kSmallBytes, 1);
  if (!one.ok()) return one.status();
  const auto several = TimeWith(probe, self, peer, kSmallBytes, kAtOnce);
  if (!several.ok()) return several.status();
  const auto large = TimeWith(probe, self, peer, kLargeBytes, 1);
  if (!large.ok()) return large.status();
  LinkCosts costs;
  costs.message = Difference(*several, *one) / (2 * (kAtOnce - 1));
  costs.latency = Difference(*one / 2, costs.message);
  costs.wire = WireOf(*one, *large, reduce);
  return costs;
}

// The neighbour with which MeasurePair() does not measure. An odd number of
// nodes makes a line, whose first node has only one.
std::optional<uint32_t> OtherNeighbour(uint32_t self, uint32_t nodes) {
  if (nodes < 3 || (nodes % 2 == 1 && self == 0)) return std::nullopt;
  return (self % 2 == 1 ? self + 1 : self + nodes - 1) % nodes;
}

absl::StatusOr<uint64_t> MeasureWire(Probe& probe, uint32_t self, uint32_t peer,
                                     uint64_t reduce) {
  const auto small = TimeWith(probe, self, peer, kSmallBytes, 1);
  if (!small.ok()) return small.status();
  const auto large = TimeWith(probe, self, peer, kLargeBytes, 1);
  if (!large.ok()) return large.status();
  return WireOf(*small, *large, reduce);
}

}  // namespace

std::vector<uint32_t> SlowWires(const std::vector<uint64_t>& wires) {
  if (wires.empty()) return {};
  std::vector<uint64_t> sorted = wires;
  std::sort(sorted.begin(), sorted.end());
  const uint64_t median = sorted[(sorted.size() - 1) / 2];
  std::vector<uint32_t> slow;
  for (uint32_t i = 0; i < wires.size(); ++i) {
    if (wires[i] > std::max(kFastWireNs, kSlowWire * median)) slow.push_back(i);
  }
  return slow;
}

absl::StatusOr<AgreedLinks> MeasureLinks(Backend* backend,
                                         const ProbeOptions& options) {
  Probe probe(backend, options);
  const uint32_t self = options.self;
  LinkCosts own;
  uint64_t wire = UINT64_MAX;
  if (options.nodes > 1) own.reduce = MeasureReduction();
  if ((self | 1) < options.nodes) {  // the last of an odd number: none
    absl::StatusOr<LinkCosts> measured = MeasurePair(probe, self, own.reduce);
    if (!measured.ok()) return measured.status();
    measured->reduce = own.reduce;
    own = *measured;
    wire = own.wire;
  }
  if (const auto peer = OtherNeighbour(self, options.nodes)) {
    const auto measured = MeasureWire(probe, self, *peer, own.reduce);
    if (!measured.ok()) return measured.status();
    wire = std::min(wire, *measured);
  }
  // The greatest costs, the least of the levels, and each node's wire, where
  // the others have 0.
  std::vector<int64_t> figures = {
      static_cast<int64_t>(own.latency), static_cast<int64_t>(own.message),
      static_cast<int64_t>(own.wire), static_cast<int64_t>(own.reduce),
      -int64_t{options.max_levels}};
  const size_t wires = figures.size();
  figures.resize(wires + options.nodes);
  figures[wires + self] =
      static_cast<int64_t>(options.nodes > 1 ? std::max<uint64_t>(wire, 1) : 1);
  const Work agreement{.chunk = std::as_writable_bytes(std::span(figures)),
                       .reduces = true,
                       .op = Op::kMax,
                       .dtype = DType::kInt64};
  const absl::Status agreed = probe.Exchange({agreement});
  if (!agreed.ok()) return agreed;
  const auto figure = [&](size_t i) {
    return static_cast<uint64_t>(figures[i]);
  };
  return AgreedLinks{
      {figure(0), figure(1), figure(2), figure(3)},
      static_cast<uint32_t>(-figures[4]),
      {figures.begin() + static_cast<ptrdiff_t>(wires), figures.end()}};
}

}  // namespace maypole::worker
