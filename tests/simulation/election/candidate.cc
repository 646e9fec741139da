#include "tests/simulation/election/candidate.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kKeepalive = 4 * kSecond;
// As coordinator/candidacy.cc.
constexpr int kAlarmPart = 20;

// Of the process that runs.
coordinator::BootInstant running_clock;
coordinator::BootInstant RunningClock() { return running_clock; }

}  // namespace

Candidate::Candidate(ElectionStage* stage, int number, double clock_rate,
                     coordinator::BootInstant ttl)
    : stage_(stage),
      number_(number),
      clock_rate_(clock_rate),
      ttl_(ttl),
      election_timer_(&stage->scheduler, [this] { OnElectionTimer(); }),
      timer_(&stage->scheduler, [this] {
        Do([this] {
          const auto due = core_->Deadline();
          const coordinator::Time now(stage_->scheduler.now());
          if (due && *due <= now && MayAct()) core_->Passed(now, carry_);
          AskForTime();
        });
      }) {
  stage_->etcd.Watch([this] {
    if (std::exchange(look_planned_, true)) return;
    stage_->scheduler.After(stage_->random.Magnitude(kMillisecond, kSecond),
                            process_, [this] {
                              look_planned_ = false;
                              if (cut_from_store_ || !stage_->etcd_up) return;
                              Do([this] {
                                coordinator::ElectionActions actions;
                                election_->Changed(Clock(), &actions);
                                Carry(actions);
                              });
                            });
  });
  Start();
}

coordinator::BootInstant Candidate::Clock() const {
  return coordinator::BootInstant(static_cast<int64_t>(
      static_cast<double>(stage_->scheduler.now()) * clock_rate_));
}

bool Candidate::Leads() {
  running_clock = Clock();
  return alive() && leadership_->Leads();
}

void Candidate::Do(std::function<void()> what) {
  if (!alive()) return;
  if (paused_) return held_.push_back(std::move(what));
  what();
}

// --- The process -------------------------------------------------------------

void Candidate::Start() {
  process_ = std::make_shared<int>();
  const std::string incarnation =
      absl::StrCat("c", number_, ".", ++incarnations_);
  value_ = absl::StrCat(address(), " ", incarnation);
  election_ = std::make_unique<coordinator::ElectionCore>(ttl_, Clock());
  leadership_ = std::make_unique<coordinator::Leadership>(RunningClock);
  leadership_->SetOwnAddress(address());
  coordinator::Config config;
  config.frozen_nodes = config.eager_nodes = config.relay_nodes = 0;
  core_ = std::make_unique<coordinator::CoordinatorCore>(config, incarnation);
  was_leader_ = false;
  look_planned_ = false;
  alarm_ = {};
  AskForElectionTime();
}

void Candidate::Die(int64_t away) {
  process_.reset();
  paused_ = false;
  held_.clear();
  election_timer_.Forget();
  timer_.Forget();
  for (auto& [id, stream] : std::exchange(streams_, {})) {
    stream->broken = true;
    stage_->scheduler.After(stage_->Delay(), stream, [s = stream.get()] {
      s->OnEnded(absl::UnavailableError("Socket closed"));
    });
  }
  stage_->scheduler.After(away, std::weak_ptr<const void>(life_),
                          [this] { Start(); });
}

void Candidate::Kill() {
  if (alive()) Die(stage_->random.Magnitude(kMillisecond, 3 * kSecond));
}

// SIGTERM: as Candidacy::Resign.
void Candidate::Resign() {
  if (!alive() || paused_) return;
  leadership_->End();
  const coordinator::LeaseId lease = election_->Resign();
  const bool told = !cut_from_store_ && stage_->etcd_up;
  Die(stage_->random.Magnitude(kMillisecond, 3 * kSecond));
  if (lease == 0 || !told) return;
  stage_->scheduler.After(stage_->Delay(), life_, [this, lease] {
    stage_->etcd.Handle({coordinator::StoreCall::Kind::kRevoke, lease, {}}, "",
                        ttl_);
  });
}

