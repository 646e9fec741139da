#include "worker/backend/exchange_plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "common/board/board.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kSegmentAlignment = 64;

// Returns the i-th of n parts of a range.
Range PartOf(const Range& all, uint64_t n, uint64_t i) {
  uint64_t each = (all.size() + n - 1) / n;
  each = (each + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  const uint64_t begin = std::min(all.begin + each * i, all.end);
  return {begin, std::min(begin + each, all.end)};
}

size_t PlaceOf(const Work& work, uint32_t node) {
  return static_cast<size_t>(
      std::lower_bound(work.nodes.begin(), work.nodes.end(), node) -
      work.nodes.begin());
}

// Orders by node, from the next one on, so that not all nodes send to the same
// one first.
void Stagger(std::vector<Transfer>& sends, uint32_t self) {
  std::stable_sort(sends.begin(), sends.end(),
                   [self](const Transfer& a, const Transfer& b) {
                     return a.node - self < b.node - self;  // modulo 2^32
                   });
}

// Adds the reduction of what the peers of a stage send: `own`, by each of them.
// `place`: of this node among them.
void AddReduction(const Range& own, const std::vector<uint32_t>& peers,
                  size_t place, bool last, Stage& stage, ExchangePlan& plan) {
  if (own.size() == 0) return;
  Stage::Reduction r{own.begin, own.size(), {}, place, last};
  for (const uint32_t peer : peers) {
    stage.receives.push_back({peer, plan.inbox_bytes, own.size()});
    r.inputs.push_back(plan.inbox_bytes);
    plan.inbox_bytes += own.size();
  }
  stage.reductions.push_back(std::move(r));
}

void AddTransfer(uint32_t node, const Range& range, std::vector<Transfer>& to) {
  if (range.size() > 0) to.push_back({node, range.begin, range.size()});
}

// What a node does in a level and, if it has reduced a part there, afterwards.
struct LevelStages {
  Stage reduce{.reduces = true};
  std::optional<Stage> gather;
};

// The `place`-th node of `group` reduces its part of `*range`, which becomes
// that part.
LevelStages PlanLevel(const std::vector<uint32_t>& group, size_t place,
                      bool exchanges_all, bool last, Range* range,
                      ExchangePlan& plan) {
  LevelStages out;
  out.reduce.overwrites = exchanges_all;
  const auto part = [&](size_t i) {
    return exchanges_all ? *range : PartOf(*range, group.size(), i);
  };
  const Range own = part(place);
  if (!exchanges_all) out.gather.emplace();
  std::vector<uint32_t> peers;
  for (size_t i = 0; i < group.size(); ++i) {
    if (i == place) continue;
    peers.push_back(group[i]);
    AddTransfer(group[i], part(i), out.reduce.sends);
    if (exchanges_all) continue;
    AddTransfer(group[i], own, out.gather->sends);
    AddTransfer(group[i], part(i), out.gather->receives);
  }
  AddReduction(own, peers, place, last, out.reduce, plan);
  *range = own;
  return out;
}

ExchangePlan PlanReduction(const Work& work, uint32_t self,
                           const std::vector<Level>& levels) {
  ExchangePlan plan;
  std::vector<Stage> gathers;
  Range range{0, work.chunk.size()};
  const size_t place = PlaceOf(work, self);
  size_t stride = 1;
  for (const Level& level : levels) {
    const size_t digit = place / stride % level.nodes;
    std::vector<uint32_t> group;
    for (size_t i = 0; i < level.nodes; ++i) {
      group.push_back(work.nodes[place - digit * stride + i * stride]);
    }
    stride *= level.nodes;
    LevelStages stages = PlanLevel(group, digit, level.exchanges_all,
                                   stride == work.nodes.size(), &range, plan);
    plan.stages.push_back(std::move(stages.reduce));
    if (stages.gather) gathers.push_back(*std::move(stages.gather));
  }
  std::move(gathers.rbegin(), gathers.rend(), std::back_inserter(plan.stages));
  return plan;
}

ExchangePlan PlanScatter(const Work& work, uint32_t self) {
  ExchangePlan plan;
  Stage stage{.reduces = true};
  const size_t place = PlaceOf(work, self);
  std::vector<uint32_t> peers = work.nodes;
  peers.erase(peers.begin() + static_cast<ptrdiff_t>(place));
  for (const Segment& s : work.segments) {
    const Range range{s.offset, s.offset + s.bytes};
    if (s.to == self) {
      AddReduction(range, peers, place, true, stage, plan);
    } else {
      AddTransfer(s.to, range, stage.sends);
    }
  }
  plan.stages.push_back(std::move(stage));
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

ExchangePlan PlanFor(const Work& work, uint32_t self,
                     const std::vector<Level>& levels) {
  const std::vector<Level> one = {{static_cast<uint32_t>(work.nodes.size())}};
  ExchangePlan plan =
      !work.reduces ? PlanExchange(work, self)
      : work.scatters
          ? PlanScatter(work, self)
          : PlanReduction(work, self, levels.empty() ? one : levels);
  for (Stage& stage : plan.stages) Stagger(stage.sends, self);
  return plan;
}

}  // namespace maypole::worker
