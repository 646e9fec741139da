#include "tests/simulation/parts/elastic_process.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

constexpr int kMostFailedStarts = 3;  // as in maypole/common/elastic.py
constexpr int64_t kPause = kSecond;
constexpr int64_t kNoAgentPause = 20 * kMillisecond;
// The coordinator's error comes first (rank_session.cc).
constexpr int64_t kSlack = 3 * kSecond;
// A process that was asked to leave does not end as one that has finished.
constexpr launcher::Exit kLeft{.value = 128 + SIGTERM};
// Longer than an executor without ranks lives, and than a host cools down.
constexpr int64_t kLongestEvaluation = 40 * kSecond;

}  // namespace

ElasticProcess::ElasticProcess(Environment environment, int pid)
    : Process(environment.stage, environment.ledger, environment.surroundings,
              Place(), pid, /*elastic=*/true),
      environment_(std::move(environment)) {
  entrant_.pid = pid;
}

// --- Its end -----------------------------------------------------------------

void ElasticProcess::Sigterm() {
  stage_->Trace("pid ", pid_, " gets SIGTERM");
  if (evaluates_) return;
  asked_to_leave_ = true;
  main_.Ask(stage_->SoonDelay(), life_);
}

void ElasticProcess::Fail() {
  stage_->Trace("pid ", pid_, " fails");
  Exit({.value = 1});
}

// The next epoch may have begun with it.
void ElasticProcess::Missed() {
  ledger_->Blame({absl::StrCat("pid ", pid_)});
  environment_.on_disturbance();
}

void ElasticProcess::Exit(launcher::Exit exit) {
  exit.finished = evaluates_;
  stage_->Trace("pid ", pid_, " (rank ", place_.rank,
                ") ends: ", launcher::Describe(exit));
  if (state_ != State::kOutside) Missed();
  if (state_ == State::kRunning) Leave(false, /*returns=*/false);
  if (connection_ != nullptr) connection_->to_executor.Close();
  Vanish();
  stage_->scheduler.After(stage_->SoonDelay(), stage_->Forever(),
                          [handle = handle_] { handle->End(); });
  environment_.on_exit(exit);
}

// --- Joining -----------------------------------------------------------------

bool ElasticProcess::MayGoOn() {
  if (state_ == State::kRunning) return true;
  if (asked_to_leave_) {
    // Before run() the signal has its usual effect.
    Exit(has_joined_ ? kLeft
                     : launcher::Exit{.signaled = true, .value = SIGTERM});
    return false;
  }
  if (state_ == State::kJoining) {
    if (stage_->scheduler.now() < joins_until_) return true;
    Missed();
    OnRefused(Code::kDeadlineExceeded, "it has waited for too long");
    return false;
  }
  const int64_t now = stage_->scheduler.now();
  if (joins_until_ == 0) {
    joins_until_ = now + environment_.start_timeout + kSlack;
  }
  place_.node = environment_.node();
  if (place_.node < 0) {
    if (now >= joins_until_) {
      OnRefused(Code::kUnavailable, "there is no agent");
    } else {
      main_.Ask(kNoAgentPause, life_);
    }
    return false;
  }
  environment_.training->OnWaits(pid_);
  // It may be interrupted: its turn comes when it has waited for too long.
  stage_->scheduler.At(joins_until_, life_, [this] {
    if (state_ == State::kJoining) main_.Ask(stage_->SoonDelay(), life_);
  });
  return true;
}

void ElasticProcess::Introduce(session::Hello* hello) const {
  hello->elastic = 1;
  hello->rank = last_epoch_ > 0 ? entrant_.last_rank : -1;
  hello->last_epoch = last_epoch_;
  hello->min_size = environment_.training->terms().min_size;
  hello->max_size = environment_.training->terms().max_size;
}

void ElasticProcess::OnWelcome(const BoardConfig& config, uint32_t local_rank) {
  place_.local_rank = static_cast<int>(local_rank);
  place_.local_size = static_cast<int>(config.local_size);
  place_.rank = config.global_rank[local_rank];
  place_.size = static_cast<int>(config.size);
  place_.nodes = static_cast<int>(config.nodes);
  environment_.training->OnWaitsNoMore(pid_);
  joins_until_ = 0;
  failed_starts_ = 0;
  has_joined_ = true;
  offered_ = false;
  entrant_.node = place_.node;
  entrant_.last_epoch = last_epoch_;
  last_epoch_ = config.epoch;
  synced_here_ = false;
}

void ElasticProcess::OnRefused(Code code, const std::string& why) {
  stage_->Trace("pid ", pid_, ": cannot join: ", why);
  ++stage_->counts.refused_starts;
  if (connection_ != nullptr) connection_->to_executor.Close();
  environment_.training->OnWaitsNoMore(pid_);
  state_ = State::kOutside;
  joins_until_ = 0;
  if (code == Code::kOutOfRange) {
    ++stage_->counts.came_too_late;
    environment_.training->OnCameTooLate(pid_, why);
    return Exit({});
  }
  const bool may_try =
      has_joined_ && (code == Code::kAborted || code == Code::kUnavailable);
  if (!may_try || ++failed_starts_ == kMostFailedStarts) {
    return Exit({.value = 1});
  }
  main_.Ask(kPause, life_);
}

