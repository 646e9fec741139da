#include "worker/backend/exchange_plan.h"

#include <algorithm>
#include <utility>

#include "common/board/board.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kSegmentAlignment = 64;

// Returns the part of a chunk that the i-th of n nodes reduces.
Range OwnedRange(uint64_t chunk_bytes, uint64_t n, uint64_t i) {
  uint64_t each = (chunk_bytes + n - 1) / n;
  each = (each + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  const uint64_t begin = std::min(each * i, chunk_bytes);
  return {begin, std::min(begin + each, chunk_bytes)};
}

// Returns the pieces that the node at `place` reduces.
std::vector<Range> PiecesOf(const Work& work, size_t place) {
  std::vector<Range> pieces;
  const auto add = [&](const Range& r) {
    if (r.size() > 0) pieces.push_back(r);
  };
  if (!work.scatters) {
    add(OwnedRange(work.chunk.size(), work.nodes.size(), place));
    return pieces;
  }
  for (const Segment& s : work.segments) {
    if (s.to == work.nodes[place]) add({s.offset, s.offset + s.bytes});
  }
  return pieces;
}

// Begins with the next node, so that not all nodes send to the same one first.
// The sends are in the order of their nodes.
void Stagger(std::vector<Transfer>& sends, uint32_t self) {
  std::rotate(sends.begin(),
              std::find_if(sends.begin(), sends.end(),
                           [&](const Transfer& t) { return t.node > self; }),
              sends.end());
}

ExchangePlan PlanReduction(const Work& work, uint32_t self) {
  ExchangePlan plan;
  Stage scatter{.reduces = true};
  Stage gather;
  const std::vector<uint32_t>& nodes = work.nodes;
  const auto place = static_cast<size_t>(
      std::lower_bound(nodes.begin(), nodes.end(), self) - nodes.begin());
  const std::vector<Range> own = PiecesOf(work, place);
  for (const Range& r : own) {
    scatter.reductions.push_back({r.begin, r.size(), {}, place});
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i == place) continue;
    for (size_t k = 0; k < own.size(); ++k) {
      const uint64_t bytes = own[k].size();
      scatter.receives.push_back({nodes[i], plan.inbox_bytes, bytes});
      scatter.reductions[k].inputs.push_back(plan.inbox_bytes);
      plan.inbox_bytes += bytes;
      gather.sends.push_back({nodes[i], own[k].begin, bytes});
    }
    for (const Range& r : PiecesOf(work, i)) {
      scatter.sends.push_back({nodes[i], r.begin, r.size()});
      gather.receives.push_back({nodes[i], r.begin, r.size()});
    }
  }
  plan.stages.push_back(std::move(scatter));
  if (!work.scatters) plan.stages.push_back(std::move(gather));
  return plan;
}

ExchangePlan PlanExchange(const Work& work, uint32_t self) {
  const auto is_for = [](const Segment& s, uint32_t node) {
    return s.to == node || s.to == kEveryNode;
  };
  Stage stage;
  for (const uint32_t node : work.nodes) {
    if (node == self) continue;
    for (const Segment& s : work.segments) {
      if (s.bytes == 0) continue;
      if (s.from == node && is_for(s, self)) {
        stage.receives.push_back({node, s.offset, s.bytes});
      }
      if (s.from == self && is_for(s, node)) {
        stage.sends.push_back({node, s.offset, s.bytes});
      }
    }
  }
  ExchangePlan plan;
  plan.stages.push_back(std::move(stage));
  return plan;
}

}  // namespace

ExchangePlan PlanFor(const Work& work, uint32_t self) {
  ExchangePlan plan =
      work.reduces ? PlanReduction(work, self) : PlanExchange(work, self);
  for (Stage& stage : plan.stages) Stagger(stage.sends, self);
  return plan;
}

}  // namespace maypole::worker