void Candidate::Pause(int64_t time) {
  if (!alive() || paused_) return;
  paused_ = true;
  stage_->scheduler.After(time, process_, [this] {
    paused_ = false;
    // The alarm's signal is handled before anything else.
    if (alarm_.count() > 0 && Clock() >= alarm_ && !stage_->ignore_loss) {
      return Die(stage_->random.Magnitude(100 * kMillisecond, kSecond));
    }
    while (alive() && !paused_ && !held_.empty()) {
      const auto what = std::move(held_.front());
      held_.pop_front();
      what();
    }
    if (alive()) AskForElectionTime();
  });
  // Executors notice that nobody answers.
  stage_->scheduler.After(
      stage_->random.Between(kKeepalive / 2, kKeepalive), process_, [this] {
        if (!paused_) return;
        for (const auto& [id, stream] : streams_) {
          stage_->scheduler.After(
              stage_->random.Between(0, kSecond / 4), stream,
              [this, s = std::weak_ptr<ElectionStream>(stream)] {
                const auto live = s.lock();
                if (paused_ && live != nullptr) Break(live);
              });
        }
      });
}

// --- The election ------------------------------------------------------------

void Candidate::AskForElectionTime() {
  const auto deadline = election_->Deadline();
  if (!deadline) return;
  const auto at = static_cast<int64_t>(static_cast<double>(deadline->count()) /
                                       clock_rate_);
  election_timer_.Ask(std::max<int64_t>(0, at - stage_->scheduler.now()) +
                          stage_->random.Between(1000, kMillisecond),
                      process_);
}

void Candidate::OnElectionTimer() {
  Do([this] {
    coordinator::ElectionActions actions;
    const auto deadline = election_->Deadline();
    if (deadline && *deadline <= Clock()) {
      election_->Passed(Clock(), &actions);
      Carry(actions);
    }
    if (alive()) AskForElectionTime();
  });
}

// As Elections::Do.
void Candidate::Carry(const coordinator::ElectionActions& actions) {
  for (const coordinator::ElectionAction& action : actions) {
    if (const auto* call = std::get_if<coordinator::StoreCall>(&action)) {
      Call(*call);
    } else if (const auto* lead = std::get_if<coordinator::Lead>(&action)) {
      running_clock = Clock();
      leadership_->Begin(lead->term, lead->until);
      alarm_ = lead->until + ttl_ / kAlarmPart;
      was_leader_ = true;
      ++terms_led_;
    } else if (const auto* on = std::get_if<coordinator::Prolong>(&action)) {
      leadership_->Prolong(on->until);
      alarm_ = on->until + ttl_ / kAlarmPart;
    } else if (const auto* down = std::get_if<coordinator::Follow>(&action)) {
      leadership_->Follow(
          down->holder ? coordinator::Leadership::Leader{down->holder->value,
                                                         down->holder->term}
                       : coordinator::Leadership::Leader{});
    } else if (std::get_if<coordinator::StepDown>(&action) != nullptr) {
      if (stage_->ignore_loss) continue;
      leadership_->End();
      return Die(stage_->random.Magnitude(100 * kMillisecond, kSecond));
    }
  }
  AskForElectionTime();
}

// A call is lost, or its answer is, or it takes effect when the caller has
// given it up.
void Candidate::Call(const coordinator::StoreCall& call) {
  const auto answered = std::make_shared<bool>(false);
  const auto answer = [this, answered](const coordinator::StoreAnswer& a) {
    if (std::exchange(*answered, true)) return;
    Do([this, a] {
      coordinator::ElectionActions actions;
      election_->Answered(Clock(), a, &actions);
      Carry(actions);
    });
  };
  stage_->scheduler.After(
      static_cast<int64_t>(static_cast<double>(call.timeout.count()) /
                           clock_rate_),
      process_,
      [answer] { answer(coordinator::CallFailed{"no answer in time"}); });
  const bool late = stage_->random.OneIn(50);
  const int64_t there =
      late ? stage_->random.Magnitude(kMillisecond, 8 * kSecond)
           : stage_->random.Magnitude(kMillisecond, 100 * kMillisecond);
  const bool lost = stage_->random.OneIn(50);
  stage_->scheduler.After(
      there, life_,
      [this, call, answer, lost, value = value_,
       process = std::weak_ptr<int>(process_)] {
        if (cut_from_store_ || !stage_->etcd_up) return;
        const auto result = stage_->etcd.Handle(call, value, ttl_);
        if (lost) return;
        stage_->scheduler.After(
            stage_->random.Magnitude(kMillisecond, 100 * kMillisecond), process,
            [this, answer, result] {
              if (!cut_from_store_) answer(result);
            });
      });
}

// --- Streams -----------------------------------------------------------------

