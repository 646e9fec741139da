#include "worker/executor/gpu_use.h"

#include <cstring>
#include <numeric>
#include <set>
#include <utility>
#include <variant>

namespace maypole::worker {
namespace {

// The number of elements of the tensor.
uint64_t ElementsOf(const GpuOperation& o, uint32_t tensor) {
  if (!Gathers(o.kind)) return o.elements;
  const size_t each = o.kind == Kind::kAlltoall ? o.members.size() : 1;
  auto counts = o.counts.begin();
  for (const GpuMember& member : o.members) {
    const auto end = counts + static_cast<ptrdiff_t>(each);
    if (member.tensor == tensor) {
      return std::accumulate(counts, end, uint64_t{0});
    }
    counts = end;
  }
  return 0;
}

}  // namespace

void GpuUse::OnAction(const Action& action, int64_t now_ns) {
  if (const auto* open = std::get_if<OpenGpuMemory>(&action)) On(*open);
  if (const auto* reply = std::get_if<ReplyClient>(&action)) On(*reply);
  if (const auto* close = std::get_if<CloseGpuMemories>(&action)) On(*close);
  if (const auto* run = std::get_if<RunOnGpus>(&action)) {
    for (const GpuOperation& o : run->run.operations) Begin(o, now_ns);
    CountSite(RunSite::kExecutors, run->run.operations.size());
  }
  if (std::holds_alternative<RunOnHost>(action)) CountSite(RunSite::kHost, 1);
  if (const auto* commit = std::get_if<CommitSlot>(&action)) {
    Commit(*commit, now_ns);
  }
  if (const auto* issue = std::get_if<IssueRun>(&action)) {
    if (issue->run.site == RunSite::kRanks) {
      CountSite(RunSite::kRanks, issue->run.operations.size());
    }
    for (const PlanOperation& o : issue->run.operations) {
      Commit({o.slot, o.generation}, now_ns);
    }
  }
  if (const auto* fail = std::get_if<FailSlot>(&action)) {
    operations_.erase({fail->slot, fail->generation});
  }
}

void GpuUse::CountSite(RunSite site, size_t operations) {
  StatsPage::Add(page_.gpu_site_operations[static_cast<size_t>(site)],
                 operations);
}

void GpuUse::OnEpochOver() {
  memories_.clear();
  gpus_.clear();
  operations_.clear();
  for (GpuStats& gpu : page_.gpus) gpu.memory_bytes = 0;
}

void GpuUse::On(const OpenGpuMemory& a) {
  Memory& memory = memories_[{a.client, a.request.number}];
  memory = {.local = a.id.local, .bytes = a.request.bytes};
  static_assert(sizeof(memory.uuid) == sizeof(a.request.uuid));
  std::memcpy(memory.uuid.data(), a.request.uuid, sizeof(memory.uuid));
}

void GpuUse::On(const ReplyClient& a) {
  const auto* reply = std::get_if<session::GpuMemoryReply>(&a.reply);
  if (reply == nullptr || reply->code != 0) return;
  const auto it = memories_.find({a.client, reply->number});
  if (it == memories_.end() || it->second.open_on != nullptr) return;
  GpuStats* const gpu = EntryOf(it->second.uuid);
  if (gpu == nullptr) return;
  it->second.open_on = gpu;
  gpus_[reply->gpu] = gpu;
  StatsPage::Add(gpu->memory_bytes, it->second.bytes);
}

void GpuUse::On(const CloseGpuMemories& a) {
  std::erase_if(memories_, [&](const auto& entry) {
    const Memory& memory = entry.second;
    if (memory.local != a.local) return false;
    if (memory.open_on != nullptr) {
      memory.open_on->memory_bytes.fetch_sub(memory.bytes,
                                             std::memory_order_relaxed);
    }
    return true;
  });
}

void GpuUse::Begin(const GpuOperation& o, int64_t now_ns) {
  Operation begun{.begun_ns = now_ns};
  for (uint32_t t = 0; t < o.tensors.size(); ++t) {
    const auto gpu = gpus_.find(o.tensors[t].gpu);
    if (gpu == gpus_.end()) continue;
    begun.bytes[gpu->second] += ElementsOf(o, t) * SizeOf(o.dtype);
  }
  operations_[{o.slot, o.generation}] = std::move(begun);
}

void GpuUse::Commit(const CommitSlot& a, int64_t now_ns) {
  const auto it = operations_.find({a.slot, a.generation});
  if (it == operations_.end()) return;  // no RunOnGpus has begun it
  const Operation& o = it->second;
  for (const auto& [gpu, bytes] : o.bytes) {
    StatsPage::Add(gpu->operations, 1);
    StatsPage::Add(gpu->operation_bytes, bytes);
    StatsPage::Add(gpu->operation_ns,
                   static_cast<uint64_t>(now_ns - o.begun_ns));
  }
  operations_.erase(it);
}

void GpuUse::OnRunEnded(const GpuRun& run) {
  const GpuRunTimes& t = run.times;
  std::set<GpuStats*> on;
  for (const GpuOperation& o : run.operations) {
    for (const GpuTensor& tensor : o.tensors) {
      const auto gpu = gpus_.find(tensor.gpu);
      if (gpu != gpus_.end()) on.insert(gpu->second);
    }
  }
  for (GpuStats* const gpu : on) {
    if (t.begun > 0) {
      StatsPage::Add(gpu->wait_ns, static_cast<uint64_t>(t.begun - t.ordered));
    }
    if (t.launched > 0 && t.ended > 0) {
      StatsPage::Add(gpu->nccl_ns, static_cast<uint64_t>(t.ended - t.launched));
    }
  }
}

// Null if the job has used more GPUs than the page has room for.
GpuStats* GpuUse::EntryOf(const GpuUuid& uuid) {
  const uint64_t count = page_.gpu_count.load(std::memory_order_relaxed);
  for (uint64_t i = 0; i < count; ++i) {
    if (page_.gpus[i].uuid() == uuid) return &page_.gpus[i];
  }
  if (count >= kMaxGpus) return nullptr;
  page_.gpus[count].set_uuid(uuid);
  page_.gpu_count.store(count + 1, std::memory_order_release);
  return &page_.gpus[count];
}

}  // namespace maypole::worker
