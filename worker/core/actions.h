// Actions: what ExecutorCore asks ExecutorLogic to do. ExecutorLogic executes
// them in order.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_ACTIONS_H_
#define MAYPOLE_WORKER_CORE_ACTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/absl_status.h"
#include "common/board/board.h"
#include "common/gpu/runner/gpu_run.h"
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
               session::GpuMemoryReply, session::ConnectGpu, session::Notice>
      reply;
};
// Sends Refused and closes the connection.
struct RefuseClient {
  ClientId client = 0;
  Code code = Code::kUnknown;
  std::string text;
};
inline RefuseClient Refusal(ClientId client, const absl::Status& why) {
  const Status status = FromAbsl(why);
  return {client, status.code(), status.message()};
}
struct CloseClient {
  ClientId client = 0;
};
// Watches the process of a client whose connection is about to be closed; then
// calls ExecutorCore::OnProcessEnded if the process ends.
struct KeepWatching {
  ClientId client = 0;
};
// The process has returned, or is no longer expected.
struct StopWatching {
  ClientId client = 0;
};
// Opens a session with the coordinator; messages are queued until it is up.
struct OpenLink {};
// Ends the session.
struct CloseLink {};
struct SendToCoordinator {
  proto::ExecutorMessage message;
};
// A small operation whose inputs the ranks have copied to pool buffers.
struct SmallOperation {
  uint32_t slot = 0;
  uint32_t generation = 0;
  Signature signature;
  NodesEpilogue finish;

  uint64_t bytes() const { return signature.Bytes(); }
};
// Sends the message to the executors of these nodes. Its inputs are what this
// node's ranks have copied for `operations`, reduced.
struct SendToPeers {
  std::vector<uint32_t> nodes;
  proto::PeerMessage message;
  std::vector<SmallOperation> operations = {};
};
// Takes a message of the coordinator that another executor has passed on; its
// sequence numbers are those of this node's session.
struct TakeRelayed {
  std::string incarnation;  // of the coordinator
  proto::CoordinatorMessage message;
};
// Reduces the inputs of this run's nodes in the nodes' order, writes the
// outcomes and queues the tickets.
struct FinishSmall {
  std::vector<SmallOperation> operations;
  // As PeerMessage.inputs, by node of the run; inputs[self] is not used.
  std::vector<std::string> inputs;
  size_t self = 0;
};
// Sets whether ranks that submit this slot's operations should copy their
// inputs (see SlotHeader.wants_copies).
struct WantCopies {
  uint32_t slot = 0;
  bool wanted = false;
};
// Makes the backend of an epoch, then calls ExecutorCore::OnBackendPrepared.
struct PrepareBackend {
  uint64_t epoch = 0;
  uint32_t node_index = 0;
  std::vector<std::string> node_names = {};  // "node n1 (host b)"
  // The address at which the coordinator sees each node; empty if unknown.
  std::vector<std::string> node_addresses = {};
};
// Connects the backend, then calls ExecutorCore::OnBackendConnected.
struct ConnectBackend {
  std::vector<std::string> addresses;
};
// Creates the board, calls ExecutorCore::OnBoardCreated and, if that returns
// true, welcomes the clients (listed by local rank).
struct CreateBoard {
  BoardConfig config;
  uint32_t version = kProtocolVersion;  // of the board and its ranks' sessions
  uint32_t checksums = 0;               // ChecksumMode of the job
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
// Looks for slots that no rank seems to use, then calls
// ExecutorCore::OnIdleSlots.
struct FindIdleSlots {};
// Asks a rank to give slots back, and wakes one of its threads to read the
// message.
struct RecallFrom {
  ClientId client = 0;
  uint32_t local_rank = 0;
  session::SlotRecall message;
};
// Clears a slot whose number no rank knows any more, then calls
// ExecutorCore::OnSlotFreed.
struct FreeSlot {
  uint32_t slot = 0;
};
// Writes on the board what ranks that stand aside must submit.
struct WantSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  Signature signature;
};
// Writes the plan, passes the run to the network thread (unless ranks execute
// it) and queues the ticket.
struct IssueRun {
  RunSpec run;
};
// Makes the memory usable, with the descriptor that came with the request, then
// calls ExecutorCore::OnGpuMemoryOpened.
struct OpenGpuMemory {
  ClientId client = 0;
  GpuMemoryId id;
  session::GpuMemoryRequest request;
};
// Closes the memories of a rank that has left.
struct CloseGpuMemories {
  uint32_t local = 0;
};
// Makes NCCL's unique id, then calls ExecutorCore::OnCommunicatorIdMade.
struct MakeCommunicatorId {
  uint32_t number = 0;
};
struct ConnectGpus {
  GpuCommunicator communicator;
  std::string id;
};
// Executes the run on GPUs, then calls ExecutorCore::OnGpuRunEnded.
struct RunOnGpus {
  GpuRun run;
};
// Queues the ticket of an operation of this node alone that is executed on the
// host, although its tensors are on GPUs.
struct RunOnHost {
  uint32_t slot = 0;
  uint32_t generation = 0;
};
// The operation has succeeded: writes its outcome and queues its ticket.
struct CommitSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
};
struct FailSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  Code code = Code::kFailedPrecondition;
  std::string text;
};
// Marks a rank on the board as left. From then on, operations of this node that
// wait for a rank that has left fail.
struct MarkLeft {
  int rank = 0;
  int local_rank = -1;  // -1: a rank of another node
  std::string text;
};
// Marks a rank of this node on the board as gone: it no longer writes to other
// ranks' memory, because its process has ended or has sent Goodbye. Used when
// the epoch is over.
struct MarkGone {
  int local_rank = 0;
};
struct AbortBoard {
  Code code = Code::kAborted;
  std::string text;
};
// Writes on the board how many ranks want to join or leave an elastic job.
struct WantChange {
  uint32_t ranks = 0;
};
// Releases board and backend.
struct DropEpoch {};
// Sends the executor's statistics to the coordinator.
struct SendStats {
  uint64_t epoch = 0;
};
// Tells the supervisor that the executor has had no clients for a while; the
// supervisor decides whether the executor ends.
struct ReportIdle {};

using Action = std::variant<
    ReplyClient, RefuseClient, CloseClient, KeepWatching, StopWatching,
    OpenLink, CloseLink, SendToCoordinator, SendToPeers, TakeRelayed,
    FinishSmall, WantCopies, PrepareBackend, ConnectBackend, CreateBoard,
    AllotSlot, FindIdleSlots, RecallFrom, FreeSlot, WantSlot, IssueRun,
    OpenGpuMemory, CloseGpuMemories, MakeCommunicatorId, ConnectGpus, RunOnGpus,
    RunOnHost, CommitSlot, FailSlot, MarkLeft, MarkGone, AbortBoard, WantChange,
    DropEpoch, SendStats, ReportIdle>;

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_ACTIONS_H_
