#include "coordinator/core/ordering/steps.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/limits.h"

namespace maypole::coordinator {
namespace {

// True for operations that a node can execute with its own knowledge.
bool CanBeScheduled(const ReadyOperation& operation) {
  return operation.communicator == 0 && !Gathers(operation.signature.kind);
}

// Groups of ids; at first each id is in its own group.
class Groups {
 public:
  uint32_t Find(uint32_t id) {
    const auto it = parent_.emplace(id, id).first;
    if (it->second == id) return id;
    return it->second = Find(it->second);
  }
  void Join(uint32_t a, uint32_t b) { parent_[Find(a)] = Find(b); }

 private:
  std::map<uint32_t, uint32_t> parent_;
};

}  // namespace

void Steps::OnRun(const std::vector<const ReadyOperation*>& run) {
  ++run_;
  for (const ReadyOperation* operation : run) {
    if (!CanBeScheduled(*operation)) return Clear();
    Add(*operation, run_);
  }
}

void Steps::Add(const ReadyOperation& operation, size_t run) {
  if (step_.contains(operation.id)) Close();
  if (step_.size() >= kMaxScheduledOperations) return Clear();
  step_[operation.id] = {operation, run, step_.size()};
  const auto before = previous_.find(operation.id);
  if (before == previous_.end() ||
      !Agree(before->second.operation.signature, operation.signature)) {
    return;
  }
  if (++matching_ == previous_.size() && matching_ == step_.size()) Close();
}

void Steps::Close() {
  const bool same = matching_ == step_.size() && matching_ == previous_.size();
  equal_ = same ? equal_ + 1 : 1;
  if (!same) cuts_.clear();
  std::map<size_t, std::vector<uint32_t>> runs;
  for (const auto& [id, member] : step_) runs[member.run].push_back(id);
  auto& cut = cuts_.emplace_back();
  for (auto& [number, ids] : runs) cut.push_back(std::move(ids));
  if (cuts_.size() > kEqualSteps) cuts_.pop_front();
  previous_ = std::exchange(step_, {});
  matching_ = 0;
}

void Steps::Clear() {
  step_.clear();
  previous_.clear();
  cuts_.clear();
  matching_ = equal_ = 0;
}

std::vector<std::vector<ReadyOperation>> Steps::Runs(
    const std::function<size_t(uint32_t id)>& place) const {
  Groups groups;
  for (const auto& cut : cuts_) {
    for (const auto& ids : cut) {
      for (const uint32_t id : ids) groups.Join(id, ids.front());
    }
  }
  struct Group {
    size_t last = 0;  // place of its last operation in the step
    std::vector<const Member*> members;
  };
  std::map<uint32_t, Group> by_leader;
  for (const auto& [id, member] : previous_) {
    Group& group = by_leader[groups.Find(id)];
    group.last = std::max(group.last, member.order);
    group.members.push_back(&member);
  }
  std::vector<Group> ordered;
  for (auto& [leader, group] : by_leader) ordered.push_back(std::move(group));
  std::ranges::sort(ordered, {}, &Group::last);
  std::vector<std::vector<ReadyOperation>> out;
  for (Group& group : ordered) {
    std::ranges::sort(group.members, {}, [&](const Member* m) {
      return std::pair(place(m->operation.id), m->order);
    });
    std::vector<ReadyOperation> all;
    for (const Member* m : group.members) all.push_back(m->operation);
    // The parts of different steps together may exceed a run.
    for (const std::vector<size_t>& run : Fuse(all, threshold_)) {
      auto& operations = out.emplace_back();
      for (const size_t i : run) operations.push_back(all[i]);
    }
  }
  return out;
}

void Steps::OnScheduleOver(uint64_t rounds) {
  needed_ = rounds >= kWorthwhileRounds
                ? kEqualSteps
                : std::min(2 * needed_, kMostEqualSteps);
  Clear();
}

}  // namespace maypole::coordinator
