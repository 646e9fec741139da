#include "coordinator/core/ordering/fusion.h"

#include <bit>
#include <map>
#include <tuple>
#include <vector>

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

size_t MostOperations(const ReadyOperation& op) {
  if (op.communicator == 0) return kMaxRunOperations;
  // NCCL may have to be called once for each member.
  return op.signature.kind == Kind::kReducescatter ? 1 : kMaxGpuRunOperations;
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
  using Key = std::tuple<FusionKey, uint32_t /*communicator*/,
                         std::vector<uint32_t> /*member_gpus*/>;
  std::map<Key, Open> open;
  for (size_t i = 0; i < ready.size(); ++i) {
    const uint64_t bytes = Padded(ready[i].bytes);
    const std::optional<FusionKey> key = FusionKeyOf(ready[i].signature);
    if (!key || threshold == 0 || bytes > threshold) {
      runs.push_back({i});
      continue;
    }
    const Key all{*key, ready[i].communicator, ready[i].member_gpus};
    auto it = open.find(all);
    if (it != open.end() && it->second.bytes + bytes <= threshold &&
        runs[it->second.run].size() < MostOperations(ready[i])) {
      runs[it->second.run].push_back(i);
      it->second.bytes += bytes;
      continue;
    }
    open[all] = {runs.size(), bytes};
    runs.push_back({i});
  }
  return runs;
}

}  // namespace maypole::coordinator
