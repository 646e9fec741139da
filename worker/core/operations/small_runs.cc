#include "worker/core/operations/small_runs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

// How many inputs of one node and operation are kept: those of the next run,
// and of the run after it, which the node may send before this node has learnt
// of the next run.
constexpr ptrdiff_t kKept = 2;

// True if every node needs data of every other node, so that the run cannot end
// anywhere before all nodes have been ordered to execute it.
bool NeedsAll(const Signature& s) {
  return s.kind == Kind::kAllreduce && s.Bytes() > 0;
}

bool Matches(const SentInputs& sent, const proto::InputsOf& key) {
  return sent.generation == key.generation() && sent.after == key.after();
}

}  // namespace

bool SmallRuns::AreSmall(const std::vector<const Signature*>& operations,
                         size_t nodes) {
  uint64_t bytes = 0;
  for (const Signature* s : operations) {
    if (!Reduces(s->kind)) return false;
    bytes += s->Bytes() * (nodes - 1);
  }
  return bytes <= kMaxSmallRunBytes;
}

void SmallRuns::WantCopiesOf(uint32_t slot, bool wanted) {
  SlotEntry* const entry = slots_.Get(slot);
  if (entry->wants_copies == wanted) return;
  entry->wants_copies = wanted;
  output_.Add(WantCopies{slot, wanted});
}

// The coordinator remembers the same signature, for reports with as_before.
void SmallRuns::LearnFrom(const proto::Run& run) {
  std::vector<const Signature*> operations;
  for (const proto::RunOperation& op : run.operations()) {
    SlotEntry* const entry = slots_.FindId(op.id());
    if (entry == nullptr) continue;
    entry->last.reset();
    if (const Signature* plain = entry->Plain()) {
      entry->last = *plain;
      if (NeedsAll(*plain)) operations.push_back(&*entry->last);
    }
    entry->last_decision = run.decision();
    std::erase_if(entry->received, [&op](const SentInputs& sent) {
      return sent.generation <= op.generation();
    });
  }
  if (!sends_inputs_) return;
  const bool small =
      run.communicator() == 0 && !operations.empty() &&
      operations.size() == static_cast<size_t>(run.operations_size()) &&
      AreSmall(operations,
               slots_.FindId(run.operations(0).id())->set->nodes.size());
  for (const proto::RunOperation& op : run.operations()) {
    uint32_t slot = 0;
    if (slots_.Resolve(op.id(), nullptr, &slot)) WantCopiesOf(slot, small);
  }
}

SmallOperation SmallRuns::OperationOf(uint32_t slot) const {
  const SlotEntry& entry = *slots_.Get(slot);
  const Signature& s = entry.signatures.front();
  return {slot, entry.reported, s,
          OverNodes(s.dtype, s.op,
                    EpilogueOf(s.op, s.postscale, entry.set->size()))};
}

absl::Status SmallRuns::Finish(Schedule::Execution run) {
  FinishSmall finish;
  uint64_t bytes = 0;
  for (const uint32_t slot : run.slots) {
    finish.operations.push_back(OperationOf(slot));
    bytes += finish.operations.back().bytes();
    SlotEntry& entry = *slots_.Get(slot);
    entry.answered = entry.reported;
  }
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    if (i == run.self || run.inputs[i].size() == bytes) continue;
    return absl::InternalError(
        absl::StrCat("another node has sent ", run.inputs[i].size(),
                     " bytes of inputs of a small run of ", bytes,
                     "; has a process overwritten its shared memory?"));
  }
  finish.inputs = std::move(run.inputs);
  finish.self = run.self;
  output_.Add(std::move(finish));
  return absl::OkStatus();
}

// --- The negotiated tier -----------------------------------------------------

