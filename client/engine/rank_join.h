// RankJoin: the join of a rank that has no more data (Horovod's join()).
//
// Purpose: while the join is pending, this rank stands in for operations that
// others submit: RankCore submits them for this rank, with inputs that change
// no result. When no rank has an operation of its own left, the executor
// answers the join.
//
//   pending   StandIn() for each slot, ReportIdle()
//   answered  End(), after the operations for which it stands in (may_end())
//
// Thread contract: joining(): any thread; RankCore's mutex guards the rest.
#ifndef MAYPOLE_CLIENT_ENGINE_RANK_JOIN_H_
#define MAYPOLE_CLIENT_ENGINE_RANK_JOIN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "client/engine/operation.h"
#include "client/engine/process_set_table.h"
#include "client/engine/rank_names.h"
#include "client/engine/rank_shell.h"
#include "common/board/board.h"
#include "common/wire/session_messages.h"

namespace maypole {

class RankJoin {
 public:
  RankJoin(const Board* board, uint32_t local_rank, RankShell* shell,
           ExecutorRequests* requests, RankNames* names,
           const ProcessSetTable* sets)
      : board_(board),
        local_rank_(local_rank),
        me_(board->rank(local_rank)),
        shell_(shell),
        requests_(requests),
        names_(names),
        sets_(sets) {}

  bool joining() const { return joining_.load(); }
  bool pending() const { return operation_ != nullptr; }
  uint32_t joins() const { return joins_; }  // that have ended

  void Begin(const std::shared_ptr<Operation>& operation);
  void OnReply(const session::JoinReply& reply);
  bool answered() const { return reply_.has_value(); }
  // After an error the operations for which this rank stands in need not end.
  bool may_end() const { return stand_ins_ == 0 || reply_->code != 0; }
  // Return the join and its outcome: as answered, or this error.
  std::pair<std::shared_ptr<Operation>, Status> End();
  std::pair<std::shared_ptr<Operation>, Status> Fail(const Status& error);

  // Returns the next operation of the slot's name that others wait for; the
  // caller submits it and reports its end. Null if there is none yet. If there
  // is no memory for its input, the rank gives up.
  std::shared_ptr<Operation> StandIn(uint32_t slot);
  void OnStandInEnded() { --stand_ins_; }
  // Reports to the executor, once, that none of the operations that this rank
  // submitted itself is pending. When all ranks have done so, there is nothing
  // left to stand in for. outstanding: this rank's operations, including the
  // join.
  void ReportIdle(uint32_t outstanding);

 private:
  bool FindSubmitted(uint32_t slot, uint32_t beyond, Signature* found) const;
  void RequestSlot(uint32_t slot);

  const Board* const board_;
  const uint32_t local_rank_;
  RankBlock& me_;
  RankShell* const shell_;
  ExecutorRequests* const requests_;
  RankNames* const names_;
  const ProcessSetTable* const sets_;

  std::shared_ptr<Operation> operation_;  // null: no join is pending
  uint32_t joins_ = 0;
  bool reported_idle_ = false;
  std::optional<session::JoinReply> reply_;
  uint32_t stand_ins_ = 0;  // operations of StandIn() that have not ended
  std::atomic<bool> joining_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_JOIN_H_
