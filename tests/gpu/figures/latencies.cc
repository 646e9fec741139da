// Measures how long after its submission the end of a small copy is known.
#include "tests/gpu/figures/figures.h"
#include "tests/gpu/testing/memory.h"
#include "tests/gpu/testing/peer.h"

namespace maypole::cuda {
namespace {

constexpr size_t kBytes = 4096;
constexpr uint32_t kRounds = 5000, kWarmUp = 100, kQuickRounds = 20;

class Latencies {
 public:
  explicit Latencies(const Run& run)
      : run_(run),
        device_(run.device),
        rounds_(run.quick ? kQuickRounds : kRounds),
        pages_(PagesBytes()),
        registered_(device_, pages_),
        host_(device_, kBytes),
        memory_(device_.Alloc(kBytes)) {}
  ~Latencies() { device_.Free(memory_); }

  void OfStreamsWord() {
    if (!device_.gpu().writes_values()) return SkipWord("latency/stream_word");
    Measure("latency/stream_word", [&](uint64_t value) {
      StreamWrites(value);
      AwaitWord(pages_.word(0), value);
    });
  }
  void OfKernelsWord() {
    Measure("latency/kernel_word", [&](uint64_t value) {
      device_.WriteWord(registered_.address(), value, device_.stream());
      AwaitWord(pages_.word(0), value);
    });
  }
  void OfEvent() {
    const CUevent event = device_.NewEvent();
    Measure("latency/event_query", [&](uint64_t) {
      device_.cuda().cuEventRecord(event, device_.stream());
      while (device_.cuda().cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      }
    });
    device_.cuda().cuEventDestroy(event);
  }
  // Until another process has seen the word.
  void OfHandOver() {
    if (!device_.gpu().writes_values()) return SkipWord("latency/hand_over");
    Reset();
    Peer peer;
    peer.Start({Request::kSeeWords, rounds_, pages_.bytes()}, pages_.fd());
    std::vector<uint64_t> submitted, times;
    for (uint64_t value = 1; value <= rounds_; ++value) {
      submitted.push_back(NowNanoseconds());
      Copy();
      StreamWrites(value);
      AwaitWord(pages_.word(Request::kSeen), value);
    }
    peer.Finish();
    for (size_t i = Skipped(); i < rounds_; ++i) {
      times.push_back(pages_.word(Request::kFirstTime + i) - submitted[i]);
    }
    run_.report.AddTimes("latency/hand_over", std::move(times));
  }

 private:
  size_t PagesBytes() const {
    return (Request::kFirstTime + kRounds) * sizeof(uint64_t);
  }
  size_t Skipped() const { return run_.quick ? 0 : kWarmUp; }
  void Reset() {
    StoreWord(pages_.word(0), 0);
    StoreWord(pages_.word(Request::kSeen), 0);
  }
  void SkipWord(const char* name) {
    run_.report.Skip(name, "the device's streams cannot write words");
  }
  void Copy() {
    device_.Check(device_.cuda().cuMemcpyAsync(AddressOf(host_.data()), memory_,
                                               kBytes, device_.stream()),
                  "cuMemcpyAsync");
  }
  void StreamWrites(uint64_t value) {
    device_.Check(device_.cuda().cuStreamWriteValue64(
                      device_.stream(), registered_.address(), value, 0),
                  "cuStreamWriteValue64");
  }
  template <typename SignalAndAwait>
  void Measure(const char* name, const SignalAndAwait& signal_and_await) {
    Reset();
    std::vector<uint64_t> times;
    for (uint64_t value = 1; value <= rounds_; ++value) {
      const uint64_t begin = NowNanoseconds();
      Copy();
      signal_and_await(value);
      if (value > Skipped()) times.push_back(NowNanoseconds() - begin);
    }
    device_.Synchronize();
    run_.report.AddTimes(name, std::move(times));
  }

  const Run& run_;
  Device& device_;
  const uint32_t rounds_;
  const SharedPages pages_;
  const Registered registered_;
  const PinnedMemory host_;
  const CUdeviceptr memory_;
};

}  // namespace

void MeasureLatencies(const Run& run) {
  Latencies latencies(run);
  latencies.OfStreamsWord();
  latencies.OfKernelsWord();
  latencies.OfEvent();
  latencies.OfHandOver();
}

}  // namespace maypole::cuda