std::optional<SendToPeers> SmallRuns::InputsOf(uint32_t slot,
                                               const SlotEntry& entry) const {
  if (!sends_inputs_ || output_.quiet() || !entry.wants_copies ||
      !entry.copied || entry.last_decision == 0 || !entry.IsAsBefore() ||
      !NeedsAll(*entry.last)) {
    return std::nullopt;
  }
  SendToPeers send;
  for (const uint32_t node : entry.set->nodes) {
    if (node != node_) send.nodes.push_back(node);
  }
  proto::InputsOf* key = send.message.mutable_inputs_of();
  key->set_id(entry.id);
  key->set_generation(entry.CountOf(entry.reported));
  key->set_after(entry.last_decision);
  send.operations.push_back(OperationOf(slot));
  return send;
}

absl::Status SmallRuns::OnInputs(uint32_t node,
                                 const proto::PeerMessage& message) {
  const proto::InputsOf& key = message.inputs_of();
  for (Waiting& run : waiting_) {
    if (run.Take(node, key, message.inputs())) return FinishReady();
  }
  // The other node has had a run of this id that needed this node's data, so
  // this node has known the id. If it is unknown now, the coordinator has
  // retired it.
  SlotEntry* const entry = slots_.FindId(key.id());
  if (entry == nullptr || key.after() < entry->last_decision ||
      key.generation() <= entry->CountOf(entry->answered)) {
    return absl::OkStatus();
  }
  const auto of_node = [node](const SentInputs& s) { return s.node == node; };
  std::vector<SentInputs>& all = entry->received;
  if (std::count_if(all.begin(), all.end(), of_node) >= kKept) {
    all.erase(std::find_if(all.begin(), all.end(), of_node));
  }
  all.push_back({node, key.generation(), key.after(), message.inputs()});
  return absl::OkStatus();
}

bool SmallRuns::Waiting::Take(uint32_t node, const proto::InputsOf& key,
                              const std::string& bytes) {
  for (Part& part : parts) {
    const bool same = part.node == node && part.key.id() == key.id() &&
                      part.key.generation() == key.generation() &&
                      part.key.after() == key.after();
    if (!same || part.bytes) continue;
    part.bytes = bytes;
    --missing;
    return true;
  }
  return false;
}

absl::Status SmallRuns::Begin(const proto::Run& m) {
  absl::StatusOr<std::vector<uint32_t>> slots = runs_.AddSmall(m, &slots_);
  if (!slots.ok()) return slots.status();
  Waiting run{.slots = *std::move(slots)};
  run.nodes = slots_.Get(run.slots.front())->set->nodes;
  for (const uint32_t node : run.nodes) {
    if (node == node_) continue;
    for (const uint32_t slot : run.slots) {
      SlotEntry& entry = *slots_.Get(slot);
      Waiting::Part part{.node = node};
      part.key.set_id(entry.id);
      part.key.set_generation(entry.CountOf(entry.reported));
      part.key.set_after(entry.last_decision);
      const auto sent =
          std::find_if(entry.received.begin(), entry.received.end(),
                       [&](const SentInputs& s) {
                         return s.node == node && Matches(s, part.key);
                       });
      if (sent != entry.received.end()) {
        part.bytes = std::move(sent->bytes);
      } else {
        ++run.missing;
      }
      run.parts.push_back(std::move(part));
    }
  }
  waiting_.push_back(std::move(run));
  return absl::OkStatus();
}

absl::Status SmallRuns::FinishReady() {
  for (auto run = waiting_.begin(); run != waiting_.end();) {
    if (run->missing > 0) {
      ++run;
      continue;
    }
    Schedule::Execution execution{.slots = run->slots};
    auto part = run->parts.begin();
    for (const uint32_t node : run->nodes) {
      std::string& inputs = execution.inputs.emplace_back();
      if (node == node_) {
        execution.self = execution.inputs.size() - 1;
        continue;
      }
      for (size_t i = 0; i < run->slots.size(); ++i) inputs += *part++->bytes;
    }
    run = waiting_.erase(run);
    if (absl::Status s = Finish(std::move(execution)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace maypole::worker
