#include "worker/backend/tcp_flight.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/reduce/reduce.h"

namespace maypole::worker {
namespace {

// Two nodes match their sends and receives by slot, and in order within a slot.
// So chunks may share slots as long as both ends number the chunks alike.
constexpr uint64_t kFirstSlot = 16;
constexpr uint64_t kSlotChunks = 256;

uint64_t SlotOf(uint64_t number, bool is_contribution) {
  return kFirstSlot + number % kSlotChunks * 2 + (is_contribution ? 0 : 1);
}

}  // namespace

TcpBackend::Flight::Flight(TcpBackend* backend, Work work, ExchangePlan plan,
                           const std::vector<Lane>& lanes,
                           std::vector<std::byte> inbox)
    : backend_(backend),
      work_(std::move(work)),
      plan_(std::move(plan)),
      inbox_(std::move(inbox)),
      awaited_(plan_.stages.size()) {
  const auto stages = static_cast<uint32_t>(plan_.stages.size());
  for (uint32_t s = 0; s < stages; ++s) AddParts(s, false, lanes);
  for (uint32_t s = 0; s < stages; ++s) {
    sends_from_.push_back(parts_.size());
    AddParts(s, true, lanes);
  }
  sends_from_.push_back(parts_.size());
}

void TcpBackend::Flight::AddParts(uint32_t stage, bool are_sends,
                                  const std::vector<Lane>& lanes) {
  const Stage& s = plan_.stages[stage];
  std::byte* const memory =
      s.reduces && !are_sends ? inbox_.data() : work_.chunk.data();
  for (const Transfer& t : are_sends ? s.sends : s.receives) {
    const auto place =
        std::lower_bound(work_.nodes.begin(), work_.nodes.end(), t.node) -
        work_.nodes.begin();
    const Lane& lane = lanes[static_cast<size_t>(place)];
    parts_.push_back({.node = t.node,
                      .stage = stage,
                      .link = backend_->LinkTo(are_sends, t.node, lane),
                      .slot = SlotOf(lane.number, s.reduces),
                      .data = memory + t.offset,
                      .bytes = t.bytes,
                      .is_send = are_sends,
                      .awaited = !are_sends || s.overwrites});
    (are_sends ? sent_ : received_) += t.bytes;
  }
}

void TcpBackend::Flight::Start() {
  for (std::atomic<uint32_t>& a : awaited_) a = 1;
  failed_ = backend_->broken_.load();
  for (size_t i = 0; i < sends_from_[0] && !failed_; ++i) {
    Post(i);
  }
  Advance();
}

// The backend cancels all flights after it has become broken, so what is posted
// before that is cancelled there, and what is posted later, here.
void TcpBackend::Flight::Post(size_t part) {
  const Part& p = parts_[part];
  ++open_;
  if (p.awaited) ++awaited_[p.stage];
  const TransferTag tag{.listener = this, .tag = part};
  if (p.is_send) {
    p.link->Send(p.slot, p.data, p.bytes, tag);
  } else {
    p.link->Receive(p.slot, p.data, p.bytes, tag);
  }
  if (backend_->broken_) p.link->Cancel(this);
}

void TcpBackend::Flight::Cancel() {
  for (const Part& p : parts_) p.link->Cancel(this);
}

void TcpBackend::Flight::OnEnded(uint64_t part, const std::string& failure) {
  const Part& p = parts_[part];
  if (!failure.empty()) {
    failed_ = true;
    backend_->OnFailed(p.node, failure);
  }
  if (p.awaited && --awaited_[p.stage] == 0) {
    Reduce(plan_.stages[stage_++]);
    Advance();
  }
  Release();
}

void TcpBackend::Flight::Advance() {
  for (; stage_ < plan_.stages.size(); ++stage_) {
    const size_t end = sends_from_[stage_ + 1];
    for (size_t i = sends_from_[stage_]; i < end && !failed_; ++i) Post(i);
    if (--awaited_[stage_] != 0) return;  // OnEnded() goes on
    Reduce(plan_.stages[stage_]);
  }
  Release();
}

// Reduces in the order of the nodes.
void TcpBackend::Flight::Reduce(const Stage& stage) {
  if (failed_) return;
  std::vector<const std::byte*> inputs;
  for (const Stage::Reduction& r : stage.reductions) {
    std::byte* const output = work_.chunk.data() + r.output;
    inputs.clear();
    for (const uint64_t input : r.inputs) {
      inputs.push_back(inbox_.data() + input);
    }
    inputs.insert(inputs.begin() + static_cast<ptrdiff_t>(r.place), output);
    maypole::Reduce(work_.dtype, work_.op, inputs, output,
                    r.bytes / SizeOf(work_.dtype),
                    r.last ? work_.finish : Epilogue{});
  }
}

void TcpBackend::Flight::Release() {
  if (--open_ == 0) backend_->OnFlightEnded(this);
}

}  // namespace maypole::worker
