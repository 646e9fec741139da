// Measures whether kernels and copies of this process run beside another
// process's kernels. All kernels have one block, so there is room for both: a
// share of 1 means that they run side by side, 0.5 that they take turns.
#include "tests/gpu/figures/figures.h"
#include "tests/gpu/testing/memory.h"
#include "tests/gpu/testing/peer.h"

namespace maypole::cuda {
namespace {

constexpr size_t kReducedBytes = 8 << 20;  // as another process does
constexpr size_t kCopiedBytes = 64 << 20;
constexpr uint64_t kMillion = 1'000'000;

struct Rates {
  double mine;    // how often in a second
  double theirs;  // kernels a second
};

class Overlap {
 public:
  explicit Overlap(const Run& run)
      : run_(run),
        device_(run.device),
        copied_(run.quick ? kCopiedBytes / 64 : kCopiedBytes),
        memory_(device_.Alloc(2 * kCopiedBytes)),
        host_(device_, copied_) {
    const uint64_t array[] = {memory_};
    arguments_ =
        MakeReduceArguments({.inputs = array,
                             .outputs = array,
                             .elements = kReducedBytes / sizeof(float)});
    Theirs([] {});  // the other process opens the device
  }
  ~Overlap() { device_.Free(memory_); }

  template <typename Submit>
  void Measure(const std::string& name, const Submit& submit) {
    const double mine_alone = Repeat(submit);
    const double theirs_alone = Theirs([] {});
    double mine = 0;
    const double theirs = Theirs([&] { mine = Repeat(submit); });
    run_.report.Add("overlap/" + name + "/share_here", mine / mine_alone, "");
    run_.report.Add("overlap/" + name + "/share_there", theirs / theirs_alone,
                    "");
  }

  void OfKernels() {
    Measure("kernel", [&] {
      device_.Reduce(DType::kFloat32, Op::kSum, arguments_, 1,
                     device_.stream());
    });
  }
  void OfCopies() {
    const CUdeviceptr host = AddressOf(host_.data());
    Measure("copy_to_pinned", [&] { Copy(host, memory_); });
    Measure("copy_from_pinned", [&] { Copy(memory_, host); });
    Measure("copy_in_device", [&] { Copy(memory_ + kCopiedBytes, memory_); });
  }

 private:
  uint64_t Nanoseconds() const { return (run_.quick ? 30 : 400) * kMillion; }

  void Copy(CUdeviceptr to, CUdeviceptr from) {
    device_.Check(
        device_.cuda().cuMemcpyAsync(to, from, copied_, device_.stream()),
        "cuMemcpyAsync");
  }

  // How often in a second.
  template <typename Submit>
  double Repeat(const Submit& submit) {
    const uint64_t begin = NowNanoseconds();
    uint64_t now = begin, done = 0;
    for (; now < begin + Nanoseconds(); now = NowNanoseconds()) {
      submit();
      device_.Synchronize();
      ++done;
    }
    return static_cast<double>(done) / static_cast<double>(now - begin) * 1e9;
  }

  // The other process's kernels a second, while this one does `body`, which
  // takes as long.
  template <typename Body>
  double Theirs(const Body& body) {
    const auto milliseconds = static_cast<uint32_t>(Nanoseconds() / kMillion);
    peer_.Start({Request::kReduceForAWhile, milliseconds});
    body();
    const Answer answer = peer_.Finish();
    if (answer.error[0] != 0) throw CudaError(answer.result, answer.error);
    return static_cast<double>(answer.number) / milliseconds * 1e3;
  }

  const Run& run_;
  Device& device_;
  const size_t copied_;
  const CUdeviceptr memory_;
  const PinnedMemory host_;
  ReduceArguments arguments_;
  Peer peer_;
};

}  // namespace

void MeasureOverlap(const Run& run) {
  Overlap overlap(run);
  overlap.OfKernels();
  overlap.OfCopies();
}

}  // namespace maypole::cuda
