// GlooBackend: carrying out chunks.
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "common/board/board.h"
#include "worker/backend/gloo_backend.h"
#include "worker/backend/gloo_mesh.h"

namespace maypole::worker {
namespace {

// Sends and receives of a pair are matched by slot, and in order within a slot.
// So chunks may share slots as long as both ends number the chunks alike.
constexpr uint64_t kFirstSlot = 16;
constexpr uint64_t kSlotChunks = 256;

constexpr uint64_t kSegmentAlignment = 64;

// Returns the part of a chunk that the i-th of n nodes reduces.
Range OwnedRange(uint64_t chunk_bytes, uint64_t n, uint64_t i) {
  uint64_t each = (chunk_bytes + n - 1) / n;
  each = (each + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  const uint64_t begin = std::min(each * i, chunk_bytes);
  return {begin, std::min(begin + each, chunk_bytes)};
}

}  // namespace

void GlooBackend::OnEnded(std::function<void(const absl::Status&)> on_ended) {
  on_ended_ = std::move(on_ended);
}

void GlooBackend::Start(Work work) {
  auto flight = std::make_unique<Flight>();
  flight->work = std::move(work);
  Number(*flight);
  const bool alone = in_flight_.fetch_add(1, std::memory_order_acq_rel) == 0;
  Post(*flight);
  if (alone && flight->work.chunk.size() <= options_.eager_bytes) {
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

void GlooBackend::Number(Flight& flight) {
  std::vector<uint32_t>& nodes = flight.work.nodes;
  if (nodes.empty()) {
    nodes.resize(nodes_);
    std::iota(nodes.begin(), nodes.end(), 0u);
  }
  for (const uint32_t node : nodes) {
    if (node == self_) continue;
    flight.peers.push_back({node, started_[node]++});
  }
}

void GlooBackend::Post(Flight& flight) {
  if (!status().ok() || meshes_.empty()) {
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

// Returns the pieces that `node` reduces; the result is the same on all nodes.
std::vector<GlooBackend::Piece> GlooBackend::PiecesOf(const Flight& flight,
                                                      uint32_t node) const {
  const Work& work = flight.work;
  std::vector<Piece> pieces;
  uint64_t packed = 0;
  const auto add = [&](uint64_t offset, uint64_t bytes) {
    if (bytes > 0) pieces.push_back({offset, bytes, packed});
    packed += bytes;
  };
  if (!work.scatters) {
    const auto place = static_cast<uint64_t>(
        std::lower_bound(work.nodes.begin(), work.nodes.end(), node) -
        work.nodes.begin());
    const Range r = OwnedRange(work.chunk.size(), work.nodes.size(), place);
    add(r.begin, r.size());
  } else {
    for (const Segment& s : work.segments) {
      if (s.to == node) add(s.offset, s.bytes);
    }
  }
  return pieces;
}

// Posts receives before sends, so that arriving data is placed directly.
void GlooBackend::PostReduction(Flight& flight) {
  std::byte* const chunk = flight.work.chunk.data();
  flight.own = PiecesOf(flight, self_);
  for (const Piece& p : flight.own) flight.own_bytes += p.bytes;
  flight.inbox = TakeInbox(flight.own_bytes * flight.peers.size());
  std::byte* from_peer = flight.inbox.data();
  for (const Numbered& peer : flight.peers) {
    for (const Piece& p : flight.own) {
      Receive(flight, flight.contributions, peer, Step::kScatter,
              from_peer + p.packed, p.bytes);
    }
    from_peer += flight.own_bytes;
  }
  if (!flight.work.scatters) {
    for (const Numbered& peer : flight.peers) {
      for (const Piece& p : PiecesOf(flight, peer.node)) {
        Receive(flight, flight.rest, peer, Step::kGather, chunk + p.offset,
                p.bytes);
      }
    }
  }
  for (const Numbered& peer : flight.peers) {
    for (const Piece& p : PiecesOf(flight, peer.node)) {
      Send(flight, peer, Step::kScatter, chunk + p.offset, p.bytes);
    }
  }
}

void GlooBackend::PostExchange(Flight& flight) {
  std::byte* const chunk = flight.work.chunk.data();
  const auto is_for = [](const Segment& s, uint32_t node) {
    return s.to == node || s.to == kEveryNode;
  };
  for (const Numbered& peer : flight.peers) {
    for (const Segment& s : flight.work.segments) {
      if (s.from != peer.node || !is_for(s, self_)) continue;
      Receive(flight, flight.rest, peer, Step::kGather, chunk + s.offset,
              s.bytes);
    }
  }
  for (const Numbered& peer : flight.peers) {
    for (const Segment& s : flight.work.segments) {
      if (s.from != self_ || !is_for(s, peer.node)) continue;
      Send(flight, peer, Step::kGather, chunk + s.offset, s.bytes);
    }
  }
}

void GlooBackend::Reduce(Flight& flight) {
  if (flight.failed || !flight.work.reduces) return;
  if (!WaitAll(flight.contributions)) {
    flight.failed = true;
    return;
  }
  ReduceOwn(flight);
  if (!flight.work.scatters) SendSums(flight);
}

// Reduces in the order of the nodes.
void GlooBackend::ReduceOwn(Flight& flight) {
  const Work& work = flight.work;
  std::vector<const std::byte*> inputs(work.nodes.size());
  for (const Piece& p : flight.own) {
    std::byte* const own = work.chunk.data() + p.offset;
    const std::byte* theirs = flight.inbox.data() + p.packed;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = work.nodes[i] == self_ ? own : theirs;
      if (work.nodes[i] != self_) theirs += flight.own_bytes;
    }
    maypole::Reduce(work.dtype, work.op, inputs, own,
                    p.bytes / SizeOf(work.dtype), work.finish);
  }
}

void GlooBackend::SendSums(Flight& flight) {
  try {
    for (const Numbered& peer : flight.peers) {
      for (const Piece& p : flight.own) {
        Send(flight, peer, Step::kGather, flight.work.chunk.data() + p.offset,
             p.bytes);
      }
    }
  } catch (const std::exception& e) {
    flight.failed = true;
    Break(e.what());
  }
}

void GlooBackend::Finish(Flight& flight) {
  if (!flight.failed) flight.failed = !WaitAll(flight.rest);
  // After a buffer is destroyed, Gloo no longer accesses its memory.
  flight.contributions.clear();
  flight.rest.clear();
  GiveInbox(std::move(flight.inbox));
  if (!flight.failed) {
    sent_ += flight.sent;
    received_ += flight.received;
  }
  on_ended_(flight.failed ? status() : absl::OkStatus());
  in_flight_.fetch_sub(1, std::memory_order_acq_rel);
}

// --- Parts ------------------------------------------------------------------

GlooMesh& GlooBackend::MeshFor(uint64_t number, uint32_t from,
                               uint32_t to) const {
  return *meshes_[2 * (number % options_.connections) + (from < to ? 0 : 1)];
}

void GlooBackend::Receive(Flight& flight, std::vector<Part>& parts,
                          const Numbered& peer, Step step, std::byte* data,
                          uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t slot =
      kFirstSlot + peer.number % kSlotChunks * 2 + static_cast<uint64_t>(step);
  parts.push_back(MakePart(MeshFor(peer.number, peer.node, self_), peer.node,
                           false, slot, data, bytes));
  flight.received += bytes;
}

void GlooBackend::Send(Flight& flight, const Numbered& peer, Step step,
                       const std::byte* data, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t slot =
      kFirstSlot + peer.number % kSlotChunks * 2 + static_cast<uint64_t>(step);
  flight.rest.push_back(MakePart(MeshFor(peer.number, self_, peer.node),
                                 peer.node, true, slot,
                                 const_cast<std::byte*>(data), bytes));
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
