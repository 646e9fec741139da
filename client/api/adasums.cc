#include "client/api/adasums.h"

#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace maypole {

Status Adasums::Start(std::span<const std::shared_ptr<Operation>> operations,
                      const std::shared_ptr<CompletionQueue>& completions,
                      const Watch& watch) {
  std::map<std::tuple<DType, uint32_t, uint64_t, uint64_t>,
           AdasumRun::Operations>
      groups;
  for (const auto& op : operations) {
    const Signature& s = op->signature;
    groups[{s.dtype, s.process_set, std::bit_cast<uint64_t>(s.prescale),
            std::bit_cast<uint64_t>(s.postscale)}]
        .push_back(op);
  }
  std::vector<std::shared_ptr<AdasumRun>> runs;
  std::vector<std::shared_ptr<Operation>> firsts;
  for (const auto& [_, members] : groups) {
    Operation& op = *members[0];
    if (op.name.empty()) {
      std::lock_guard lock(mutex_);
      op.name = "unnamed." + std::to_string(unnamed_[op.set->id]++);
    }
    runs.push_back(std::make_shared<AdasumRun>(
        communicator_, completions, op.set->PositionOf(rank_), members));
    Status s = runs.back()->Prepare(&firsts.emplace_back());
    if (!s.ok()) return op.Explain(s);
  }
  if (Status s = communicator_->Start(firsts); !s.ok()) return s;
  auto run = runs.begin();
  for (const auto& [_, members] : groups) {
    {
      std::lock_guard lock(mutex_);
      for (const auto& op : members) runs_[op->handle] = *run;
    }
    (*run)->Begin();
    for (const auto& op : members) {
      if (op->staged == nullptr) continue;
      watch(op, [weak = std::weak_ptr(*run)](const Status& error) {
        if (const auto run = weak.lock()) run->InputSettled(error);
      });
    }
    ++run;
  }
  return Status();
}

std::shared_ptr<AdasumRun> Adasums::Find(int64_t handle) const {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(handle);
  return it == runs_.end() ? nullptr : it->second;
}

void Adasums::Release(int64_t handle) {
  std::shared_ptr<AdasumRun> run;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(handle);
  if (it == runs_.end()) return;
  run = std::move(it->second);
  runs_.erase(it);
}

}  // namespace maypole
