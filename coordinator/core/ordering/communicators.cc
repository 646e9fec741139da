#include "coordinator/core/ordering/communicators.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/gather_room.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// True for kinds whose results need no room.
bool HasRoom(const NegotiatedOperation& op, const ReadyOperation& ready) {
  const Kind kind = ready.signature.kind;
  if (!Gathers(kind)) return true;
  const RankSet& set = *op.set;
  std::vector<uint64_t> rooms(set.ranks.size(), 0);
  std::vector<int64_t> rows = ready.splits;
  if (kind == Kind::kAllgather) {
    for (const uint32_t rank : set.ranks) {
      rows.push_back(ready.first_dims[rank]);
    }
  }
  for (const size_t node : set.nodes) {
    for (size_t i = 0; i < set.by_node[node].size(); ++i) {
      rooms[set.PositionOf(set.by_node[node][i])] =
          op.nodes[node].details->gpu_rooms[i];
    }
  }
  return ResultsHaveRoom(kind, ready.signature.RowBytes(), rows, rooms);
}

// The NCCL ranks of the members' GPUs.
std::vector<uint32_t> MemberGpus(const NegotiatedOperation& op,
                                 const Communicator& c) {
  const RankSet& set = *op.set;
  std::vector<uint32_t> out(set.ranks.size(), 0);
  for (const Communicator::Part& part : c.parts) {
    const std::vector<uint32_t>& ranks = set.by_node[part.node];
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto gpu =
          std::ranges::lower_bound(part.gpus, op.nodes[part.node].gpus()[i]);
      out[set.PositionOf(ranks[i])] =
          part.first + static_cast<uint32_t>(gpu - part.gpus.begin());
    }
  }
  return out;
}

}  // namespace

absl::Status Communicators::OnRankGpu(size_t node,
                                      const proto::RankGpu& message) {
  if (!nodes_[node].HasRank(message.rank()) || message.gpu() >= kMaxGpus ||
      message.uuid().size() != kGpuUuidBytes ||
      message.bytes() > kMaxGpuMemories * kMaxGpuMemoryBytes) {
    return InvalidArgument("rank ", message.rank(), " is said to use GPU ",
                           message.gpu(), ", with a UUID of ",
                           message.uuid().size(), " bytes, and ",
                           message.bytes(), " bytes of its memory");
  }
  const Gpu gpu = {message.uuid(), message.nccl_host()};
  const auto it =
      known_.try_emplace({node, message.own(), message.gpu()}, gpu).first;
  if (it->second != gpu) {
    return InvalidArgument("GPU ", message.gpu(),
                           " is another one than before");
  }
  rank_gpus_[{message.rank(), message.uuid()}] = message;
  return absl::OkStatus();
}

bool Communicators::AnyIsShared(bool own, const Gpus& gpus) {
  std::map<Gpu, size_t> seen;  // its node
  for (const auto& [node, numbers] : gpus) {
    for (const uint32_t number : numbers) {
      const auto gpu = known_.find({node, own, number});
      if (gpu == known_.end()) continue;
      const auto [it, is_new] = seen.emplace(gpu->second, node);
      if (is_new) continue;
      if (std::exchange(warned_of_sharing_, true)) return true;
      nodes_.Warn("shared_gpu", " gpu=", UuidText(gpu->second.uuid),
                  " node=", nodes_[it->second].node,
                  " other=", nodes_[node].node,
                  " reason=\"NCCL cannot connect a GPU with itself; CUDA "
                  "tensors of ranks that share a GPU between nodes are copied "
                  "through host memory\"");
      return true;
    }
  }
  return false;
}

void Communicators::Choose(const NegotiatedOperation& op,
                           ReadyOperation* ready) {
  if (!enabled_) return;
  const bool by_ranks = op.nodes[op.set->nodes.front()].ranks_call_nccl();
  Gpus gpus;
  for (const size_t node : op.set->nodes) {
    std::vector<uint32_t> numbers = op.nodes[node].gpus();
    if (numbers.empty() || op.nodes[node].ranks_call_nccl() != by_ranks) return;
    if (!by_ranks) {
      std::ranges::sort(numbers);
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    }
    gpus.emplace_back(node, std::move(numbers));
  }
  if (!HasRoom(op, *ready)) return;
  const Communicator* const c = Of(by_ranks ? op.set : nullptr, gpus);
  if (c == nullptr) return;
  ready->communicator = c->number;
  if (!by_ranks && ready->signature.kind != Kind::kAllreduce) {
    ready->member_gpus = MemberGpus(op, *c);
  }
}

