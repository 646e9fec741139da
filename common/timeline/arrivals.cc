#include "common/timeline/arrivals.h"

#include <algorithm>
#include <utility>

#include "common/limits.h"

namespace maypole {
namespace {

OperationPart PartOf(const TimelineRecord& r, uint32_t node, int64_t shift) {
  const auto shifted = [shift](int64_t t) { return t == 0 ? 0 : t + shift; };
  return {.rank = r.rank,
          .node = node,
          .failed = r.failed,
          .bytes = r.bytes,
          .submitted = shifted(r.submitted),
          .arrived = shifted(r.arrived),
          .begun = shifted(r.begun),
          .ended = shifted(r.ended)};
}

}  // namespace

Lateness LatenessOf(const OperationGroup& group) {
  Lateness l;
  if (!group.complete() || group.parts.size() < 2) return l;
  for (const OperationPart& p : group.parts) {
    if (p.arrived == 0) return Lateness();
    if (l.first == 0 || p.arrived < l.first) l.first = p.arrived;
    if (l.last_rank < 0 || p.arrived >= l.last) {
      l.previous = l.last;
      l.last = p.arrived;
      l.last_rank = p.rank;
    } else {
      l.previous = std::max(l.previous, p.arrived);
    }
  }
  return l;
}

int64_t LastOnNode(const OperationGroup& group, uint32_t node) {
  if (!group.complete()) return 0;
  int64_t last = 0;
  for (const OperationPart& p : group.parts) {
    if (p.node != node) continue;
    if (p.arrived == 0) return 0;
    last = std::max(last, p.arrived);
  }
  return last;
}

std::string Arrivals::KeyOf(const OperationGroup& g) {
  return std::to_string(g.process_set) + "/" +
         std::to_string(static_cast<int>(g.kind)) + "/" +
         std::to_string(g.number) + "/" + g.name;
}

OperationGroup Arrivals::Take(Groups::iterator it) {
  OperationGroup group = std::move(*it);
  by_key_.erase(KeyOf(group));
  open_.erase(it);
  return group;
}

std::vector<OperationGroup> Arrivals::Add(const TimelineRecord& r,
                                          uint32_t node, int64_t shift) {
  std::vector<OperationGroup> out;
  OperationGroup fresh{.kind = r.kind,
                       .process_set = r.process_set,
                       .members = r.members,
                       .number = r.number,
                       .name = std::string(r.name),
                       .parts = {},
                       .has = {}};
  const std::string key = KeyOf(fresh);
  const auto rank = static_cast<size_t>(r.rank);
  auto it = by_key_.find(key);
  if (it != by_key_.end() && it->second->has[rank]) {
    out.push_back(Take(it->second));
    it = by_key_.end();
  }
  if (it == by_key_.end()) {
    if (open_.size() >= kMaxOpen) out.push_back(Take(open_.begin()));
    fresh.has.resize(kMaxRanks);
    open_.push_back(std::move(fresh));
    it = by_key_.emplace(key, std::prev(open_.end())).first;
  }
  const Groups::iterator group = it->second;
  group->has[rank] = true;
  group->parts.push_back(PartOf(r, node, shift));
  if (group->complete()) out.push_back(Take(group));
  return out;
}

std::vector<OperationGroup> Arrivals::TakeRest() {
  std::vector<OperationGroup> rest(std::make_move_iterator(open_.begin()),
                                   std::make_move_iterator(open_.end()));
  open_.clear();
  by_key_.clear();
  return rest;
}

}  // namespace maypole
