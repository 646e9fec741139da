// BoardKeeper: the executor's hand on the board of one epoch.
//
// Purpose: finds what ranks have announced and copies it; writes plans, tickets
// and failures. All that is read here is shared memory that any rank may spoil:
// it is copied first, and only counts and bounds of our own are trusted.
//
// Thread contract: the executor's loop only.
#ifndef MAYPOLE_WORKER_SESSION_BOARD_KEEPER_H_
#define MAYPOLE_WORKER_SESSION_BOARD_KEEPER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/board.h"
#include "worker/core/epoch.h"
#include "worker/core/run_spec.h"
#include "worker/session/stats_page.h"

namespace maypole::worker {

class BoardKeeper {
 public:
  explicit BoardKeeper(std::unique_ptr<Board> board);

  const Board& board() const { return *board_; }

  void Allot(uint32_t slot, uint64_t identity);
  // What has become present, or urgent, since the last call; by slot.
  std::vector<SlotNews> TakeNews();
  // Writes the plan of a run; Issue() then puts it into the ticket order.
  void WritePlan(const RunSpec& run);
  void Issue(const RunSpec& run);
  void MarkPresent(uint32_t local, int pid);
  // local_rank -1: a rank of another node.
  void MarkLeft(int local_rank, const std::string& text);
  // After an abort: peers need not wait for the rank to leave their arenas.
  void MarkGone(uint32_t local);
  // Fails what waits on this node for a rank that has left. To be repeated
  // while somebody has left: an arrival may cross MarkLeft.
  void FailWaiting();
  bool somebody_left() const { return !left_text_.empty(); }

  // Counts what ranks have done among themselves since the last call (with one
  // node the executor does not see their operations otherwise).
  void CountLocalOperations(StatsPage* stats);

  // True while a wake-up is wanted; see Board::ClaimExecutorWake.
  void SetSleeping(bool sleeping);

 private:
  // True if there was any.
  bool TakeNewsOnce(std::vector<SlotNews>* all);
  bool CopyNews(uint32_t slot, SlotNews* news) const;
  bool WaitsForLeft(uint32_t slot, uint32_t* generation) const;

  const std::unique_ptr<Board> board_;
  uint32_t allotted_ = 0;
  uint64_t next_ticket_ = 0;
  std::string left_text_;  // of the first
  bool remote_left_ = false;
  std::vector<bool> local_left_;
  std::vector<uint32_t> counted_;  // by slot: generation of local rank 0
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_BOARD_KEEPER_H_
