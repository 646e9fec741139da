#include "tests/gpu/probe/facts/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::probe {

absl::StatusOr<Staging> Staging::Create(gpu::Gpu& gpu) {
  auto memory = SharedMemory::Create(kBytes);
  if (!memory.ok()) return memory.status();
  auto registered =
      gpu::HostRegistration::Create(gpu, memory->data(), memory->bytes());
  if (!registered.ok()) return registered.status();
  Staging out;
  out.gpu_ = &gpu;
  out.memory_ = *std::move(memory);
  out.registered_ = *std::move(registered);
  return out;
}

absl::Status Staging::Put(gpu::Stream stream, gpu::Address to,
                          const Pattern& pattern, uint64_t elements) {
  const uint64_t size = SizeOf(pattern.dtype);
  const uint64_t first = std::min(elements, kPeriod);
  const std::vector<std::byte> bytes = Encode(pattern, {0, first});
  std::memcpy(memory_.data(), bytes.data(), bytes.size());
  absl::Status status =
      gpu_->Copy(stream, to, registered_.address(), bytes.size());
  // Whole periods after those that are there already: the pattern goes on.
  for (uint64_t have = first; status.ok() && have < elements;) {
    const uint64_t more = std::min(have, elements - have);
    status = gpu_->Copy(stream, to + have * size, to, more * size);
    have += more;
  }
  if (!status.ok()) return status;
  return WaitDone(*gpu_, stream, kCopyTimeout);
}

absl::StatusOr<std::vector<std::byte>> Staging::Get(gpu::Stream stream,
                                                    gpu::Address from,
                                                    uint64_t bytes) {
  if (bytes > kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes do not fit into ", kBytes));
  }
  absl::Status status = gpu_->Copy(stream, registered_.address(), from, bytes);
  if (status.ok()) status = WaitDone(*gpu_, stream, kCopyTimeout);
  if (!status.ok()) return status;
  const std::byte* data = static_cast<const std::byte*>(memory_.data());
  return std::vector<std::byte>(data, data + bytes);
}

absl::StatusOr<SumCheck> Staging::Check(gpu::Stream stream, gpu::Address at,
                                        DType dtype,
                                        std::span<const uint64_t> seeds,
                                        uint64_t elements) {
  const uint64_t size = SizeOf(dtype);
  SumCheck check;
  for (const Range& range : SampleRanges(elements)) {
    const auto got = Get(stream, at + range.begin * size, range.count * size);
    if (!got.ok()) return got.status();
    CheckSums(dtype, seeds, range, got->data(), &check);
    if (check.wrong.has_value()) break;
  }
  return check;
}

absl::StatusOr<bool> Staging::Holds(gpu::Stream stream, gpu::Address at,
                                    uint32_t word, uint64_t words) {
  const auto got = Get(stream, at, words * sizeof(word));
  if (!got.ok()) return got.status();
  for (uint64_t i = 0; i < words; ++i) {
    if (std::memcmp(&(*got)[i * sizeof(word)], &word, sizeof(word)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace maypole::probe
