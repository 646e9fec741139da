// CoordinatorChoice: which of several coordinators an executor calls, and
// whether it may join the one that answers.
//
// Purpose: one coordinator leads; the others refuse. So the executor calls them
// in turn. A leader that has been replaced may still answer; it has a lower
// term than its successor (docs/high-availability.md). An executor that has
// joined a coordinator never joins one with a lower term: what the old one
// issues cannot reach it.
//
//   CoordinatorChoice choice({"a:4001", "b:4001"});
//   ... call choice.address(); without a welcome: choice.Next() ...
//   absl::Status may = choice.Join(welcome.term());
//
// Thread contract: not synchronized; one transport at a time uses it.
//
// Invariant: the terms that were joined never decrease.
#ifndef MAYPOLE_WORKER_NETWORK_COORDINATOR_CHOICE_H_
#define MAYPOLE_WORKER_NETWORK_COORDINATOR_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace maypole::worker {

class CoordinatorChoice {
 public:
  // addresses: at least one.
  explicit CoordinatorChoice(std::vector<std::string> addresses)
      : addresses_(std::move(addresses)) {}

  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::string& address() const { return addresses_[index_]; }
  void Next() { index_ = (index_ + 1) % addresses_.size(); }

  // The coordinator at address() welcomes the executor. Returns an error if the
  // executor must not join it. term: 0 of the only coordinator.
  absl::Status Join(uint64_t term);

 private:
  const std::vector<std::string> addresses_;
  size_t index_ = 0;
  uint64_t joined_term_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_COORDINATOR_CHOICE_H_
