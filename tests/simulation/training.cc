#include "tests/simulation/training.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

// A rank knows by then that another process wants to enter.
constexpr int64_t kNewsTakes = 400 * kMillisecond;

}  // namespace

void Training::OnEntered(const std::string& key, const BoardConfig& config,
                         int rank, const Entrant& entrant) {
  Epoch& epoch = epochs_[key];
  if (epoch.size == 0) ++stage_->counts.elastic_epochs;
  epoch.number = config.epoch;
  epoch.size = config.size;
  const auto size = static_cast<int>(config.size);
  if (size < terms_.min_size || size > terms_.max_size) {
    stage_->Found("epoch ", key, " has ", size, " ranks, the job has ",
                  terms_.min_size, " to ", terms_.max_size);
  }
  if (config.epoch <= entrant.last_epoch) {
    stage_->Found("epoch ", key, ", rank ", rank, " (pid ", entrant.pid,
                  ") was in epoch ", entrant.last_epoch, " before");
  }
  if (!epoch.entrants.emplace(rank, entrant).second) {
    stage_->Found("epoch ", key, " has two ranks ", rank);
  }
  // After a start that failed, its members come before the others.
  if (config.epoch == entrant.last_epoch + 1) CheckOrder(key, rank, epoch);
}

// Survivors of an epoch keep their order on their node. (Nodes are ordered by
// their first rank; a process whose agent has been replaced since is on another
// node, for the coordinator, and may bring that forward.)
void Training::CheckOrder(const std::string& key, int rank,
                          const Epoch& epoch) {
  const Entrant& me = epoch.entrants.at(rank);
  if (me.last_epoch == 0 || me.last_node != me.node) return;
  for (const auto& [other, entrant] : epoch.entrants) {
    if (entrant.last_epoch == 0 || entrant.last_key != me.last_key ||
        entrant.last_node != entrant.node || entrant.node != me.node) {
      continue;
    }
    if ((other < rank) != (entrant.last_rank < me.last_rank)) {
      stage_->Found("epoch ", key, ": ranks ", rank, " and ", other,
                    " were ranks ", me.last_rank, " and ", entrant.last_rank,
                    " of epoch ", me.last_key);
    }
  }
}

// A rank that was frozen may get the state much later.
void Training::OnOffer(const std::string& key, int64_t step) {
  Epoch& epoch = epochs_[key];
  epoch.offered = step;
  if (epoch.entrants.at(0).synced) return;
  began_anew_ = std::max(began_anew_, epoch.number);
  // Those that have the state may go on, and repeat the last step.
  if (finished()) {
    stage_->Found("epoch ", key, " begins the training again, which pid ",
                  *finished_.begin(), " has finished");
  }
}

// While its node was lost the others, all of them new, have begun the training
// again: it goes on with theirs.
bool Training::WasLeftBehind(const Entrant& entrant) const {
  return lost_nodes_.contains(entrant.last_node) &&
         began_anew_ > entrant.last_epoch;
}

void Training::OnSynced(const std::string& key, int rank, int64_t step) {
  const Epoch& epoch = epochs_[key];
  const std::string who = absl::StrCat("epoch ", key, ", rank ", rank);
  if (epoch.entrants.size() != epoch.size) {
    stage_->Found(who, " has the state before all ranks are there");
    return;
  }
  if (step != epoch.offered) {
    stage_->Found(who, " gets step ", step, ", rank 0 has sent ",
                  epoch.offered);
  }
  const Entrant& first = epoch.entrants.at(0);
  for (const auto& [other, entrant] : epoch.entrants) {
    if (!entrant.synced) continue;
    if (!first.synced) {
      stage_->Found("epoch ", key, ": rank ", other,
                    " has the job's state, and rank 0 has not");
    } else if (entrant.agreed > step && !WasLeftBehind(entrant)) {
      stage_->Found("epoch ", key, ": rank ", other, " has step ",
                    entrant.agreed, " committed, and all return to ", step);
    }
  }
}

void Training::OnCommit(const std::string& key, size_t number, int rank,
                        bool wanted) {
  epochs_[key].commits[number][rank] = wanted;
}

void Training::CheckNobodyWaits(const std::string& key, int rank) {
  const bool full = static_cast<int>(epochs_[key].size) >= terms_.max_size;
  const int64_t now = stage_->scheduler.now();
  if (full || now < disturbed_until_) return;
  for (const auto& [pid, since] : waits_since_) {
    if (now < since + kNewsTakes) continue;
    stage_->Found("epoch ", key, ": pid ", pid, " waits to enter, and rank ",
                  rank, " does not know");
  }
}

void Training::OnAgreed(const std::string& key, size_t number, int rank,
                        bool wanted) {
  const Epoch& epoch = epochs_[key];
  const std::map<int, bool>& wishes = epoch.commits.at(number);
  ++stage_->counts.commits;
  const bool any = std::any_of(wishes.begin(), wishes.end(),
                               [](const auto& wish) { return wish.second; });
  if (wishes.size() != epoch.size || wanted != any) {
    stage_->Found("epoch ", key, ", rank ", rank, ", commit ", number,
                  ": it is told ", wanted, "; ", wishes.size(), " of ",
                  epoch.size, " ranks have asked, and ", any ? "one" : "none",
                  " wants a change");
  }
}

void Training::OnCameTooLate(int pid, const std::string& why) {
  if (!finished()) {
    stage_->Found("pid ", pid, " is refused before the end: ", why);
  }
}

void Training::OnFinished(int pid, int64_t step) {
  finished_.insert(pid);
  if (step == terms_.last_step) return;
  stage_->Found("pid ", pid, " ends at step ", step, " of ", terms_.last_step);
}

}  // namespace maypole::simulation
