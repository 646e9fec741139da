// Player: process sets.
#include <algorithm>

#include "tests/properties/player/player.h"

namespace maypole::properties {
namespace {

constexpr uint32_t kNoSuchSet = 1000000;

std::string ListText(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string out = "[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  return out + "]";
}

// An error of ranks that disagree names all that was asked for.
std::string CheckDisagreement(const SetRequest& request, const Status& s) {
  if (s.code() != Code::kFailedPrecondition) return "it has another code";
  for (const auto& ranks : request.asked) {
    if (s.message().find(ListText(ranks)) == std::string::npos) {
      return "it does not say " + ListText(ranks);
    }
  }
  return "";
}

bool IsInvalid(const Status& s) {
  return s.code() == Code::kInvalidArgument || s.code() == Code::kNotFound;
}

}  // namespace

std::string Player::MakeSets() {
  world_ids_ = {0};
  last_id_ = 0;
  for (const std::vector<int>& ranks : world_.sets) {
    int64_t handle = 0;
    Status s = client_->AddProcessSet(ranks, &handle);
    Result result;
    if (s.ok()) {
      s = client_->Wait(handle, patience_ms_);
      if (s.ok()) s = client_->GetResult(handle, &result);
      (void)client_->Release(handle);
    }
    if (!s.ok()) return "process set " + ListText(ranks) + ": " + s.message();
    last_id_ = static_cast<uint32_t>(result.first_dim);
    if (last_id_ != world_ids_.size()) {
      return "process set " + ListText(ranks) + " has the id " +
             std::to_string(last_id_);
    }
    world_ids_.push_back(last_id_);
  }
  return "";
}

std::vector<KnownSet> Player::KnownSets() const {
  std::vector<KnownSet> known;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] < 0) continue;
    known.push_back({static_cast<uint32_t>(ids_[i]), program_->sets[i]});
  }
  return known;
}

// A set is removed when none of its operations is pending.
void Player::AwaitOperationsOf(int set) {
  for (const auto& attempt : attempts_) {
    if (attempt != nullptr && attempt->submitted() && !attempt->ended() &&
        attempt->spec().set == set) {
      WaitFor(*attempt);
    }
  }
}

void Player::SubmitRequest(size_t i) {
  const SetRequest& request = program_->requests[i];
  PendingRequest pending{i, 0, Status(), 0};
  if (!request.remove) {
    pending.status = client_->AddProcessSet(
        request.asked[static_cast<size_t>(rank_)], &pending.handle);
  } else {
    uint32_t id = request.set == 0 ? 0 : kNoSuchSet;
    if (request.set > 0) {
      AwaitOperationsOf(request.set);
      if (stopped()) return;
      id = static_cast<uint32_t>(ids_[static_cast<size_t>(request.set)]);
      ids_[static_cast<size_t>(request.set)] = -1;
    }
    pending.id = id;
    pending.status = client_->RemoveProcessSet(id, &pending.handle);
  }
  requests_.push_back(pending);
}

void Player::AwaitRequests() {
  for (PendingRequest& pending : requests_) {
    if (stopped()) return;
    Status& s = pending.status;
    Result result;
    if (s.ok()) {
      s = client_->Wait(pending.handle, patience_ms_);
      if (s.ok()) s = client_->GetResult(pending.handle, &result);
      (void)client_->Release(pending.handle);
    }
    JudgeRequest(pending, static_cast<uint32_t>(result.first_dim));
  }
  requests_.clear();
}

std::string Player::CheckRequest(const PendingRequest& pending, uint32_t id) {
  const SetRequest& request = program_->requests[pending.index];
  const Status& s = pending.status;
  const auto set = static_cast<size_t>(std::max(0, request.set));
  switch (request.outcome) {
    case SetOutcome::kDisagreed:
      if (s.ok()) return "it ended well";
      return CheckDisagreement(request, s);
    case SetOutcome::kInvalid:
      return s.ok() ? "it ended well" : IsInvalid(s) ? "" : "it failed so";
    case SetOutcome::kOk:
      break;
  }
  if (!s.ok()) return "it failed";
  if (request.remove) {
    return client_->ProcessSetRanks(pending.id).empty() ? ""
                                                        : "it is still there";
  }
  if (id <= last_id_) return "the id " + std::to_string(id) + " is an old one";
  last_id_ = id;
  ids_[set] = id;
  return client_->ProcessSetRanks(id) == program_->sets[set]
             ? ""
             : "it has other ranks";
}

void Player::JudgeRequest(const PendingRequest& pending, uint32_t id) {
  const SetRequest& request = program_->requests[pending.index];
  const std::string text(pending.status.message());
  const std::string wrong = CheckRequest(pending, id);
  if (!wrong.empty()) return Wrong(request.Text() + ": " + wrong + ": " + text);
  // An error begins with what this rank has asked for.
  const std::string said =
      text.empty() ? std::to_string(id) : text.substr(text.find(": ") + 1);
  MustAgree(Agreement::Sort::kRequest, pending.index, said, request.Text());
  if (witness_ == nullptr || rank_ != 0) return;
  witness_->coverage.Count(request.outcome != SetOutcome::kOk
                               ? Event::kSetErrors
                           : request.remove ? Event::kSetsRemoved
                                            : Event::kSetsMade);
}

}  // namespace maypole::properties