// Null if there are too many, or nodes share a GPU.
const Communicator* Communicators::Of(const RankSet* ranks, const Gpus& gpus) {
  const auto it = numbers_.find({ranks, gpus});
  if (it != numbers_.end()) return Get(it->second);
  if (all_.size() >= kMaxCommunicators) return nullptr;
  if (AnyIsShared(ranks != nullptr, gpus)) return nullptr;
  Communicator c{.number = static_cast<uint32_t>(all_.size()) + 1};
  c.ranks = ranks;
  for (const auto& [node, numbers] : gpus) {
    c.parts.push_back({node, c.size, numbers});
    c.size += static_cast<uint32_t>(numbers.size());
  }
  numbers_.emplace(std::make_pair(ranks, gpus), c.number);
  for (const Communicator::Part& part : c.parts) Send(c, part);
  all_.push_back(std::move(c));
  return &all_.back();
}

void Communicators::Restore(const std::vector<const proto::NodeState*>& states,
                            const ProcessSets& sets) {
  for (const proto::NodeState* state : states) {
    if (state == nullptr) continue;
    if (state->nccl_version() != 0) enabled_ = true;
    for (const proto::Communicator& m : state->communicators()) {
      while (all_.size() < m.number()) {
        all_.push_back({.number = static_cast<uint32_t>(all_.size()) + 1});
      }
      Communicator& c = all_[m.number() - 1];
      if (!c.parts.empty()) continue;
      c.size = m.size();
      if (m.ranks_call_nccl()) c.ranks = sets.FindEver(m.process_set());
      Gpus gpus;
      for (const proto::CommunicatorPart& part : m.parts()) {
        c.parts.push_back({part.node(),
                           part.first(),
                           {part.gpus().begin(), part.gpus().end()}});
        gpus.emplace_back(part.node(), c.parts.back().gpus);
      }
      numbers_.emplace(std::make_pair(c.ranks, std::move(gpus)), c.number);
    }
  }
}

void Communicators::Resend(size_t node,
                           const std::vector<const proto::NodeState*>& states) {
  std::set<uint32_t> known;
  for (const auto& c : states[node]->communicators()) known.insert(c.number());
  const auto& received = states[node]->ids_received();
  const std::set<uint32_t> connected(received.begin(), received.end());
  std::map<uint32_t, const proto::CommunicatorId*> ids;
  for (const proto::NodeState* state : states) {
    if (state == nullptr) continue;
    for (const auto& id : state->communicator_ids()) ids[id.number()] = &id;
  }
  for (Communicator& c : all_) {
    for (const Communicator::Part& part : c.parts) {
      if (part.node != node) continue;
      if (!known.contains(c.number)) Send(c, part);
      const auto id = ids.find(c.number);
      if (id == ids.end()) continue;
      c.has_id = true;
      if (connected.contains(c.number)) continue;
      proto::CoordinatorMessage message;
      *message.mutable_communicator_id() = *id->second;
      nodes_.Send(node, message);
    }
  }
}

void Communicators::Send(const Communicator& c,
                         const Communicator::Part& part) {
  proto::CoordinatorMessage message;
  proto::Communicator* m = message.mutable_communicator();
  m->set_number(c.number);
  m->set_size(c.size);
  m->set_first(part.first);
  m->mutable_gpus()->Assign(part.gpus.begin(), part.gpus.end());
  if (c.ranks != nullptr) {
    m->set_ranks_call_nccl(true);
    m->set_process_set(c.ranks->id);
  }
  for (const Communicator::Part& p : c.parts) {
    proto::CommunicatorPart* every = m->add_parts();
    every->set_node(static_cast<uint32_t>(p.node));
    every->set_first(p.first);
    every->mutable_gpus()->Assign(p.gpus.begin(), p.gpus.end());
  }
  nodes_.Send(part.node, message);
}

absl::Status Communicators::OnId(size_t node,
                                 const proto::CommunicatorId& message) {
  Communicator* const c = Get(message.number());
  if (c == nullptr || c->has_id || c->parts.empty() ||
      c->parts.front().node != node || message.id().empty() ||
      message.id().size() > kMaxCommunicatorIdBytes) {
    return InvalidArgument("an id of ", message.id().size(),
                           " bytes for communicator ", message.number(),
                           ", which this node must not give");
  }
  c->has_id = true;
  proto::CoordinatorMessage m;
  *m.mutable_communicator_id() = message;
  for (const Communicator::Part& part : c->parts) nodes_.Send(part.node, m);
  return absl::OkStatus();
}

void Communicators::FillStatus(proto::RankStatus* rank) const {
  for (auto gpu = rank_gpus_.lower_bound({rank->rank(), ""});
       gpu != rank_gpus_.end() && gpu->first.first == rank->rank(); ++gpu) {
    proto::GpuUse* const use = rank->add_gpus();
    use->set_uuid(UuidText(gpu->second.uuid()));
    use->set_bytes(gpu->second.bytes());
  }
}

Communicator* Communicators::Get(uint32_t number) {
  return number >= 1 && number <= all_.size() ? &all_[number - 1] : nullptr;
}

}  // namespace maypole::coordinator
