#include "coordinator/core/ordering/communicators.h"

#include "common/limits.h"

namespace maypole::coordinator {

uint32_t Communicators::Find(const NegotiatedOperation& op) {
  if (!enabled_) return 0;
  Gpus gpus;
  for (const size_t node : op.set->nodes) {
    if (op.nodes[node].gpus.empty()) return 0;
    gpus.emplace_back(node, op.nodes[node].gpus);
  }
  const auto it = numbers_.find(gpus);
  if (it != numbers_.end()) return it->second;
  if (all_.size() >= kMaxCommunicators) return 0;
  Communicator c{.number = static_cast<uint32_t>(all_.size()) + 1};
  for (const auto& [node, numbers] : gpus) {
    c.parts.push_back({node, c.size, numbers});
    c.size += static_cast<uint32_t>(numbers.size());
  }
  numbers_.emplace(std::move(gpus), c.number);
  all_.push_back(c);
  new_.push_back(std::move(c));
  return all_.back().number;
}

Communicator* Communicators::Get(uint32_t number) {
  return number >= 1 && number <= all_.size() ? &all_[number - 1] : nullptr;
}

}  // namespace maypole::coordinator
