// RankSession: the client's end of the connection to its node's executor.
//
// Thread contract: Join() by one thread; afterwards Send* by any thread,
// Receive by one at a time. Nothing blocks after Join().
#ifndef MAYPOLE_CLIENT_SESSION_RANK_SESSION_H_
#define MAYPOLE_CLIENT_SESSION_RANK_SESSION_H_

#include <memory>
#include <string>
#include <vector>

#include "client/bootstrap/rank_options.h"
#include "common/board/board.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

class RankSession {
 public:
  // Meets the node's other ranks if no agent is named; connects to the agent
  // (retrying while its socket is not there yet), says Hello and waits until
  // all ranks of the job have joined, or refuses, or the start timeout ends.
  static Status Join(const RankOptions& options,
                     std::unique_ptr<RankSession>* out);
  ~RankSession();
  // In a child that was forked while another thread was in Join(), or had not
  // yet told anybody of its session.
  static void AbandonJoinInChild();

  const Board& board() const { return *board_; }

  // A session message. kResourceExhausted: the socket is full, try again later.
  Status Send(const void* message, size_t bytes);
  // The options with the agent and with this rank's places in the epoch.
  RankOptions Placed(RankOptions options) const;
  // returns: the process lives on and may join the job's next epoch.
  void SayGoodbye(uint32_t pending, bool returns);
  void WakeExecutor();
  // The board stays mapped.
  void Close() { socket_.Reset(); }

  // The next message that the executor has sent, header checked; empty: none is
  // there. kUnavailable: the executor has gone.
  Status NextMessage(std::vector<char>* message);

  // In a forked child: lets go of everything without saying so.
  void Abandon();

 private:
  Status AwaitWelcome(const RankOptions& options, int timeout_ms);

  Fd socket_;
  Fd executor_wake_;
  std::unique_ptr<Board> board_;
  uint32_t local_rank_ = 0;
  std::string agent_;
  std::string token_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_RANK_SESSION_H_
