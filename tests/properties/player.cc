#include "tests/properties/player.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace maypole::properties {

std::string Player::Play(const Program& program) {
  random_ = RandomFor(program.seed, 1 + static_cast<uint64_t>(rank_));
  attempts_.clear();
  failed_ = nullptr;
  wrong_.clear();
  for (const OperationSpec& spec : program.operations) {
    attempts_.push_back(
        std::make_unique<Attempt>(spec, rank_, world_.ranks, random_, memory_));
  }
  for (int phase = 0; phase < program.phases && failed_ == nullptr; ++phase) {
    PlayPhase(program, phase);
  }
  WaitForAll();
  return wrong_;
}

// Shuffled; but unnamed operations of a kind are matched by their order.
std::vector<size_t> Player::OrderOf(const Program& program, int phase) {
  std::vector<size_t> order;
  for (size_t i = 0; i < program.operations.size(); ++i) {
    if (program.operations[i].phase == phase) order.push_back(i);
  }
  std::shuffle(order.begin(), order.end(), random_);
  std::map<Kind, std::vector<size_t>> places;
  for (size_t at = 0; at < order.size(); ++at) {
    const OperationSpec& o = program.operations[order[at]];
    if (o.name.empty()) places[o.kind].push_back(at);
  }
  for (const auto& [kind, ats] : places) {
    std::vector<size_t> unnamed;
    for (size_t at : ats) unnamed.push_back(order[at]);
    std::sort(unnamed.begin(), unnamed.end());
    for (size_t i = 0; i < ats.size(); ++i) order[ats[i]] = unnamed[i];
  }
  return order;
}

void Player::PlayPhase(const Program& program, int phase) {
  const std::vector<size_t> order = OrderOf(program, phase);
  for (size_t i = 0; i < order.size(); ++i) {
    Submit(*attempts_[order[i]], i + 1 == order.size());
    if (failed_ != nullptr) return;
    Dabble();
    if (failed_ != nullptr) return;
  }
  for (const auto& attempt : attempts_) {
    if (!OneIn(random_, 3)) continue;
    attempt->Wait(client_, patience_ms_);
    Look(*attempt);
    if (failed_ != nullptr) return;
  }
}

void Player::Submit(Attempt& attempt, bool last) {
  // Who promises to wait must do so before anything else; and may, only when
  // no other rank can need a submission that is still to come.
  const bool barrier = attempt.spec().kind == Kind::kBarrier;
  const bool awaited = barrier || (last && OneIn(random_, 2));
  attempt.Submit(client_, awaited);
  if (awaited) attempt.Wait(client_, patience_ms_);
  Look(attempt);
}

Attempt* Player::AnyPending() {
  Attempt& any = *attempts_[Below(random_, attempts_.size())];
  return any.submitted() && !any.ended() ? &any : nullptr;
}

// Polls, waits a moment, or computes, as programs do between submissions.
void Player::Dabble() {
  switch (Below(random_, 8)) {
    case 0:
      usleep(static_cast<useconds_t>(Below(random_, 300)));
      break;
    case 1:
    case 2:
      for (int i = 0; i < 3; ++i) {
        Attempt* const any = AnyPending();
        if (any == nullptr) continue;
        any->Poll(client_);
        Look(*any);
      }
      break;
    case 3:
      if (Attempt* const any = AnyPending(); any != nullptr) {
        any->Wait(client_, static_cast<int>(Below(random_, 3)));
        Look(*any);
      }
      break;
    default:
      break;
  }
}

// Looks at an operation that may have ended.
void Player::Look(Attempt& attempt) {
  if (!attempt.ended()) return;
  if (!attempt.status().ok()) {
    attempt.Freeze();
    if (failed_ == nullptr && !attempt.refused()) failed_ = &attempt;
  }
  if (wrong_.empty()) wrong_ = attempt.Check();
}

void Player::WaitForAll() {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(patience_ms_);
  std::vector<Attempt*> left;
  for (const auto& attempt : attempts_) {
    if (attempt->submitted() && !attempt->ended()) {
      left.push_back(attempt.get());
    }
  }
  std::shuffle(left.begin(), left.end(), random_);
  const bool by_polling = OneIn(random_, 5);
  for (Attempt* attempt : left) {
    while (by_polling && !attempt->ended() &&
           std::chrono::steady_clock::now() < deadline) {
      attempt->Poll(client_);
      if (!attempt->ended()) usleep(20);
    }
    attempt->Wait(client_, patience_ms_);
    Look(*attempt);
    if (!attempt->ended() && wrong_.empty()) {
      wrong_ = attempt->spec().Text() + ": still pending after " +
               std::to_string(patience_ms_) + " ms";
      return;
    }
  }
}

}  // namespace maypole::properties
