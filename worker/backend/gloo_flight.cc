// The way of a chunk through GlooBackend.
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "worker/backend/gloo_backend.h"
#include "worker/backend/gloo_mesh.h"

namespace maypole::worker {
namespace {

// Sends and receives of a pair are matched by slot, and in order within one
// slot. So chunks may share slots, as long as all nodes number them alike.
constexpr uint64_t kFirstSlot = 16;
constexpr uint64_t kSlotChunks = 256;

constexpr uint64_t kSegmentAlignment = 64;

// The part of a chunk that node `node` reduces.
Segment OwnedSegment(uint64_t chunk_bytes, uint32_t nodes, uint32_t node) {
  uint64_t each = (chunk_bytes + nodes - 1) / nodes;
  each = (each + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  const uint64_t begin = std::min(each * node, chunk_bytes);
  return {node, begin, std::min(each, chunk_bytes - begin)};
}

}  // namespace

void GlooBackend::OnEnded(std::function<void(const absl::Status&)> on_ended) {
  on_ended_ = std::move(on_ended);
}

void GlooBackend::Start(Work work) {
  auto flight = std::make_unique<Flight>();
  flight->work = std::move(work);
  flight->number = started_++;
  const bool alone = in_flight_.fetch_add(1, std::memory_order_acq_rel) == 0;
  Post(*flight);
  if (alone && flight->work.chunk.size() <= options_.small_bytes) {
    Reduce(*flight);
    Finish(*flight);
  } else {
    to_reduce_.Push(std::move(flight));
  }
}

void GlooBackend::ReduceAll() {
  while (std::unique_ptr<Flight> flight = to_reduce_.Pop()) {
    Reduce(*flight);
    to_finish_.Push(std::move(flight));
  }
}

void GlooBackend::FinishAll() {
  while (std::unique_ptr<Flight> flight = to_finish_.Pop()) Finish(*flight);
}

// --- Steps ------------------------------------------------------------------

void GlooBackend::Post(Flight& flight) {
  if (!Why().ok() || meshes_.empty()) {
    flight.failed = true;
    return;
  }
  try {
    if (flight.work.reduces) {
      PostReduction(flight);
    } else {
      PostExchange(flight);
    }
  } catch (const std::exception& e) {
    flight.failed = true;
    Break(e.what());
  }
}

// Receives first: then what arrives has its place.
void GlooBackend::PostReduction(Flight& flight) {
  const std::span<std::byte> chunk = flight.work.chunk;
  const Segment own = OwnedSegment(chunk.size(), nodes_, self_);
  flight.inbox = TakeInbox(own.bytes * nodes_);
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    Receive(flight, flight.contributions, i, Step::kScatter,
            flight.inbox.data() + i * own.bytes, own.bytes);
    const Segment theirs = OwnedSegment(chunk.size(), nodes_, i);
    Receive(flight, flight.rest, i, Step::kGather, chunk.data() + theirs.offset,
            theirs.bytes);
  }
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    const Segment theirs = OwnedSegment(chunk.size(), nodes_, i);
    Send(flight, i, Step::kScatter, chunk.data() + theirs.offset, theirs.bytes);
  }
}

void GlooBackend::PostExchange(Flight& flight) {
  const std::span<std::byte> chunk = flight.work.chunk;
  for (const Segment& s : flight.work.segments) {
    if (s.node == self_ || s.node >= nodes_) continue;
    Receive(flight, flight.rest, s.node, Step::kGather, chunk.data() + s.offset,
            s.bytes);
  }
  for (const Segment& s : flight.work.segments) {
    if (s.node != self_) continue;
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      Send(flight, i, Step::kGather, chunk.data() + s.offset, s.bytes);
    }
  }
}

void GlooBackend::Reduce(Flight& flight) {
  if (flight.failed || !flight.work.reduces) return;
  const Segment own = OwnedSegment(flight.work.chunk.size(), nodes_, self_);
  if (!WaitAll(flight.contributions)) {
    flight.failed = true;
    return;
  }
  if (own.bytes == 0) return;
  std::byte* const own_data = flight.work.chunk.data() + own.offset;
  std::vector<const std::byte*> inputs(nodes_);
  for (uint32_t i = 0; i < nodes_; ++i) {
    inputs[i] = i == self_ ? own_data : flight.inbox.data() + i * own.bytes;
  }
  Sum(flight.work.dtype, inputs, own_data,
      own.bytes / SizeOf(flight.work.dtype), flight.work.finish);
  SendSums(flight, own);
}

void GlooBackend::SendSums(Flight& flight, const Segment& own) {
  try {
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      Send(flight, i, Step::kGather, flight.work.chunk.data() + own.offset,
           own.bytes);
    }
  } catch (const std::exception& e) {
    flight.failed = true;
    Break(e.what());
  }
}

void GlooBackend::Finish(Flight& flight) {
  if (!flight.failed) flight.failed = !WaitAll(flight.rest);
  // When a buffer is gone, Gloo does not touch its memory any more.
  flight.contributions.clear();
  flight.rest.clear();
  GiveInbox(std::move(flight.inbox));
  if (!flight.failed) {
    sent_ += flight.sent;
    received_ += flight.received;
  }
  on_ended_(flight.failed ? Why() : absl::OkStatus());
  in_flight_.fetch_sub(1, std::memory_order_acq_rel);
}

// --- Parts ------------------------------------------------------------------

GlooMesh& GlooBackend::MeshFor(uint64_t chunk, uint32_t from,
                               uint32_t to) const {
  return *meshes_[2 * (chunk % options_.connections) + (from < to ? 0 : 1)];
}

void GlooBackend::Receive(Flight& flight, std::vector<Part>& parts,
                          uint32_t node, Step step, std::byte* data,
                          uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t slot = kFirstSlot + flight.number % kSlotChunks * 2 +
                        static_cast<uint64_t>(step);
  parts.push_back(MakePart(MeshFor(flight.number, node, self_), node, false,
                           slot, data, bytes));
  flight.received += bytes;
}

void GlooBackend::Send(Flight& flight, uint32_t node, Step step,
                       const std::byte* data, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t slot = kFirstSlot + flight.number % kSlotChunks * 2 +
                        static_cast<uint64_t>(step);
  flight.rest.push_back(MakePart(MeshFor(flight.number, self_, node), node,
                                 true, slot, const_cast<std::byte*>(data),
                                 bytes));
  flight.sent += bytes;
}

std::vector<std::byte> GlooBackend::TakeInbox(uint64_t bytes) {
  std::vector<std::byte> inbox;
  {
    std::lock_guard lock(mutex_);
    if (!inboxes_.empty()) {
      inbox = std::move(inboxes_.back());
      inboxes_.pop_back();
    }
  }
  if (inbox.size() < bytes) inbox.resize(bytes);
  return inbox;
}

void GlooBackend::GiveInbox(std::vector<std::byte> inbox) {
  if (inbox.empty()) return;
  std::lock_guard lock(mutex_);
  inboxes_.push_back(std::move(inbox));
}

}  // namespace maypole::worker
