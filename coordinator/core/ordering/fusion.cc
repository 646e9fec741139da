#include "coordinator/core/ordering/fusion.h"

#include <bit>
#include <map>
#include <utility>

#include "common/limits.h"

namespace maypole::coordinator {

std::optional<FusionKey> FusionKeyOf(const Signature& s) {
  if (!Reduces(s.kind) && s.kind != Kind::kBroadcast) {
    return std::nullopt;
  }
  const Signature a = AgreedPart(s);
  return FusionKey{a.kind,
                   a.process_set,
                   a.dtype,
                   a.op,
                   a.device,
                   a.root,
                   std::bit_cast<uint64_t>(a.prescale),
                   std::bit_cast<uint64_t>(a.postscale)};
}

namespace {

uint64_t Padded(uint64_t bytes) {
  return (bytes + kFusionAlignment - 1) / kFusionAlignment * kFusionAlignment;
}

size_t MostOperations(uint32_t communicator) {
  return communicator == 0 ? kMaxRunOperations : kMaxGpuRunOperations;
}

// A run that has room for more operations.
struct Open {
  size_t run;  // index in the result
  uint64_t bytes;
};

}  // namespace

std::vector<std::vector<size_t>> Fuse(std::span<const ReadyOperation> ready,
                                      uint64_t threshold) {
  std::vector<std::vector<size_t>> runs;
  std::map<std::pair<FusionKey, uint32_t /*communicator*/>, Open> open;
  for (size_t i = 0; i < ready.size(); ++i) {
    const uint64_t bytes = Padded(ready[i].bytes);
    const std::optional<FusionKey> key = FusionKeyOf(ready[i].signature);
    if (!key || threshold == 0 || bytes > threshold) {
      runs.push_back({i});
      continue;
    }
    auto it = open.find({*key, ready[i].communicator});
    if (it != open.end() && it->second.bytes + bytes <= threshold &&
        runs[it->second.run].size() < MostOperations(ready[i].communicator)) {
      runs[it->second.run].push_back(i);
      it->second.bytes += bytes;
      continue;
    }
    open[{*key, ready[i].communicator}] = {runs.size(), bytes};
    runs.push_back({i});
  }
  return runs;
}

}  // namespace maypole::coordinator
