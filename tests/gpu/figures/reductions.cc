// One kernel reduces the memory of k other processes, and writes the sum back
// to all.
#include <deque>

#include "tests/gpu/figures/figures.h"
#include "tests/gpu/testing/memory.h"
#include "tests/gpu/testing/peer.h"

namespace maypole::cuda {
namespace {

constexpr DType kDTypesMeasured[] = {DType::kFloat32, DType::kFloat16,
                                     DType::kBfloat16};
constexpr size_t kMebibyte = 1 << 20;
constexpr size_t kLeastLeft = 1 << 30;  // of the device's memory

// Memory of other processes, imported.
struct Members {
  std::deque<Peer> peers;
  std::deque<ShareableMemory> memory;
};

void AddMembers(const Device& device, size_t count, size_t bytes,
                Members* members) {
  for (size_t k = 0; k < count; ++k) {
    const Answer made =
        members->peers.emplace_back().Ask({Request::kCreate, 0, bytes});
    members->memory.push_back(ShareableMemory::Import(device, made.fd, bytes));
    device.Fill(members->memory.back().address(), kMebibyte, 0);
  }
}

void MeasureKind(const Run& run, DType dtype, const Members& members,
                 size_t count, size_t bytes) {
  std::vector<uint64_t> arrays;
  for (size_t k = 0; k < count; ++k) {
    arrays.push_back(members.memory[k].address());
  }
  const ReduceArguments arguments =
      MakeReduceArguments({.dtype = dtype,
                           .inputs = arrays,
                           .outputs = arrays,
                           .elements = bytes / SizeOf(dtype)});
  const double seconds = SecondsOf(run, [&] {
    run.device.Reduce(dtype, Op::kSum, arguments, 0, run.device.stream());
  });
  const double rate = 2.0 * static_cast<double>(count * bytes) / seconds;
  const std::string name = "reduce/" + std::string(Name(dtype)) + "/k" +
                           std::to_string(count) + "/" +
                           std::to_string(bytes / kMebibyte) + "MiB";
  run.report.Add(name, rate, "B/s");
  run.report.Add(name + "/share_of_copy", rate / run.copy_rate, "");
}

}  // namespace

void MeasureReductions(const Run& run) {
  if (!ShareableMemory::IsSupported(run.device)) {
    return run.report.Skip("reduce",
                           "the device has no shareable virtual memory "
                           "management");
  }
  const std::vector<size_t> counts =
      run.quick ? std::vector<size_t>{2} : std::vector<size_t>{2, 4, 8};
  const std::vector<size_t> sizes =
      run.quick ? std::vector<size_t>{2 * kMebibyte}
                : std::vector<size_t>{64 * kMebibyte, 256 * kMebibyte,
                                      1024 * kMebibyte};
  for (const size_t bytes : sizes) {
    Members members;
    for (const size_t count : counts) {
      const size_t more = count - members.peers.size();
      if (!run.quick &&
          run.device.FreeBytes() < more * (bytes + kLeastLeft) + kLeastLeft) {
        run.report.Skip("reduce/k" + std::to_string(count) + "/" +
                            std::to_string(bytes / kMebibyte) + "MiB",
                        "the device has too little free memory");
        break;
      }
      AddMembers(run.device, more, bytes, &members);
      for (const DType dtype : kDTypesMeasured) {
        MeasureKind(run, dtype, members, count, bytes);
      }
    }
  }
}

}  // namespace maypole::cuda
