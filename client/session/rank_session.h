// RankSession: the rank's end of the connection to its node's executor.
//
// Thread contract: one thread calls Join(); after that, any thread may call
// Close() and the sending functions, and one thread at a time NextMessage().
// Only Join() blocks.
#ifndef MAYPOLE_CLIENT_SESSION_RANK_SESSION_H_
#define MAYPOLE_CLIENT_SESSION_RANK_SESSION_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "client/bootstrap/rank_options.h"
#include "common/board/board.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "common/wire/unix_socket.h"

namespace maypole {

class RankSession {
 public:
  // Finds the node's agent (client/bootstrap/) if the options name none,
  // connects to it (retrying for a few seconds if it does not listen yet),
  // sends Hello and waits until all ranks of the job have joined. Fails if the
  // agent refuses this rank or the start timeout has passed.
  static Status Join(const RankOptions& options,
                     std::unique_ptr<RankSession>* out);
  ~RankSession();
  // For a child that was forked while another thread was in Join(), or before
  // that thread had stored its session in a client.
  static void AbandonJoinInChild();

  const Board& board() const { return *board_; }
  // True if the job compares results by checksum.
  bool checksums() const { return checksums_; }

  // Sends a session message in the session's version, with a descriptor if fd
  // is not -1. kResourceExhausted: the socket is full; try again later.
  Status Send(const void* message, size_t bytes, int fd = -1);
  // Returns `options` with the agent and with this rank's numbers in the epoch.
  RankOptions Placed(RankOptions options) const;
  void WakeExecutor();
  // Ends the connection, even if other threads are sending: what they send is
  // lost. The descriptor stays open until the destructor, so no other file gets
  // its number; the board stays mapped.
  void Close();

  // Reads the executor's next message, with the descriptors that came with it,
  // and checks its header. *message is empty if there is none. kUnavailable:
  // the executor has gone.
  Status NextMessage(std::vector<char>* message, std::vector<Fd>* descriptors);

  // For a forked child: closes and unmaps everything without a goodbye.
  void Abandon();

 private:
  // Connects to the agent, says hello and waits for the welcome. Sets *closed
  // if the connection was closed without a message, by another agent than the
  // time before.
  Status Enter(const RankOptions& options,
               std::chrono::steady_clock::time_point deadline, bool* closed);
  Status AwaitWelcome(const RankOptions& options, int timeout_ms, bool* closed);
  Status TakeWelcome(const RankOptions& options, Received received);
  // What this rank waits for: "the other 3 ranks of job j".
  std::string Awaited(const RankOptions& options) const;

  Fd socket_;
  Fd executor_wake_;
  std::unique_ptr<Board> board_;
  uint32_t version_ = kProtocolVersion;  // of the session: as Welcome says
  uint32_t local_rank_ = 0;
  bool checksums_ = false;
  std::string agent_;
  int agent_pid_ = -1;  // 0: not known
  std::string token_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_RANK_SESSION_H_
