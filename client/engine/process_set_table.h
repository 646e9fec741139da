// ProcessSetTable: a rank's process sets, and its requests to add or remove
// one.
//
// Thread contract: not synchronized; RankCore's mutex guards it.
//
// Invariants: at most kMaxSetRequests requests are unanswered. Each request
// that Request() has taken is returned once, by OnReply() or TakePending().
#ifndef MAYPOLE_CLIENT_ENGINE_PROCESS_SET_TABLE_H_
#define MAYPOLE_CLIENT_ENGINE_PROCESS_SET_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "client/engine/operation.h"
#include "client/engine/rank_shell.h"
#include "common/board/board.h"
#include "common/process_set.h"
#include "common/status.h"
#include "common/wire/session_messages.h"

namespace maypole {

class ProcessSetTable {
 public:
  ProcessSetTable(const Board* board, ExecutorRequests* requests);

  // The set of all ranks. Any thread.
  const std::shared_ptr<const ProcessSet>& global() const { return global_; }
  // Null if there is no such set.
  std::shared_ptr<const ProcessSet> Find(uint32_t id) const;
  // An error if this rank has requested the removal of one of the sets: other
  // ranks may have removed it already.
  Status CheckNotRemoved(
      std::span<const std::shared_ptr<Operation>> operations) const;

  // Whether Request() may be called. The caller checks that a set that is to be
  // removed is not in use.
  Status CheckRequest(const Operation& op) const;
  void Request(const std::shared_ptr<Operation>& op);
  // Returns the request that this answers, with Operation::answer set, and its
  // outcome; null if no request waits for it.
  std::pair<std::shared_ptr<Operation>, Status> OnReply(
      const session::SetReply& reply);
  size_t pending() const { return asked_.size(); }
  std::vector<std::shared_ptr<Operation>> TakePending();

 private:
  const Board* const board_;
  ExecutorRequests* const requests_;
  const std::shared_ptr<const ProcessSet> global_;
  std::map<uint32_t, std::shared_ptr<const ProcessSet>> sets_;  // except set 0
  std::set<uint32_t> removing_;  // sets whose removal is not answered yet
  // The ranks' requests are matched by their numbers. The last numbers: of
  // requests that all ranks make, and of those that only members make.
  uint32_t of_all_ = 0;
  uint32_t of_members_ = 0;
  // Unanswered, by (whether only members make it, number).
  std::map<std::pair<bool, uint32_t>, std::shared_ptr<Operation>> asked_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_PROCESS_SET_TABLE_H_
