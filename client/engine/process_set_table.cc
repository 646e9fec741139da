#include "client/engine/process_set_table.h"

#include <string>
#include <utility>

#include "common/limits.h"

namespace maypole {

ProcessSetTable::ProcessSetTable(const Board* board, ExecutorRequests* requests)
    : board_(board),
      requests_(requests),
      global_(
          std::make_shared<const ProcessSet>(MakeGlobalSet(board->config()))) {}

std::shared_ptr<const ProcessSet> ProcessSetTable::Find(uint32_t id) const {
  if (id == 0) return global_;
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : it->second;
}

Status ProcessSetTable::CheckNotRemoved(
    std::span<const std::shared_ptr<Operation>> operations) const {
  if (removing_.empty()) return Status();
  for (const std::shared_ptr<Operation>& op : operations) {
    if (!removing_.contains(op->signature.process_set)) continue;
    return Status(Code::kFailedPrecondition,
                  op->Title() + ": the process set is being removed");
  }
  return Status();
}

Status ProcessSetTable::CheckRequest(const Operation& op) const {
  if (op.removes != 0 && Find(op.removes) == nullptr) {
    return Status(
        Code::kInvalidArgument,
        op.Title() + ": there is no process set " + std::to_string(op.removes));
  }
  if (asked_.size() >= kMaxSetRequests) {
    return Status(Code::kResourceExhausted,
                  op.Title() + ": " + std::to_string(kMaxSetRequests) +
                      " requests of this rank are unanswered; wait for one");
  }
  return Status();
}

void ProcessSetTable::Request(const std::shared_ptr<Operation>& operation) {
  const Operation& op = *operation;
  if (op.removes != 0) removing_.insert(op.removes);
  auto m = session::Make<session::SetRequest>();
  m.by_members = op.by_members ? 1 : 0;
  m.number = op.by_members ? ++of_members_ : ++of_all_;
  m.remove = op.removes != 0 ? 1 : 0;
  m.process_set = op.removes;
  for (const int rank : op.ranks) {
    m.members[rank / 64] |= uint64_t{1} << rank % 64;
  }
  asked_[{op.by_members, m.number}] = operation;
  requests_->Send(m);
}

std::pair<std::shared_ptr<Operation>, Status> ProcessSetTable::OnReply(
    const session::SetReply& reply) {
  const auto it = asked_.find({reply.by_members != 0, reply.number});
  if (it == asked_.end()) return {};
  const std::shared_ptr<Operation> op = std::move(it->second);
  asked_.erase(it);
  requests_->OnAnswered();
  removing_.erase(op->removes);
  if (reply.code != 0) {
    return {op, op->Explain(Status(static_cast<Code>(reply.code), reply.text))};
  }
  if (op->removes != 0) {
    sets_.erase(op->removes);
  } else {
    sets_[reply.process_set] = std::make_shared<const ProcessSet>(
        MakeProcessSet(board_->config(), reply.process_set, op->ranks));
  }
  op->answer = reply.process_set;
  return {op, Status()};
}

std::vector<std::shared_ptr<Operation>> ProcessSetTable::TakePending() {
  std::vector<std::shared_ptr<Operation>> pending;
  for (auto& [number, op] : std::exchange(asked_, {})) {
    requests_->OnAnswered();
    pending.push_back(std::move(op));
  }
  return pending;
}

}  // namespace maypole
