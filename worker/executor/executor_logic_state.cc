// ExecutorLogic: states that the executor keeps for the job's ranks.
#include <utility>

#include "worker/executor/executor_logic.h"

namespace maypole::worker {

void ExecutorLogic::OnStateRequest(ClientId id,
                                   const session::StateRequest& request) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  const Fd* found = nullptr;
  Status s;
  switch (static_cast<session::StateCall>(request.call)) {
    case session::StateCall::kKeep:
      s = states_.Keep(request.name, std::move(descriptor_));
      break;
    case session::StateCall::kFind:
      found = states_.Find(request.name);
      if (found == nullptr) s = Status(Code::kNotFound, "no such state");
      break;
    case session::StateCall::kDrop:
      states_.Drop(request.name);
      break;
    default:
      s = Status(Code::kInvalidArgument, "unknown StateCall");
  }
  core_.OnStatesKept(!states_.empty());
  observer_->OnStateCall(it->second.rank, request, states_.bytes(), s);
  auto reply = session::Make<session::StateReply>();
  reply.header.version = it->second.version;
  reply.number = request.number;
  reply.code = static_cast<uint32_t>(s.code());
  session::SetText(reply.text, s.message());
  if (const Status sent = it->second.link->SendState(reply, found);
      !sent.ok()) {
    return ClientGone(id, sent.message());
  }
  // A rank that sleeps on the board does not watch its socket.
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

}  // namespace maypole::worker
