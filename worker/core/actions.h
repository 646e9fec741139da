// Actions: what the core asks its shell to do. Carried out in order.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_ACTIONS_H_
#define MAYPOLE_WORKER_CORE_ACTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/board/board.h"
#include "common/status.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/operations/run_spec.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

using ClientId = uint64_t;

struct ReplyClient {
  ClientId client = 0;
  std::variant<session::SlotReply, session::SetReply, session::JoinReply,
               session::Notice>
      reply;
};
// Sends Refused and closes.
struct RefuseClient {
  ClientId client = 0;
  Code code = Code::kUnknown;
  std::string text;
};
struct CloseClient {
  ClientId client = 0;
};
// The client is about to be closed, but its process means to come back:
// ExecutorCore::OnProcessEnded says when it cannot any more.
struct KeepWatching {
  ClientId client = 0;
};
// It has come back, or nobody waits for it any more.
struct StopWatching {
  ClientId client = 0;
};
// Opens a session with the coordinator; messages wait until it stands.
struct OpenLink {};
struct SendToCoordinator {
  proto::ExecutorMessage message;
};
// Makes the backend of an epoch: ExecutorCore::OnBackendPrepared answers.
struct PrepareBackend {
  uint64_t epoch = 0;
  uint32_t node_index = 0;
  std::vector<std::string> node_names;  // "node n1 (host b)"
  // Where the coordinator sees each node; empty: unknown.
  std::vector<std::string> node_addresses;
};
// ExecutorCore::OnBackendConnected answers.
struct ConnectBackend {
  std::vector<std::string> addresses;
};
// Creates the board and welcomes the clients (by local rank):
// ExecutorCore::OnBoardCreated answers.
struct CreateBoard {
  BoardConfig config;
  std::vector<ClientId> clients;
  std::vector<int> pids;
};
struct AllotSlot {
  uint32_t slot = 0;
  Kind kind = Kind::kBarrier;
  std::string name;
  SharedSet set;
  uint32_t splits = 0;  // as SlotHeader's on the board
  uint32_t base = 0;
};
// Looks for slots that no rank seems to use: ExecutorCore::OnIdleSlots answers.
struct FindIdleSlots {};
// Asks a rank for slots, and sees to it that one of its threads reads that.
struct RecallFrom {
  ClientId client = 0;
  uint32_t local_rank = 0;
  session::SlotRecall message;
};
// No rank knows the slot's number any more: ExecutorCore::OnSlotFreed answers.
struct FreeSlot {
  uint32_t slot = 0;
};
// Says on the board what members that stand aside shall submit.
struct WantSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  Signature signature;
};
// Writes the Plan, gives the run to the network thread, places the ticket.
struct IssueRun {
  RunSpec run;
};
struct FailSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  Code code = Code::kFailedPrecondition;
  std::string text;
};
// Says on the board that a rank has left, and from then on fails operations
// that wait on this node for a rank that cannot come.
struct MarkLeft {
  int rank = 0;
  int local_rank = -1;  // -1: a rank of another node
  std::string text;
};
// Says on the board that a rank of this node writes to nobody's memory any
// more: its process has ended, or said Goodbye. The epoch is over.
struct MarkGone {
  int local_rank = 0;
};
struct AbortBoard {
  Code code = Code::kAborted;
  std::string text;
};
// Says on the board how many ranks want to come into an elastic job, or out.
struct WantChange {
  uint32_t ranks = 0;
};
// Forgets board and backend.
struct DropEpoch {};
// No clients for a while: the supervisor decides whether the executor ends.
struct ReportIdle {};

using Action =
    std::variant<ReplyClient, RefuseClient, CloseClient, KeepWatching,
                 StopWatching, OpenLink, SendToCoordinator, PrepareBackend,
                 ConnectBackend, CreateBoard, AllotSlot, FindIdleSlots,
                 RecallFrom, FreeSlot, WantSlot, IssueRun, FailSlot, MarkLeft,
                 MarkGone, AbortBoard, WantChange, DropEpoch, ReportIdle>;

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_ACTIONS_H_
