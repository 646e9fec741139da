// Rig: an executor without sockets, for fuzzers: the real core and, on request,
// the real board with the executor's actions on it.
//
// Purpose: executes the core's actions in order, as
// worker/executor/executor_logic.h does, and checks each action first: it must
// not name a client that was released, a slot or record that does not exist, or
// bytes beyond a run.
//
//   Rig rig({.with_board = true});
//   rig.core().OnTime(0);
//   rig.Connect(hello);
//   rig.Do();
//   rig.outbox                 // for the coordinator
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_FUZZ_RIG_H_
#define MAYPOLE_TESTS_FUZZ_RIG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "tests/fuzz/feed.h"
#include "worker/backend/testing/fake_backend.h"
#include "worker/core/executor_core.h"
#include "worker/executor/board/board_keeper.h"
#include "worker/executor/board/counter_sampler.h"
#include "worker/network/network_runner.h"

namespace maypole::fuzz {

struct RigOptions {
  worker::ExecutorCoreOptions core = {.job = "job",
                                      .node = "n0",
                                      .host = "h0",
                                      .slots = 64,
                                      .records = 4,
                                      .chunk_bytes = 4096,
                                      .ring_depth = 2,
                                      .start_timeout_ms = 20000,
                                      .resume_timeout_ms = 3000,
                                      .frozen_timeout_ms = 4000};
  bool with_board = false;
};

class Rig {
 public:
  explicit Rig(RigOptions options);
  ~Rig();

  worker::ExecutorCore& core() { return core_; }
  // Sends Hello as the next client; returns its number.
  worker::ClientId Connect(const session::Hello& hello, int visible_pid);
  // The client has ended, or says Goodbye.
  void Goodbye(worker::ClientId client, uint32_t pending, bool returns);
  void Gone(worker::ClientId client);
  // Dispatches a message as the executor does for a client's socket. Returns
  // false if that ends the connection.
  bool Message(worker::ClientId client, const std::string& bytes);
  // Executes all actions of the core, and those that follow from them.
  void Do();

  // A running epoch's board; null without one.
  worker::BoardKeeper* keeper() { return keeper_.get(); }
  // One turn of the executor's loop and of its network thread.
  void Turn(int64_t now_ms, uint64_t stopped);

  // --- State for the script -------------------------------------------------
  std::set<worker::ClientId> clients;  // connected
  std::set<worker::ClientId> watched;  // closed, their processes looked at
  std::vector<worker::ClientId> welcomed;
  std::vector<proto::ExecutorMessage> outbox;
  uint32_t prepare_nodes = 0;  // 0: nothing to prepare
  bool connecting = false;
  bool fail_board = false;  // the next board cannot be made
  bool epoch_there = false;
  bool link_open = false;
  BoardConfig config;  // of the board
  uint32_t allotted = 0;
  std::vector<worker::AllotSlot> slots;
  std::map<uint32_t, worker::RunSpec> runs;  // issued, by record
  // Not answered yet.
  std::deque<std::pair<worker::ClientId, session::SlotRecall>> recalls;

 private:
  void JudgeBlocks(const worker::RunSpec& run);
  void Perform(worker::ReplyClient& a);
  void Perform(worker::RefuseClient& a);
  void Perform(worker::CloseClient& a);
  void Perform(worker::KeepWatching& a);
  void Perform(worker::StopWatching& a);
  void Perform(worker::OpenLink& a);
  void Perform(worker::CloseLink&) { link_open = false; }
  void Perform(worker::SendToCoordinator& a);
  // The rig has one node, and so no schedules.
  void Perform(worker::SendToPeers&) {}
  void Perform(worker::TakeRelayed&) {}
  void Perform(worker::FinishSmall&) {}
  void Perform(worker::WantCopies&) {}
  void Perform(worker::SendStats&) {}
  void Perform(worker::PrepareBackend& a);
  void Perform(worker::ConnectBackend& a);
  void Perform(worker::CreateBoard& a);
  void Perform(worker::AllotSlot& a);
  void Perform(worker::FindIdleSlots& a);
  void Perform(worker::RecallFrom& a);
  void Perform(worker::FreeSlot& a);
  void Perform(worker::WantSlot& a);
  void Perform(worker::IssueRun& a);
  void Perform(worker::OpenGpuMemory& a);
  void Perform(worker::CloseGpuMemories& a);
  void Perform(worker::MakeCommunicatorId& a);
  void Perform(worker::ConnectGpus& a);
  void Perform(worker::RunOnGpus& a);
  void CheckOnGpus(const GpuOperation& r, bool several);
  void CheckPlace(const GpuOperation& r, const GpuTensor& tensor,
                  uint64_t offset, uint64_t elements);
  void CheckGathered(const GpuOperation& r);
  void Perform(worker::RunOnHost& a);
  void Perform(worker::CommitSlot& a);
  void Perform(worker::FailSlot& a);
  void Perform(worker::MarkLeft& a);
  void Perform(worker::MarkGone& a);
  void Perform(worker::AbortBoard& a);
  void Perform(worker::WantChange& a);
  void Perform(worker::DropEpoch& a);
  void Perform(worker::ReportIdle& a);
  void CheckWork();
  void DropBoard();

  // Bytes of the ranks' memories on GPUs. Odd ones are on GPU 1, others on 0.
  std::map<GpuMemoryId, uint64_t> gpu_memories_;
  const RigOptions options_;
  worker::ExecutorCore core_;
  worker::ClientId next_client_ = 1;
  std::map<uint32_t, uint32_t> generations_;  // of records
  bool aborted_ = false;
  std::unique_ptr<worker::BoardKeeper> keeper_;
  std::unique_ptr<worker::FakeBackend> backend_;
  std::unique_ptr<worker::NetworkRunner> runner_;
  std::vector<uint32_t> freed_;  // records, to be told to the core
  std::set<uint32_t> free_slots_;
  std::unique_ptr<worker::CounterSampler> sampler_;
  std::unique_ptr<worker::StatsPage> stats_;
};

}  // namespace maypole::fuzz

#endif  // MAYPOLE_TESTS_FUZZ_RIG_H_
