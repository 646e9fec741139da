// ExecutorCoreTest: a fixture that holds an ExecutorCore with two local ranks.
#ifndef MAYPOLE_WORKER_CORE_TESTING_CORE_TESTING_H_
#define MAYPOLE_WORKER_CORE_TESTING_CORE_TESTING_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/executor_core.h"

namespace maypole::worker {

inline session::Hello MakeHello(int rank, int size, int local_rank,
                                int local_size) {
  auto hello = session::Make<session::Hello>();
  hello.rank = rank;
  hello.size = size;
  hello.local_rank = local_rank;
  hello.local_size = local_size;
  hello.pid = 100 + rank;
  session::SetText(hello.job, "job");
  session::SetText(hello.host, "hosta");
  return hello;
}

// A core of node n0, with ranks 0 and 1 of a job on `nodes` nodes.
class ExecutorCoreTest : public testing::Test {
 protected:
  explicit ExecutorCoreTest(uint32_t slots = kMaxSlots,
                            uint32_t nccl_version = 0,
                            VersionRange versions = kProtocolVersions)
      : core_({.job = "job",
               .node = "n0",
               .host = "hosta",
               .slots = slots,
               .nccl_version = nccl_version,
               .versions = versions}) {
    core_.OnTime(0);
  }

  // Returns the actions of one type since the last call.
  template <typename T>
  std::vector<T> Take() {
    std::vector<T> out;
    for (Action& a : core_.TakeActions()) {
      if (auto* t = std::get_if<T>(&a)) out.push_back(std::move(*t));
    }
    return out;
  }
  void Drop() { core_.TakeActions(); }

  std::vector<proto::ExecutorMessage> TakeSent() {
    std::vector<proto::ExecutorMessage> out;
    for (auto& s : Take<SendToCoordinator>()) {
      // Messages of no epoch: of ranks that wait, and of a node's whole state.
      const auto& m = out.emplace_back(std::move(s.message));
      EXPECT_TRUE(m.epoch() != 0 || m.has_ranks_ready() ||
                  m.has_ranks_waiting() || m.has_node_state() ||
                  m.has_rank_gone() || m.has_failed())
          << m.ShortDebugString();
    }
    return out;
  }

  void Join(int size) {
    core_.OnClient(1, MakeHello(0, size, 0, 2), 1000);
    core_.OnClient(2, MakeHello(1, size, 1, 2), 1001);
  }

  static proto::CoordinatorMessage StartMessage(uint64_t epoch, int nodes) {
    proto::CoordinatorMessage m;
    proto::EpochStart* start = m.mutable_epoch_start();
    start->set_epoch(epoch);
    start->set_size(static_cast<uint32_t>(2 * nodes));
    start->set_chunk_bytes(524288);
    for (int i = 0; i < nodes; ++i) {
      proto::NodeInfo* node = start->add_nodes();
      node->set_node("n" + std::to_string(i));
      node->set_host("host" + std::to_string(i));
      node->set_address("10.0.0." + std::to_string(i + 1));
      node->set_protocol_version(kProtocolVersion);
      node->add_ranks(static_cast<uint32_t>(2 * i));
      node->add_ranks(static_cast<uint32_t>(2 * i + 1));
    }
    return m;
  }

  void StartOneNode(uint64_t epoch = 1) {
    Join(2);
    core_.OnCoordinator(StartMessage(epoch, 1));
    core_.OnBoardCreated(absl::OkStatus());
    Drop();
  }

  // The ranks of the other of two nodes leave.
  void LeaveElsewhere() {
    for (uint32_t rank = 2; rank < 4; ++rank) {
      proto::CoordinatorMessage m;
      m.set_epoch(1);
      m.mutable_rank_left()->set_rank(rank);
      core_.OnCoordinator(m);
    }
  }
  void StartTwoNodes() {
    Join(4);
    proto::CoordinatorMessage start = StartMessage(1, 2);
    start.mutable_epoch_start()->set_sends_inputs(sends_inputs_);
    core_.OnCoordinator(start);
    core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_endpoints()->add_addresses("");
    m.mutable_endpoints()->add_addresses("b");
    core_.OnCoordinator(m);
    core_.OnBackendConnected(absl::OkStatus());
    core_.OnBoardCreated(absl::OkStatus());
    Drop();
  }

  // Returns the only reply since the last call, which must have this type.
  template <typename T>
  T Reply() {
    const auto replies = Take<ReplyClient>();
    EXPECT_EQ(replies.size(), 1u);
    return replies.empty() ? T{} : std::get<T>(replies[0].reply);
  }

  session::SlotReply Slot(const std::string& name, Kind kind = Kind::kAllreduce,
                          uint32_t process_set = 0, ClientId client = 1) {
    auto request = session::Make<session::SlotRequest>();
    request.request = 7;
    request.process_set = process_set;
    request.kind = static_cast<uint32_t>(kind);
    session::SetText(request.name, name);
    core_.OnSlotRequest(client, request);
    return Reply<session::SlotReply>();
  }

  // Answers request `number`: the coordinator has made a process set.
  void MakeSet(uint32_t number, uint32_t id,
               const std::vector<uint32_t>& ranks) {
    proto::CoordinatorMessage m;
    proto::SetReply* reply = m.mutable_set_reply();
    m.set_epoch(1);
    reply->set_number(number);
    reply->set_process_set(id);
    for (const uint32_t rank : ranks) reply->add_ranks(rank);
    core_.OnCoordinator(m);
  }

  ReadySlot Ready(uint32_t slot, uint32_t generation, Kind kind, int64_t rows0,
                  int64_t rows1) {
    Signature s;
    s.kind = kind;
    s.dtype = DType::kFloat32;
    s.op = Op::kAverage;
    s.dims = kind == Kind::kBarrier ? kMaxDims : 1;
    s.postscale = 0.5;
    if (kind == Kind::kBroadcast) s.root = 2;
    if (kind != Kind::kAllreduce) s.postscale = 1.0;
    ReadySlot ready{slot, generation, {s, s}};
    if (kind != Kind::kBarrier) {
      ready.signatures[0].shape[0] = rows0;
      ready.signatures[1].shape[0] = rows1;
    }
    return ready;
  }

  static proto::Run* AddRun(proto::CoordinatorMessage* m, uint64_t number) {
    m->set_epoch(1);
    proto::Run* run = m->mutable_execute()->add_runs();
    run->set_run(number);
    return run;
  }
  static void AddOperation(proto::Run* run, uint32_t id,
                           const std::string& name, Kind kind,
                           uint32_t generation) {
    proto::RunOperation* op = run->add_operations();
    op->set_id(id);
    op->set_generation(generation);
    if (name.empty()) return;
    op->mutable_identity()->set_kind(static_cast<uint32_t>(kind));
    op->mutable_identity()->set_name(name);
  }

  static proto::CoordinatorMessage EndMessage(uint64_t epoch,
                                              const std::string& text) {
    proto::CoordinatorMessage m;
    m.set_epoch(epoch);
    m.mutable_epoch_end()->set_code(10);
    m.mutable_epoch_end()->set_message(text);
    return m;
  }

  // Of the coordinator, in StartTwoNodes():
  bool sends_inputs_ = false;
  ExecutorCore core_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_TESTING_CORE_TESTING_H_
