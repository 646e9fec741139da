// Rates of copies.
#include <algorithm>

#include "tests/gpu/figures/figures.h"
#include "tests/gpu/testing/memory.h"

namespace maypole::cuda {
namespace {

constexpr int kTries = 10;

}  // namespace

double SecondsOf(const Run& run, const std::function<void()>& submit) {
  const Device& device = run.device;
  const CUevent begin = device.NewEvent(0), end = device.NewEvent(0);
  float best = 0;
  for (int i = 0; i <= (run.quick ? 1 : kTries); ++i) {
    device.Check(device.cuda().cuEventRecord(begin, device.stream()),
                 "cuEventRecord");
    submit();
    device.Check(device.cuda().cuEventRecord(end, device.stream()),
                 "cuEventRecord");
    device.Check(device.cuda().cuEventSynchronize(end), "cuEventSynchronize");
    float milliseconds = 0;
    device.Check(device.cuda().cuEventElapsedTime(&milliseconds, begin, end),
                 "cuEventElapsedTime");
    if (i == 1 || (i > 1 && milliseconds < best)) best = milliseconds;
  }
  device.cuda().cuEventDestroy(begin);
  device.cuda().cuEventDestroy(end);
  return std::max(best, 1e-6f) / 1e3;
}

double MeasureCopies(const Run& run) {
  Device& device = run.device;
  const size_t bytes = run.quick ? 1 << 20 : 1 << 30;
  const size_t host_bytes = bytes / 4;
  const CUdeviceptr memory = device.Alloc(2 * bytes);
  const PinnedMemory host(device, host_bytes);
  const auto rate = [&](CUdeviceptr to, CUdeviceptr from, size_t size) {
    return static_cast<double>(size) / SecondsOf(run, [&] {
             device.Check(
                 device.cuda().cuMemcpyAsync(to, from, size, device.stream()),
                 "cuMemcpyAsync");
           });
  };
  const double copy_rate = 2 * rate(memory, memory + bytes, bytes);
  run.report.Add("copy/device_read_and_written", copy_rate, "B/s");
  const CopiedPiece piece = {memory + bytes, memory, bytes};
  const CopyArguments arguments = MakeCopyArguments({&piece, 1});
  run.report.Add(
      "copy/kernel_read_and_written",
      2 * static_cast<double>(bytes) /
          SecondsOf(run,
                    [&] { device.CopyPieces(arguments, device.stream()); }),
      "B/s");
  const CUdeviceptr pinned = AddressOf(host.data());
  run.report.Add("copy/device_to_pinned", rate(pinned, memory, host_bytes),
                 "B/s");
  run.report.Add("copy/pinned_to_device", rate(memory, pinned, host_bytes),
                 "B/s");
  device.Free(memory);
  return copy_rate;
}

}  // namespace maypole::cuda
