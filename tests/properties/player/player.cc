#include "tests/properties/player/player.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "tests/properties/player/ranks.h"

namespace maypole::properties {

std::string Player::Play(const Program& program) {
  program_ = &program;
  random_ = RandomFor(program.seed, 1 + static_cast<uint64_t>(rank_));
  failed_ = nullptr;
  wrong_.clear();
  requests_.clear();
  ids_ = world_ids_;
  ids_.resize(program.sets.size(), -1);
  attempts_.clear();
  for (const OperationSpec& spec : program.operations) {
    attempts_.push_back(
        spec.Concerns(rank_)
            ? std::make_unique<Attempt>(spec, rank_, random_, memory_)
            : nullptr);
  }
  size_t joins = 0;
  for (size_t p = 0; p < program.phases.size() && !stopped(); ++p) {
    const Phase& phase = program.phases[p];
    if ((phase.aside >> rank_ & 1) != 0) continue;  // until all have joined
    PlayPhase(static_cast<int>(p));
    if ((phase.joins >> rank_ & 1) != 0 && !stopped()) Join(joins++);
  }
  WaitForAll();
  return wrong_;
}

void Player::MustAgree(Agreement::Sort sort, size_t i, const std::string& said,
                       const std::string& about) {
  if (witness_ == nullptr) return;
  const std::string differs =
      witness_->agreement.Check(program_->seed, sort, i, said);
  if (!differs.empty()) Wrong(about + ": " + differs);
}

void Player::PlayPhase(int phase) {
  const std::vector<Unit> order = OrderOf(*program_, phase, rank_, random_);
  for (size_t i = 0; i < order.size(); ++i) {
    SubmitUnit(order[i], i + 1 == order.size());
    if (stopped()) return;
    Dabble();
    if (stopped()) return;
  }
  AwaitRequests();
  for (const auto& attempt : attempts_) {
    if (stopped()) return;
    if (attempt == nullptr || !OneIn(random_, 3)) continue;
    WaitFor(*attempt);
  }
}

void Player::SubmitUnit(const Unit& unit, bool last) {
  if (unit.request >= 0) {
    return SubmitRequest(static_cast<size_t>(unit.request));
  }
  for (const size_t i : unit.operations) AwaitSameName(attempts_[i]->spec());
  if (stopped()) return;
  const size_t first = unit.operations.front();
  const bool grouped = attempts_[first]->spec().group >= 0;
  if (unit.operations.size() > 1 || (grouped && OneIn(random_, 2))) {
    SubmitGroup(unit.operations);
  } else {
    SubmitOne(first, last);
  }
}

void Player::SubmitOne(size_t i, bool last) {
  // Who promises to wait must do so before anything else; and may, only when
  // no other rank can need a submission that is still to come.
  Attempt& attempt = *attempts_[i];
  const bool barrier = attempt.spec().kind == Kind::kBarrier;
  const bool awaited = barrier || (last && OneIn(random_, 2));
  attempt.Submit(client_, IdOf(attempt.spec()), awaited);
  if (awaited) return WaitFor(attempt);
  Look(attempt);
}

void Player::SubmitGroup(const std::vector<size_t>& operations) {
  std::vector<Request> requests;
  for (const size_t i : operations) {
    requests.push_back(
        attempts_[i]->MakeRequest(IdOf(attempts_[i]->spec()), false));
  }
  std::vector<int64_t> handles(operations.size());
  const Status s = client_->SubmitGroup(std::move(requests), handles.data());
  for (size_t i = 0; i < operations.size(); ++i) {
    attempts_[operations[i]]->Submitted(s, handles[i]);
    Look(*attempts_[operations[i]]);
  }
  if (witness_ != nullptr && s.ok()) {
    witness_->coverage.Count(Event::kGroups);
  }
}

// A name is free again when its operation has ended.
void Player::AwaitSameName(const OperationSpec& spec) {
  if (spec.name.empty()) return;
  for (const auto& attempt : attempts_) {
    if (attempt == nullptr || !attempt->submitted() || attempt->ended()) {
      continue;
    }
    const OperationSpec& other = attempt->spec();
    if (other.set == spec.set && other.kind == spec.kind &&
        other.name == spec.name) {
      WaitFor(*attempt);
    }
  }
}

Attempt* Player::AnyPending() {
  const auto& any = attempts_[Below(random_, attempts_.size())];
  if (any == nullptr || !any->submitted() || any->ended()) return nullptr;
  return any.get();
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
    case 4:
      if (witness_ != nullptr && OneIn(random_, 2)) Probe();
      break;
    default:
      break;
  }
}

