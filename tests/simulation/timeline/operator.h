// Operator: starts and stops the job's timeline at random moments, as
// maypolectl does, and checks what the coordinator reports about it.
//
// It checks that the coordinator reports the end of each stopped timeline soon,
// with the reason if its file is incomplete, and never reports the file as
// complete before it is. The ledger checks that the job is not affected: it
// accepts no timeline as the cause of a fault (ledger.h).
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_TIMELINE_OPERATOR_H_
#define MAYPOLE_TESTS_SIMULATION_TIMELINE_OPERATOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "proto/admin.pb.h"
#include "tests/simulation/parts/coordinator.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

class Operator {
 public:
  // disturbed_until: until when what has happened may delay messages.
  Operator(Stage* stage, Coordinator* coordinator,
           std::function<int64_t()> disturbed_until);

 private:
  struct Order {
    uint64_t epoch = 0;
    std::string path;
    int64_t stopped_at = 0;  // 0: it is not stopped yet
    int lives = 0;           // of the job, when it was given
  };

  void Act();
  void Give(bool stop);
  void Look();
  // `timeline`: the job's last one now.
  void CheckEnd(const proto::TimelineStatus& timeline);

  Stage* const stage_;
  Coordinator* const coordinator_;
  const std::function<int64_t()> disturbed_until_;
  std::optional<Order> last_;  // whose end is not known
  // By the job's life: what has been started.
  std::set<std::pair<int, std::string>> started_;
  Turn act_;
  Turn look_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_TIMELINE_OPERATOR_H_