void Candidate::Write(const std::shared_ptr<ElectionStream>& stream,
                      const proto::ExecutorMessage& message) {
  if (stream->broken || !stream->user_open) return;
  stream->last_up =
      std::max(stream->last_up, stage_->scheduler.now() + stage_->Delay());
  if (!alive()) {
    stream->broken = true;
    stage_->scheduler.After(stage_->Delay(), stream, [s = stream.get()] {
      s->OnEnded(absl::UnavailableError("Connection refused"));
    });
    return;
  }
  stage_->scheduler.At(stream->last_up, process_, [this, stream, message] {
    Do([this, stream, message] {
      if (stream->broken) return;
      auto it = std::find_if(streams_.begin(), streams_.end(),
                             [&](const auto& s) { return s.second == stream; });
      // As services.cc.
      if (it == streams_.end() && message.has_hello()) {
        if (!MayAct()) {
          stream->broken = true;
          stage_->scheduler.After(
              stage_->Delay(), stream,
              [s = stream.get(), status = leadership_->NotLeader()] {
                s->OnEnded(status);
              });
          return;
        }
        it = streams_.emplace(++last_stream_, stream).first;
      }
      if (it == streams_.end() || !MayAct()) return;
      core_->Received(coordinator::Time(stage_->scheduler.now()), it->first,
                      message, carry_);
      AskForTime();
    });
  });
}

void Candidate::Leave(const std::shared_ptr<ElectionStream>& stream) {
  stream->user_open = false;
  Break(stream);
}

void Candidate::Break(const std::shared_ptr<ElectionStream>& stream) {
  if (std::exchange(stream->broken, true)) return;
  stage_->scheduler.After(
      stage_->random.Magnitude(kMillisecond, kSecond), process_,
      [this, stream] {
        Do([this, stream] {
          for (const auto& [id, s] : streams_) {
            if (s != stream) continue;
            const coordinator::StreamId gone = id;
            streams_.erase(gone);
            if (MayAct()) {
              core_->Ended(coordinator::Time(stage_->scheduler.now()), gone,
                           coordinator::StreamEnd::kBroken, carry_);
              AskForTime();
            }
            return;
          }
        });
      });
  stage_->scheduler.After(stage_->Delay(), stream, [s = stream.get()] {
    s->OnEnded(absl::UnavailableError("connection reset by peer"));
  });
}

void Candidate::Carry(coordinator::Actions* actions) {
  for (coordinator::Action& action : *actions) {
    if (auto* send = std::get_if<coordinator::Send>(&action)) {
      Send(*send);
    } else if (auto* close = std::get_if<coordinator::Close>(&action)) {
      Close(close->stream, close->status);
    }
  }
}

// As Hub::Apply and SessionStream::Continue.
void Candidate::Send(const coordinator::Send& send) {
  const auto it = streams_.find(send.stream);
  if (it == streams_.end()) return;
  const std::shared_ptr<ElectionStream> stream = it->second;
  if (!MayAct()) return Break(stream);
  const auto& holder = stage_->etcd.holder();
  if (!stage_->skewed && (!holder || holder->value != value_)) {
    stage_->found.push_back(absl::StrCat(
        address(), " writes in term ", leadership_->term(), ", although ",
        holder ? holder->value : "nobody", " leads by etcd"));
  }
  proto::CoordinatorMessage message = send.message.ToMessage();
  if (message.has_welcome()) {
    message.mutable_welcome()->set_term(leadership_->term());
  }
  // Now and then what is in a socket's buffer arrives late. (An executor that
  // waits too long for its Welcome may miss the resume timeout.)
  const bool late = stage_->random.OneIn(200) && !message.has_welcome();
  const int64_t delay =
      late ? stage_->random.Magnitude(kMillisecond, 3 * kSecond)
           : stage_->Delay();
  stream->last_down =
      std::max(stream->last_down, stage_->scheduler.now() + delay);
  stage_->scheduler.At(stream->last_down, stream, [s = stream.get(), message] {
    if (!s->user_open) return;
    s->OnMessage(message);
  });
}

void Candidate::Close(coordinator::StreamId id, const absl::Status& status) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  const std::shared_ptr<ElectionStream> stream = it->second;
  streams_.erase(it);
  stream->broken = true;
  stage_->scheduler.At(std::max(stream->last_down, stage_->scheduler.now()) + 1,
                       stream,
                       [s = stream.get(), status] { s->OnEnded(status); });
}

void Candidate::AskForTime() {
  if (!alive()) return;
  const auto deadline = core_->Deadline();
  if (!deadline) return;
  timer_.Ask(std::max<int64_t>(0, deadline->count() - stage_->scheduler.now()) +
                 stage_->random.Between(0, kMillisecond),
             process_);
}

}  // namespace maypole::simulation