void Player::Probe() {
  const std::string wrong = TryWrongCall(client_, rank_, world_.ranks,
                                         KnownSets(), patience_ms_, random_);
  if (!wrong.empty()) return Wrong(wrong);
  witness_->coverage.Count(Event::kRefusals);
}

// Looks at an operation that may have ended.
void Player::Look(Attempt& attempt) {
  if (!attempt.TakeEnd()) return;
  if (!attempt.status().ok()) {
    attempt.Freeze();
    if (failed_ == nullptr && !attempt.refused()) failed_ = &attempt;
  }
  const std::string wrong = attempt.Check();
  if (!wrong.empty()) return Wrong(wrong);
  if (witness_ == nullptr || failed_ == &attempt) return;
  const OperationSpec& spec = attempt.spec();
  witness_->coverage.Count(spec, rank_);
  if (!spec.MustFail()) return;
  const auto i = static_cast<size_t>(
      std::find_if(attempts_.begin(), attempts_.end(),
                   [&](const auto& a) { return a.get() == &attempt; }) -
      attempts_.begin());
  MustAgree(Agreement::Sort::kOperation, i,
            std::string(attempt.status().message()), spec.Text());
}

void Player::WaitFor(Attempt& attempt) {
  attempt.Wait(client_, patience_ms_);
  Look(attempt);
  if (attempt.submitted() && !attempt.ended()) {
    Wrong(attempt.spec().Text() + ": still pending after " +
          std::to_string(patience_ms_) + " ms");
  }
}

void Player::WaitForAll() {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(patience_ms_);
  std::vector<Attempt*> left;
  for (const auto& attempt : attempts_) {
    if (attempt != nullptr && attempt->submitted() && !attempt->ended()) {
      left.push_back(attempt.get());
    }
  }
  std::shuffle(left.begin(), left.end(), random_);
  const bool by_polling = OneIn(random_, 5);
  const bool by_callbacks = !by_polling && OneIn(random_, 4);
  if (by_callbacks) {
    for (Attempt* attempt : left) attempt->AskForCallback(client_);
  }
  for (Attempt* attempt : left) {
    while (by_polling && !attempt->ended() &&
           std::chrono::steady_clock::now() < deadline) {
      attempt->Poll(client_);
      if (!attempt->ended()) usleep(20);
    }
    if (by_callbacks) attempt->WaitForCallback(client_, patience_ms_);
    WaitFor(*attempt);
    if (!attempt->ended()) return;
  }
}

void Player::Join(size_t number) {
  // Now and then so late that it is clear who was last.
  if (witness_ != nullptr && OneIn(random_, 30)) usleep(200000);
  const bool surely_last = witness_ != nullptr && [&] {
    const int64_t others = witness_->agreement.OthersJoined(
        program_->seed, number, rank_, world_.ranks);
    return others != 0 && NowNs() - others > 100000000;
  }();
  int64_t handle = 0;
  Status s = client_->Join(&handle);
  if (witness_ != nullptr) {
    witness_->agreement.BeginJoin(program_->seed, number, rank_, NowNs());
  }
  Result result;
  if (s.ok()) {
    for (uint64_t n = Below(random_, 4); n > 0 && !stopped(); --n) {
      if (Attempt* const any = AnyPending(); any != nullptr) {
        any->Poll(client_);
        Look(*any);
      }
      bool done = false;
      (void)client_->Poll(handle, &done);
    }
    s = client_->Wait(handle, patience_ms_);
    if (s.ok()) s = client_->GetResult(handle, &result);
    (void)client_->Release(handle);
  }
  if (!s.ok()) return Wrong("join: " + s.message());
  const int64_t last = result.first_dim;
  if (last < 0 || last >= world_.ranks || (surely_last && last != rank_)) {
    return Wrong("join: the last rank is said to be " + std::to_string(last));
  }
  MustAgree(Agreement::Sort::kJoin, number, std::to_string(last), "join");
  if (witness_ != nullptr) witness_->coverage.Count(Event::kJoins);
}

}  // namespace maypole::properties
