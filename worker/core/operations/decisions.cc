#include "worker/core/operations/decisions.h"

namespace maypole::worker {

void DecisionLog::Take(const proto::CoordinatorMessage& message) {
  while (!kept_.empty() && kept_.front().first <= message.settled()) {
    kept_.pop_front();
  }
  proto::Decision decision;
  if (message.has_execute()) {
    for (const proto::Run& run : message.execute().runs()) {
      *decision.mutable_run() = run;
      Keep(run.decision(), std::move(decision));
      decision.Clear();
    }
  } else if (message.has_operation_failed()) {
    *decision.mutable_operation_failed() = message.operation_failed();
    Keep(message.operation_failed().decision(), std::move(decision));
  } else if (message.has_set_reply()) {
    *decision.mutable_set_reply() = message.set_reply();
    Keep(message.set_reply().decision(), std::move(decision));
  } else if (message.has_join_reply()) {
    *decision.mutable_join_reply() = message.join_reply();
    Keep(message.join_reply().decision(), std::move(decision));
  }
}

void DecisionLog::Keep(uint64_t number, proto::Decision decision) {
  // 0: a message that concerns this node only.
  if (number <= last_) return;
  last_ = number;
  kept_.emplace_back(number, std::move(decision));
}

void DecisionLog::Write(proto::NodeState* state) const {
  state->set_last_decision(last_);
  for (const auto& [number, decision] : kept_) {
    *state->add_decisions() = decision;
  }
}

}  // namespace maypole::worker
