// The part of RankCore that sends checksums of results to the executor.
#include "client/engine/rank_core.h"

namespace maypole {

void RankCore::NoteResult(const session::ResultRecord& record) {
  results_.Add(record);
  has_results_.store(true, std::memory_order_relaxed);
  // Not only in Step(): operations that end in Start() need no driver thread.
  if (!results_.full()) return;
  const session::ResultRecords message = results_.Take();
  if (!shell_->SendIfRoom(&message, sizeof(message))) results_.PutBack(message);
}

void RankCore::SendDueResults() {
  std::lock_guard lock(mutex_);
  while (results_.Due(shell_->Now())) {
    const session::ResultRecords message = results_.Take();
    if (!shell_->SendIfRoom(&message, sizeof(message))) {
      return results_.PutBack(message);
    }
  }
  has_results_.store(!results_.empty(), std::memory_order_relaxed);
}

void RankCore::SendResults() {
  while (!results_.empty()) {
    const session::ResultRecords message = results_.Take();
    shell_->Send(&message, sizeof(message));
  }
}

void RankCore::SendAllResults() {
  std::lock_guard lock(mutex_);
  SendResults();
}

}  // namespace maypole
