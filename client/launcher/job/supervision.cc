#include "client/launcher/job/supervision.h"

#include <string.h>

#include <algorithm>
#include <csignal>

namespace maypole::launcher {

std::string Describe(const Exit& exit) {
  if (exit.lost) return "was lost with its host";
  if (!exit.signaled) return "exited with code " + std::to_string(exit.value);
  const char* name = strsignal(exit.value);
  return "was killed by signal " + std::to_string(exit.value) +
         (name == nullptr ? "" : " (" + std::string(name) + ")");
}

namespace {

Time TimeOfFailure(Exit exit, Time now, const Clues& clues) {
  if (clues.last_traceback && now - *clues.last_traceback < kTracebackAge) {
    return *clues.last_traceback;
  }
  if (exit.signaled && exit.value != SIGABRT) return now - kSignalSlack;
  return now;
}

bool IsBefore(const Supervision::Failure& a, const Supervision::Failure& b) {
  if (a.maypole_error != b.maypole_error) return !a.maypole_error;
  return a.when < b.when;
}

}  // namespace

int Supervision::Enter(Phase phase, std::optional<Time> deadline, int signal) {
  phase_ = phase;
  deadline_ = deadline;
  return signal;
}

bool Supervision::WeStoppedIt(Exit exit) const {
  if (phase_ == Phase::kInterrupted || signal_ != 0) return true;
  if (phase_ == Phase::kTerminating || phase_ == Phase::kKilling) {
    if (exit.lost || exit.clean()) return true;
    return exit.signaled && (exit.value == SIGTERM || exit.value == SIGKILL);
  }
  return false;
}

int Supervision::OnRankExit(int rank, Exit exit, Time now, const Clues& clues) {
  --alive_;
  const bool stopped = WeStoppedIt(exit);
  if (exit.clean() || stopped) {
    if (signal_ == 0) {
      suspects_.push_back({.rank = rank, .exited_well = !stopped});
    }
    return 0;
  }
  Failure failure{.rank = rank,
                  .exit = exit,
                  .maypole_error = clues.maypole_error,
                  .when = TimeOfFailure(exit, now, clues)};
  if (!first_ || IsBefore(failure, *first_)) first_ = failure;
  if (exit.signaled && !failure.maypole_error) killed_.push_back(failure);
  if (phase_ != Phase::kRunning) return 0;
  return Enter(Phase::kGrace, now + kFailureGrace, 0);
}

int Supervision::OnSignal(int signal, Time now) {
  if (signal_ != 0) {
    if (signal_ == SIGTERM && signal == SIGTERM) return 0;
    bool impatient = now - signal_time_ > kImpatience;
    return impatient ? Enter(Phase::kKilling, std::nullopt, SIGKILL) : 0;
  }
  signal_ = signal;
  signal_time_ = now;
  if (phase_ == Phase::kKilling) return 0;
  const std::chrono::milliseconds grace =
      signal == SIGTERM ? stop_timeout_ : kInterruptGrace;
  return Enter(Phase::kInterrupted, now + grace, signal);
}

int Supervision::OnLauncherLost() {
  if (signal_ == 0) signal_ = SIGKILL;
  return Enter(Phase::kKilling, std::nullopt, SIGKILL);
}

int Supervision::OnJobFailed(Time now) {
  failed_ = true;
  if (phase_ != Phase::kRunning && phase_ != Phase::kGrace) return 0;
  return Enter(Phase::kTerminating, now + kTermGrace, SIGTERM);
}

int Supervision::OnTime(Time now) {
  // With no rank left there is nothing to stop, however long the end takes.
  if (alive_ == 0 || !deadline_ || now < *deadline_) return 0;
  if (phase_ == Phase::kGrace) {
    return Enter(Phase::kTerminating, now + kTermGrace, SIGTERM);
  }
  return Enter(Phase::kKilling, std::nullopt, SIGKILL);
}

std::vector<Supervision::Failure> Supervision::also_killed() const {
  std::vector<Failure> others = killed_;
  std::erase_if(others,
                [this](const Failure& f) { return f.rank == first_->rank; });
  std::sort(others.begin(), others.end(),
            [](const Failure& a, const Failure& b) { return a.rank < b.rank; });
  return others;
}

std::vector<Supervision::Suspect> Supervision::suspects() const {
  if (!first_ || !first_->maypole_error) return {};
  return suspects_;
}

int Supervision::exit_code() const {
  if (signal_ != 0) return 128 + signal_;
  return first_ ? first_->exit.code() : failed_ ? 1 : 0;
}

}  // namespace maypole::launcher
