// RankTable: the ranks of a job: where each runs, as which process, and whether
// it lives and has called init().
//
// Purpose: names ranks in messages, and counts those that are awaited at the
// start. Pure. In an elastic job the numbers are those of processes.
//
//   RankTable ranks("rank");
//   ranks.Add(3, {.node = 1, .host = "h2"});
//   ranks.OnStart(3, 4711);
//   ranks.Who(3);       // "rank 3 (pid 4711, host h2)"
//
// Thread contract: a value; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_RANK_TABLE_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_RANK_TABLE_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

#include "client/launcher/job/early_leavers.h"
#include "client/launcher/job/supervision.h"

namespace maypole::launcher {

class RankTable {
 public:
  struct Place {
    int node = 0;
    std::string host;  // its name; empty: the node is one of several here
  };

  // noun: what the numbers count: "rank", or another word.
  explicit RankTable(std::string noun) : noun_(std::move(noun)) {}

  void Add(int rank, Place place) {
    ranks_[rank] = {.place = std::move(place)};
  }
  void OnStart(int rank, pid_t pid) { ranks_.at(rank).pid = pid; }
  // Returns false if its end was known.
  bool OnEnd(int rank) { return std::exchange(ranks_.at(rank).alive, false); }
  // It has called init(). Returns whether it had not before.
  bool OnJoin(int rank) { return !std::exchange(ranks_.at(rank).joined, true); }
  // How many have not called init().
  int awaited() const;

  // "rank 3 (pid 4711, host h2)"
  std::string Who(int rank) const;
  // "12 of 16 ranks have called init(); waiting for h3 (ranks 12-15)"
  std::string DescribeAwaited() const;
  // How the job failed: "rank 3 (...) exited with code 1; ...", with the other
  // ranks that may have caused it. daemon_lost: a lost daemon has been named as
  // the likely cause of errors from Maypole.
  std::string DescribeFailure(const Supervision& supervision,
                              const EarlyLeavers& leavers,
                              bool daemon_lost) const;

 private:
  struct Rank {
    Place place;
    pid_t pid = 0;
    bool alive = true;
    bool joined = false;
  };

  const std::string noun_;
  std::map<int, Rank> ranks_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_RANK_TABLE_H_