// Another agent may be there by now, or soon (RankSession::Join()).
void ElasticProcess::OnClosed() {
  if (environment_.node() == place_.node) return Process::OnClosed();
  stage_->Trace("pid ", pid_, ": its agent has died");
  connection_->to_executor.Close();
  state_ = State::kOutside;
  main_.Ask(stage_->SoonDelay(), life_);
}

// --- In an epoch -------------------------------------------------------------

bool ElasticProcess::PerformElastic(const Action& action) {
  int64_t answer = 0;
  bool failed = false;
  const bool is_sync = action.what == Action::What::kSync;
  if (is_sync && !std::exchange(offered_, true)) {
    environment_.training->OnEntered(epoch_->key, client_->board().config(),
                                     place_.rank, entrant_);
    if (place_.rank == 0) environment_.training->OnOffer(epoch_->key, step_);
  }
  int64_t mine = step_;
  if (!is_sync && control_ == nullptr) {
    ++step_;  // saved, whatever the others say
    mine =
        asked_to_leave_ || client_->board().header().change_wanted.load() > 0;
    environment_.training->OnCommit(epoch_->key, action.index, place_.rank,
                                    mine > 0);
    if (mine == 0 && !client_->board().aborted()) {
      environment_.training->CheckNobodyWaits(epoch_->key, place_.rank);
    }
  }
  if (!Answer(is_sync ? Kind::kBroadcast : Kind::kAllreduce, mine, &answer,
              &failed)) {
    return false;
  }
  if (failed) {
    saw_error_ = gives_up_on_errors_ = true;
  } else if (is_sync) {
    OnSynced(answer);
  } else {
    OnAgreed(action.index, answer > 0);
  }
  return true;
}

bool ElasticProcess::Answer(Kind kind, int64_t mine, int64_t* answer,
                            bool* failed) {
  const bool ended = PerformAlone([&] {
    auto op = std::make_shared<Operation>();
    op->name = kind == Kind::kBroadcast ? "elastic.state" : "elastic.check";
    op->signature.kind = kind;
    op->signature.dtype = DType::kInt64;
    op->signature.dims = 1;
    op->signature.shape[0] = 1;
    if (kind == Kind::kBroadcast) {
      op->signature.root = 0;
    } else {
      op->signature.op = Op::kMax;
    }
    op->set = client_->core().FindSet(0);
    op->input = reinterpret_cast<std::byte*>(&numbers_.emplace_back(mine));
    op->output = reinterpret_cast<std::byte*>(&numbers_.emplace_back(-1));
    return op;
  });
  if (!ended) return false;
  const std::shared_ptr<Operation> op = std::exchange(control_, nullptr);
  *failed = !op->status.ok();
  *answer = *reinterpret_cast<const int64_t*>(op->output);
  stage_->Trace("rank ", place_.rank, ": ", op->name, ": ",
                *failed ? op->status.message() : absl::StrCat(*answer));
  if (*failed) ledger_->OnError(*epoch_, place_.rank, op->name, op->status);
  return true;
}

void ElasticProcess::OnSynced(int64_t step) {
  environment_.training->OnSynced(epoch_->key, place_.rank, step);
  step_ = entrant_.agreed = step;
  entrant_.synced = synced_here_ = true;
  if (step_ < environment_.training->terms().last_step) return;
  epoch_->ends_at = 0;
  Finish();
}

void ElasticProcess::OnAgreed(size_t operations, bool wanted) {
  environment_.training->OnAgreed(epoch_->key, operations, place_.rank, wanted);
  entrant_.agreed = step_;
  if (wanted) {
    ++stage_->counts.changes;
    epoch_->ends_at = operations;
    OnProgramEnd(true);
  } else if (step_ >= environment_.training->terms().last_step) {
    epoch_->ends_at = operations;
    Finish();
  }
}

void ElasticProcess::Finish() {
  client_->SayFinished();
  Leave(true, /*returns=*/false);
  environment_.training->OnFinished(pid_, step_);
  evaluates_ = true;
  if (stage_->random.OneIn(2)) return Exit({});
  const int code = stage_->random.OneIn(8) ? 1 : 0;
  stage_->scheduler.After(
      stage_->random.Magnitude(kMillisecond, kLongestEvaluation), life_,
      [this, code] { Exit({.value = code}); });
}

void ElasticProcess::OnProgramEnd(bool finished) {
  if (synced_here_) {
    entrant_.last_key = epoch_->key;
    entrant_.last_rank = place_.rank;
    entrant_.last_node = place_.node;
  } else {
    // Without the job's state it comes back as what it was before.
    last_epoch_ = entrant_.last_epoch;
  }
  if (asked_to_leave_) {
    Leave(finished, /*returns=*/false);
    ++stage_->counts.asked_to_leave;
    return Exit(kLeft);
  }
  Leave(finished, /*returns=*/last_epoch_ > 0);
  ComeAgain();
}

std::string ElasticProcess::StateText() const {
  return absl::StrCat("pid ", pid_, ", ", Process::StateText(), ", step ",
                      step_, asked_to_leave_ ? ", asked to leave" : "");
}

}  // namespace maypole::simulation
