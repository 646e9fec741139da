// Training: the checker of an elastic job, above the operations (ledger.h):
// which processes are in which epoch, what the ranks agree on at a commit, and
// that no committed step is lost while a living process still has it.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_TRAINING_H_
#define MAYPOLE_TESTS_SIMULATION_TRAINING_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/board/board.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

struct ElasticTerms {
  int min_size = 1;
  int max_size = 1;
  int64_t last_step = 1;
};

// A process as it enters an epoch.
struct Entrant {
  int pid = 0;
  int node = 0;
  // Of its last epoch, which was welcomed by the same agent or by another one.
  uint64_t last_epoch = 0;  // 0: it is new
  std::string last_key;
  int last_rank = -1;
  int last_node = -1;
  bool synced = false;  // it has the job's state
  int64_t agreed = 0;   // the last step that it knows to be committed
};

class Training {
 public:
  Training(Stage* stage, const ElasticTerms& terms)
      : stage_(stage), terms_(terms) {}

  const ElasticTerms& terms() const { return terms_; }

  void OnEntered(const std::string& key, const BoardConfig& config, int rank,
                 const Entrant& entrant);
  // A process waits for an epoch in which it is; or does not any more.
  void OnWaits(int pid) { waits_since_[pid] = stage_->scheduler.now(); }
  void OnWaitsNoMore(int pid) { waits_since_.erase(pid); }
  // Rank 0 offers its step, all get it.
  void OnOffer(const std::string& key, int64_t step);
  void OnSynced(const std::string& key, int rank, int64_t step);
  // A fault may delay news until then.
  void OnDisturbed(int64_t until) {
    disturbed_until_ = std::max(disturbed_until_, until);
  }
  // The coordinator goes on without the node's ranks, which may come back.
  void OnNodeLost(int node) { lost_nodes_.insert(node); }
  // The rank has saved its state, and asks whether a change is wanted.
  void OnCommit(const std::string& key, size_t number, int rank, bool wanted);
  // It knows of no wish, and of no end of the epoch: then nobody may wait who
  // could enter.
  void CheckNobodyWaits(const std::string& key, int rank);
  void OnAgreed(const std::string& key, size_t number, int rank, bool wanted);
  // A process has trained to the end.
  void OnFinished(int pid, int64_t step);
  bool finished() const { return !finished_.empty(); }
  // The coordinator has refused the process because the training is over.
  void OnCameTooLate(int pid, const std::string& why);

 private:
  struct Epoch {
    uint64_t number = 0;
    uint32_t size = 0;
    std::map<int, Entrant> entrants;  // by rank
    int64_t offered = -1;
    std::map<size_t, std::map<int, bool>> commits;  // wishes, by rank
  };

  void CheckOrder(const std::string& key, int rank, const Epoch& epoch);
  bool WasLeftBehind(const Entrant& entrant) const;

  Stage* const stage_;
  const ElasticTerms terms_;
  std::map<std::string, Epoch> epochs_;
  std::map<int, int64_t> waits_since_;  // by pid
  int64_t disturbed_until_ = 0;
  std::set<int> lost_nodes_;
  uint64_t began_anew_ = 0;  // the last epoch whose rank 0 had no state
  std::set<int> finished_;  // pids
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_TRAINING_H_
