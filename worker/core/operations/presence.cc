#include "worker/core/operations/presence.h"

#include <utility>

#include "common/wire/signature_message.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

// Sets the coordinator's id or, as long as there is none, the identity.
template <typename Message>
void Identify(const SlotEntry& entry, Message* out) {
  if (entry.id != 0) {
    out->set_id(entry.id);
    return;
  }
  entry.FillIdentity(out->mutable_identity());
}

}  // namespace

void PresenceBatch::Add(const SlotEntry& entry) {
  proto::PresentOperation op;
  Identify(entry, &op);
  op.set_generation(entry.CountOf(entry.reported));
  op.set_urgency(static_cast<uint32_t>(entry.urgency));
  if (entry.IsAsBefore()) {
    op.set_as_before(true);
    op.set_inputs_sent(entry.inputs_sent);
    waiting_.push_back(std::move(op));
    return;
  }
  // One LocalSignature for each group of ranks whose signatures agree. Ranks
  // that stand aside agree with all others and form a group of their own.
  std::vector<const Signature*> groups;
  for (size_t i = 0; i < entry.signatures.size(); ++i) {
    const Signature& s = entry.signatures[i];
    size_t g = 0;
    while (g < groups.size() &&
           (!Agree(*groups[g], s) || groups[g]->aside != s.aside)) {
      ++g;
    }
    if (g == groups.size()) {
      groups.push_back(&s);
      WriteSignature(s, op.add_signatures());
    }
    op.mutable_signatures(static_cast<int>(g))
        ->add_ranks(static_cast<uint32_t>(entry.set->here[i]));
    if (Gathers(s.kind)) {
      op.add_first_dims(s.shape[0]);
    }
  }
  op.mutable_splits()->Add(entry.splits.begin(), entry.splits.end());
  for (const GpuTensor& tensor : entry.gpu_tensors) op.add_gpus(tensor.gpu);
  op.mutable_gpu_rooms()->Add(entry.gpu_rooms.begin(), entry.gpu_rooms.end());
  op.set_ranks_call_nccl(entry.ranks_call_nccl);
  waiting_.push_back(std::move(op));
}

void PresenceBatch::AddPending(const SlotTable& slots) {
  slots.ForEach([this](uint32_t, const SlotEntry& entry) {
    if (entry.IsPending()) Add(entry);
  });
}

void PresenceBatch::AddUrgent(const SlotEntry& entry) {
  proto::UrgentOperation op;
  Identify(entry, &op);
  op.set_generation(entry.CountOf(entry.reported));
  urgent_.push_back(std::move(op));
}

void PresenceBatch::Send(EpochOutput* output) {
  if (output->quiet()) return;
  std::optional<proto::Presence> presence = Take();
  if (!presence) return;
  proto::ExecutorMessage message;
  *message.mutable_presence() = *std::move(presence);
  output->Send(std::move(message));
}

std::optional<proto::Presence> PresenceBatch::Take() {
  if (unacknowledged_ || (waiting_.empty() && urgent_.empty())) {
    return std::nullopt;
  }
  proto::Presence presence;
  size_t bytes = 0;
  while (!waiting_.empty() && bytes < kMaxPresenceBytes) {
    bytes += waiting_.front().ByteSizeLong();
    *presence.add_operations() = std::move(waiting_.front());
    waiting_.pop_front();
  }
  // An urgent operation must not be reported before its presence.
  while (waiting_.empty() && !urgent_.empty() && bytes < kMaxPresenceBytes) {
    bytes += urgent_.front().ByteSizeLong();
    *presence.add_urgent() = std::move(urgent_.front());
    urgent_.pop_front();
  }
  unacknowledged_ = true;
  return presence;
}

}  // namespace maypole::worker
