// The core's events in many orders; no sockets, threads or clocks.
#include "worker/core/core.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

session::Hello MakeHello(int rank, int size, int local_rank, int local_size) {
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
class CoreTest : public testing::Test {
 protected:
  CoreTest() : core_({.job = "job", .node = "n0", .host = "hosta"}) {
    core_.OnTime(0);
  }

  // What the core asked for since the last call, of one type.
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
    for (auto& s : Take<SendToCoordinator>()) out.push_back(s.message);
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
    for (int i = 0; i < nodes; ++i) {
      proto::NodeInfo* node = start->add_nodes();
      node->set_node("n" + std::to_string(i));
      node->set_host("host" + std::to_string(i));
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

  void StartTwoNodes() {
    Join(4);
    core_.OnCoordinator(StartMessage(1, 2));
    core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
    proto::CoordinatorMessage m;
    m.mutable_endpoints()->set_epoch(1);
    m.mutable_endpoints()->add_addresses("");
    m.mutable_endpoints()->add_addresses("b");
    core_.OnCoordinator(m);
    core_.OnBackendConnected(absl::OkStatus());
    core_.OnBoardCreated(absl::OkStatus());
    Drop();
  }

  // The one reply of this type since the last call.
  template <typename T>
  T Reply() {
    const auto replies = Take<ReplyClient>();
    EXPECT_EQ(replies.size(), 1u);
    return replies.empty() ? T{} : std::get<T>(replies[0].reply);
  }

  session::SlotReply Slot(const std::string& name,
                          Kind kind = Kind::kAllreduce) {
    auto request = session::Make<session::SlotRequest>();
    request.request = 7;
    request.kind = static_cast<uint32_t>(kind);
    session::SetText(request.name, name);
    core_.OnSlotRequest(1, request);
    return Reply<session::SlotReply>();
  }

  SlotNews News(uint32_t slot, uint32_t generation, Kind kind, int64_t rows0,
                int64_t rows1) {
    Signature s;
    s.kind = kind;
    s.dtype = DType::kFloat32;
    s.op = Op::kAverage;
    s.dims = kind == Kind::kBarrier ? kMaxDims : 1;
    s.postscale = 0.5;
    if (kind == Kind::kBroadcast) s.root = 2;
    if (kind != Kind::kAllreduce) s.postscale = 1.0;
    SlotNews news{slot, generation, {s, s}};
    if (kind != Kind::kBarrier) {
      news.signatures[0].shape[0] = rows0;
      news.signatures[1].shape[0] = rows1;
    }
    return news;
  }

  static proto::Run* AddRun(proto::CoordinatorMessage* m, uint64_t number) {
    m->mutable_execute()->set_epoch(1);
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
    m.mutable_epoch_end()->set_epoch(epoch);
    m.mutable_epoch_end()->set_code(10);
    m.mutable_epoch_end()->set_message(text);
    return m;
  }

  Core core_;
};

TEST_F(CoreTest, RanksReadyWhenAllLocalRanksAreThere) {
  core_.OnClient(1, MakeHello(1, 2, 1, 2), 1001);
  EXPECT_EQ(Take<OpenLink>().size(), 1u);
  core_.OnClient(2, MakeHello(0, 2, 0, 2), 1000);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::RanksReady& ready = sent[0].ranks_ready();
  EXPECT_EQ(ready.chunk_bytes(), 524288u);
  EXPECT_EQ(ready.size(), 2u);
  ASSERT_EQ(ready.ranks_size(), 2);
  EXPECT_EQ(ready.ranks(0), 0u);
  EXPECT_EQ(ready.pids(1), 101);
}

TEST_F(CoreTest, TheRanksFusionThresholdsAreTold) {
  session::Hello first = MakeHello(0, 2, 0, 2);
  first.fusion_threshold = 0;
  core_.OnClient(1, first, 1000);
  session::Hello bad = MakeHello(1, 2, 1, 2);
  bad.fusion_threshold = -2;
  core_.OnClient(2, bad, 1001);
  EXPECT_EQ(Take<RefuseClient>().at(0).client, 2u);
  core_.OnClient(3, MakeHello(1, 2, 1, 2), 1001);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const auto& ready = sent.back().ranks_ready();
  ASSERT_EQ(ready.fusion_thresholds_size(), 2);
  EXPECT_EQ(ready.fusion_thresholds(0), 0);
  EXPECT_EQ(ready.fusion_thresholds(1), -1);
}

TEST_F(CoreTest, OneNodeNeedsNoBackend) {
  Join(2);
  Drop();
  core_.OnCoordinator(StartMessage(4, 1));
  const auto created = Take<CreateBoard>();
  ASSERT_EQ(created.size(), 1u);
  EXPECT_EQ(created[0].config.epoch, 4u);
  EXPECT_EQ(created[0].config.nodes, 1u);
  EXPECT_EQ(created[0].config.global_rank[1], 1);
  EXPECT_EQ(created[0].clients, (std::vector<ClientId>{1, 2}));
  core_.OnBoardCreated(absl::OkStatus());
  EXPECT_EQ(Slot("x").negotiated, 0u);
  // Ranks run their operations themselves: nothing is reported.
  core_.OnNews(News(0, 1, Kind::kAllreduce, 8, 8));
  EXPECT_TRUE(TakeSent().empty());
}

TEST_F(CoreTest, WrongHelloIsRefusedAndTouchesNobodyElse) {
  core_.OnClient(1, MakeHello(0, 2, 0, 2), 0);
  core_.OnClient(2, MakeHello(1, 3, 1, 2), 0);
  core_.OnClient(3, MakeHello(0, 2, 1, 2), 0);
  core_.OnClient(4, MakeHello(1, 2, 0, 2), 0);
  core_.OnClient(5, MakeHello(1, 2, 5, 2), 0);
  core_.OnClient(6, MakeHello(7, 2, 1, 2), 0);
  core_.OnClient(7, MakeHello(1, 0, 1, 2), 0);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 6u);
  EXPECT_EQ(refused[0].text,
            "rank 1 says that the job has 3 ranks, rank 0 has said 2; give all "
            "ranks the same MAYPOLE_SIZE");
  EXPECT_EQ(refused[1].text,
            "rank 0 is connected already (pid 100); is the job started twice "
            "with one MAYPOLE_JOB?");
  EXPECT_EQ(refused[2].text,
            "rank 1 has local rank 0, and so has rank 0; each rank of a node "
            "needs its own MAYPOLE_LOCAL_RANK");
  EXPECT_EQ(refused[4].client, 6u);
  core_.OnClient(8, MakeHello(1, 2, 1, 2), 0);
  EXPECT_EQ(TakeSent().size(), 1u);
}

TEST_F(CoreTest, MissingLocalRankIsNamedAfterTheStartTimeout) {
  core_.OnClient(1, MakeHello(0, 2, 0, 2), 0);
  core_.OnTime(120999);  // the coordinator goes first
  EXPECT_TRUE(Take<RefuseClient>().empty());
  core_.OnTime(121000);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].text,
            "job 'job' cannot start: local rank 1 of 2 has not called init() "
            "on node n0 (host hosta) within 120 s");
  core_.OnClientGone(1, "its connection closed");
  EXPECT_TRUE(TakeSent().empty());  // nobody has died
}

TEST_F(CoreTest, TheCoordinatorIsToldWhoWaits) {
  core_.OnClient(1, MakeHello(2, 4, 0, 2), 0);
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].ranks_waiting().size(), 4u);
  EXPECT_EQ(sent[0].ranks_waiting().local_size(), 2u);
  ASSERT_EQ(sent[0].ranks_waiting().ranks_size(), 1);
  EXPECT_EQ(sent[0].ranks_waiting().ranks(0), 2u);
  core_.OnClientGone(1, "its connection closed");
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].has_ranks_waiting());
  EXPECT_EQ(sent[0].ranks_waiting().ranks_size(), 0);
}

TEST_F(CoreTest, TheCoordinatorsSentenceReachesRanksThatWaitForLocalOnes) {
  core_.OnClient(1, MakeHello(0, 4, 0, 2), 0);
  Drop();
  core_.OnCoordinator(EndMessage(0, "rank 1 of 4 has not called init()"));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].client, 1u);
  EXPECT_EQ(refused[0].text, "rank 1 of 4 has not called init()");
  core_.OnClientGone(1, "its connection closed");
  EXPECT_TRUE(TakeSent().empty());
  Join(4);
  EXPECT_TRUE(TakeSent().back().has_ranks_ready());
}

TEST_F(CoreTest, AStartThatTimedOutWhileTheLastRankCameIsGivenUp) {
  Join(4);
  Drop();
  core_.OnCoordinator(EndMessage(0, "rank 1 of 4 has not called init()"));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].has_ranks_waiting());
  EXPECT_EQ(sent[0].ranks_waiting().ranks_size(), 0);
}

TEST_F(CoreTest, FailedStartIsToldToAllLocalRanks) {
  Join(4);
  Drop();
  core_.OnCoordinator(EndMessage(0, "ranks 2,3 did not come"));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[1].text, "ranks 2,3 did not come");
  // They may try again.
  Join(4);
  EXPECT_TRUE(TakeSent().back().has_ranks_ready());
}

TEST_F(CoreTest, RankThatDiesWhileStartingFailsTheStart) {
  Join(4);
  Drop();
  core_.OnClientGone(2, "its connection closed without shutdown");
  auto actions = core_.TakeActions();
  const auto* sent = std::get_if<SendToCoordinator>(&actions.at(0));
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->message.rank_gone().epoch(), 0u);
  EXPECT_FALSE(sent->message.rank_gone().clean());
  EXPECT_EQ(sent->message.rank_gone().how(),
            "its connection closed without shutdown");
  const auto* refused = std::get_if<RefuseClient>(&actions.at(1));
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->client, 1u);
  EXPECT_EQ(refused->text,
            "the job cannot start: rank 1 (pid 101, host hosta, node n0) died: "
            "its connection closed without shutdown");
  // The start crossed our message: it is not for these ranks any more.
  core_.OnCoordinator(StartMessage(1, 2));
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(CoreTest, EpochStartThatDoesNotFitIsRefused) {
  Join(4);
  Drop();
  auto m = StartMessage(1, 2);
  m.mutable_epoch_start()->set_node_index(1);
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<RefuseClient>().size(), 2u);
  Join(4);
  Drop();
  m.mutable_epoch_start()->set_node_index(77);
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<RefuseClient>().size(), 2u);
}

TEST_F(CoreTest, BackendThatCannotConnectFailsTheStart) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  Drop();
  core_.OnBackendPrepared(absl::UnavailableError("no such address"));
  auto sent = core_.TakeActions();
  EXPECT_EQ(std::get<SendToCoordinator>(sent.at(0)).message.failed().message(),
            "no such address");
  EXPECT_EQ(std::get<RefuseClient>(sent.at(1)).text, "no such address");
}

// A rank of another node may run, and die, before this node has its board.
TEST_F(CoreTest, NobodyIsWelcomeWhenTheStartFailsWhileTheBoardIsMade) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  core_.OnBackendPrepared(std::vector<std::string>{"address"});
  proto::CoordinatorMessage endpoints;
  endpoints.mutable_endpoints()->set_epoch(1);
  core_.OnCoordinator(endpoints);
  core_.OnBackendConnected(absl::OkStatus());
  Drop();
  core_.OnCoordinator(EndMessage(1, "rank 2 was lost"));
  EXPECT_FALSE(core_.OnBoardCreated(absl::OkStatus()));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].text, "rank 2 was lost");
}

TEST_F(CoreTest, PresenceIsBatchedWhileOneIsUnacknowledged) {
  StartTwoNodes();
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(Slot(name).negotiated, 1u);
  }
  core_.OnNews(News(0, 1, Kind::kAllreduce, 8, 8));
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const auto& op = sent[0].presence().operations(0);
  EXPECT_EQ(op.identity().name(), "a");
  EXPECT_EQ(op.generation(), 1u);
  ASSERT_EQ(op.signatures_size(), 1);
  EXPECT_EQ(op.signatures(0).ranks_size(), 2);
  core_.OnNews(News(1, 1, Kind::kAllreduce, 8, 8));
  core_.OnNews(News(2, 1, Kind::kAllreduce, 8, 9));
  core_.OnNews(News(2, 1, Kind::kAllreduce, 8, 9));  // the bit came twice
  EXPECT_TRUE(TakeSent().empty());
  core_.OnPresenceAcknowledged();
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].presence().operations_size(), 2);
  // Ranks that differ are told apart.
  EXPECT_EQ(sent[0].presence().operations(1).signatures_size(), 2);
  EXPECT_EQ(sent[0].presence().operations(1).signatures(1).ranks(0), 1u);
  core_.OnPresenceAcknowledged();
  EXPECT_TRUE(TakeSent().empty());
}

TEST_F(CoreTest, AWaitIsToldOncePerGeneration) {
  StartTwoNodes();
  Slot("a");
  Slot("b");
  core_.OnNews(News(0, 1, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations(0).urgency(), 0u);
  SlotNews waited = News(0, 1, Kind::kAllreduce, 8, 8);
  waited.urgency = Urgency::kAwaited;
  core_.OnNews(waited);
  core_.OnNews(waited);
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations_size(), 0);
  ASSERT_EQ(sent[0].presence().urgent_size(), 1);
  EXPECT_EQ(sent[0].presence().urgent(0).identity().name(), "a");
  EXPECT_EQ(sent[0].presence().urgent(0).generation(), 1u);
  // It waits for the acknowledgement like any news, with what comes meanwhile.
  SlotNews immediate = News(1, 1, Kind::kAllreduce, 8, 8);
  immediate.urgency = Urgency::kImmediate;
  core_.OnNews(immediate);
  EXPECT_TRUE(TakeSent().empty());
  core_.OnPresenceAcknowledged();
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations(0).urgency(), 2u);
  EXPECT_EQ(sent[0].presence().urgent_size(), 0);
  core_.OnPresenceAcknowledged();
  core_.OnNews(immediate);
  EXPECT_TRUE(TakeSent().empty());
}

TEST_F(CoreTest, AWaitForWhatRunsAlreadyIsNotTold) {
  StartTwoNodes();
  Slot("a");
  core_.OnNews(News(0, 1, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 11, "a", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  Drop();
  SlotNews waited = News(0, 1, Kind::kAllreduce, 8, 8);
  waited.urgency = Urgency::kAwaited;
  core_.OnNews(waited);
  EXPECT_TRUE(TakeSent().empty());
  // The next generation is another matter; by id now.
  core_.OnNews(News(0, 2, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  Drop();
  waited.generation = 2;
  core_.OnNews(waited);
  EXPECT_EQ(TakeSent().at(0).presence().urgent(0).id(), 11u);
}

TEST_F(CoreTest, ExecuteBecomesAFusedRun) {
  StartTwoNodes();
  Slot("a");
  Slot("b");
  core_.OnNews(News(0, 1, Kind::kAllreduce, 5, 5));
  core_.OnNews(News(1, 1, Kind::kAllreduce, 100, 100));
  Drop();
  proto::CoordinatorMessage m;
  proto::Run* run = AddRun(&m, 1);
  AddOperation(run, 11, "b", Kind::kAllreduce, 1);
  AddOperation(run, 12, "a", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  const RunSpec& spec = issued[0].run;
  EXPECT_EQ(spec.kind, Kind::kAllreduce);
  EXPECT_EQ(spec.dtype, DType::kFloat32);
  EXPECT_EQ(spec.finish.divisor, 4);
  EXPECT_EQ(spec.finish.scale, 0.5);
  EXPECT_EQ(spec.generation, 1u);
  ASSERT_EQ(spec.operations.size(), 2u);
  EXPECT_EQ(spec.operations[0].slot, 1u);
  EXPECT_EQ(spec.operations[1].slot, 0u);
  EXPECT_EQ(spec.operations[1].offset, 448u);  // 400 rounded up to 64
  EXPECT_EQ(spec.bytes, 448u + 20u);
  // From now on the id is known.
  core_.OnPresenceAcknowledged();  // of a
  core_.OnPresenceAcknowledged();  // of b, which followed it
  Drop();
  core_.OnNews(News(0, 2, Kind::kAllreduce, 5, 5));
  const auto sent = TakeSent();
  EXPECT_EQ(sent.at(0).presence().operations(0).id(), 12u);
  EXPECT_FALSE(sent[0].presence().operations(0).has_identity());
}

TEST_F(CoreTest, AllgatherSpaceIsByGlobalRank) {
  StartTwoNodes();
  Slot("g", Kind::kAllgather);
  core_.OnNews(News(0, 1, Kind::kAllgather, 3, 0));
  EXPECT_EQ(TakeSent().at(0).presence().operations(0).first_dims(0), 3);
  proto::CoordinatorMessage m;
  proto::Run* run = AddRun(&m, 1);
  AddOperation(run, 1, "g", Kind::kAllgather, 1);
  for (int64_t d : {3, 0, 2, 5}) run->add_first_dims(d);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].run.bytes, 40u);
  EXPECT_EQ(issued[0].run.first_dims, (std::vector<int64_t>{3, 0, 2, 5}));
  EXPECT_EQ(issued[0].run.blocks, (std::vector<Block>{{0, kAllNodes, 0, 12},
                                                      {1, kAllNodes, 12, 40}}));
}

TEST_F(CoreTest, BroadcastBelongsToTheRootsNodeAndBarrierHasNoBytes) {
  StartTwoNodes();
  Slot("b", Kind::kBroadcast);
  Slot("w", Kind::kBarrier);
  core_.OnNews(News(0, 1, Kind::kBroadcast, 4, 4));
  core_.OnNews(News(1, 1, Kind::kBarrier, 0, 0));
  Drop();
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 1, "b", Kind::kBroadcast, 1);
  AddOperation(AddRun(&m, 2), 2, "w", Kind::kBarrier, 1);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 2u);
  EXPECT_EQ(issued[0].run.blocks, (std::vector<Block>{{1, kAllNodes, 0, 16}}));
  EXPECT_EQ(issued[1].run.bytes, 0u);
}

TEST_F(CoreTest, ExecuteThatDoesNotFitEndsTheEpoch) {
  StartTwoNodes();
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 1, "never", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  auto actions = core_.TakeActions();
  EXPECT_TRUE(std::get<SendToCoordinator>(actions.at(0)).message.has_failed());
  EXPECT_EQ(std::get<AbortBoard>(actions.at(1)).code, Code::kInternal);
}

TEST_F(CoreTest, SignatureThatCannotBeEndsTheEpochAndNamesTheRank) {
  StartTwoNodes();
  Slot("a");
  SlotNews news = News(0, 1, Kind::kAllreduce, 8, 8);
  news.signatures[1].dims = 200;
  core_.OnNews(news);
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_NE(aborted[0].text.find("rank 1 (node n0"), std::string::npos)
      << aborted[0].text;
}

TEST_F(CoreTest, OperationFailedReachesTheSlotEvenIfNoRankUsedIt) {
  StartTwoNodes();
  Slot("a");
  proto::CoordinatorMessage m;
  proto::OperationFailed* failed = m.mutable_operation_failed();
  failed->set_epoch(1);
  failed->set_id(5);
  failed->set_generation(1);
  failed->mutable_identity()->set_name("unused");
  failed->set_message("mismatch");
  core_.OnCoordinator(m);
  auto actions = core_.TakeActions();
  EXPECT_EQ(std::get<AllotSlot>(actions.at(0)).slot, 1u);
  const auto& fail = std::get<FailSlot>(actions.at(1));
  EXPECT_EQ(fail.slot, 1u);
  EXPECT_EQ(fail.generation, 1u);
  EXPECT_EQ(fail.text, "mismatch");
}

TEST_F(CoreTest, DeathAbortsAtOnceAndTheNextEpochCanFollow) {
  StartTwoNodes();
  core_.OnClientGone(2, "its process ended");
  auto actions = core_.TakeActions();
  const auto& gone =
      std::get<SendToCoordinator>(actions.at(0)).message.rank_gone();
  EXPECT_EQ(gone.epoch(), 1u);
  EXPECT_EQ(gone.rank(), 1u);
  EXPECT_FALSE(gone.clean());
  EXPECT_EQ(std::get<AbortBoard>(actions.at(1)).text,
            "rank 1 (pid 101, host hosta, node n0) died: its process ended");
  EXPECT_EQ(std::get<MarkGone>(actions.at(2)).local_rank, 1);
  core_.OnCoordinator(EndMessage(1, "rank 1 was lost"));  // no second abort
  EXPECT_TRUE(core_.TakeActions().empty());
  // Rank 1 comes again while rank 0 is still there.
  core_.OnClient(3, MakeHello(1, 4, 1, 2), 0);
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnGoodbye(1, 1);
  actions = core_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<CloseClient>(actions.at(0)));
  EXPECT_TRUE(std::holds_alternative<DropEpoch>(actions.at(1)));
  core_.OnClient(4, MakeHello(0, 4, 0, 2), 0);
  EXPECT_TRUE(TakeSent().at(0).has_ranks_ready());
}

TEST_F(CoreTest, GoodbyeWithPendingOperationsEndsTheEpoch) {
  StartOneNode();
  core_.OnGoodbye(2, 2);
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0].text,
            "rank 1 (pid 101, host hosta, node n0) has shut down with 2 "
            "operations pending");
}

TEST_F(CoreTest, CleanGoodbyeMarksTheRank) {
  StartTwoNodes();
  core_.OnGoodbye(2, 0);
  auto actions = core_.TakeActions();
  EXPECT_TRUE(
      std::get<SendToCoordinator>(actions.at(1)).message.rank_gone().clean());
  EXPECT_EQ(std::get<MarkLeft>(actions.at(2)).local_rank, 1);
  // Its echo from the coordinator is no second departure.
  proto::CoordinatorMessage m;
  m.mutable_rank_left()->set_epoch(1);
  m.mutable_rank_left()->set_rank(1);
  core_.OnCoordinator(m);
  EXPECT_TRUE(Take<MarkLeft>().empty());
  m.mutable_rank_left()->set_rank(2);
  m.mutable_rank_left()->set_message("rank 2 has shut down");
  core_.OnCoordinator(m);
  const auto left = Take<MarkLeft>();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].local_rank, -1);
  EXPECT_EQ(left[0].text, "rank 2 has shut down");
}

TEST_F(CoreTest, BackendStaysUntilAllRanksOfTheJobHaveLeft) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  EXPECT_TRUE(Take<DropEpoch>().empty());
  proto::CoordinatorMessage m;
  m.mutable_rank_left()->set_epoch(1);
  for (uint32_t rank : {0u, 1u, 2u, 3u}) {
    EXPECT_TRUE(Take<DropEpoch>().empty());
    m.mutable_rank_left()->set_rank(rank);
    core_.OnCoordinator(m);
  }
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
}

TEST_F(CoreTest, WhatComesWhileStartingIsDoneWhenTheBoardIsThere) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
  proto::CoordinatorMessage failed;
  failed.mutable_operation_failed()->set_epoch(1);
  failed.mutable_operation_failed()->set_id(1);
  failed.mutable_operation_failed()->set_generation(1);
  failed.mutable_operation_failed()->set_code(9);
  failed.mutable_operation_failed()->set_message("rank 2 has left");
  failed.mutable_operation_failed()->mutable_identity()->set_name("x");
  core_.OnCoordinator(failed);
  proto::CoordinatorMessage m;
  m.mutable_endpoints()->set_epoch(1);
  m.mutable_endpoints()->add_addresses("");
  m.mutable_endpoints()->add_addresses("b");
  core_.OnCoordinator(m);
  proto::CoordinatorMessage left;
  left.mutable_rank_left()->set_epoch(1);
  left.mutable_rank_left()->set_rank(2);
  left.mutable_rank_left()->set_message("rank 2 has left");
  core_.OnCoordinator(left);
  core_.OnBackendConnected(absl::OkStatus());
  Drop();
  core_.OnBoardCreated(absl::OkStatus());
  const std::vector<Action> actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 3u);  // AllotSlot first
  ASSERT_TRUE(std::holds_alternative<FailSlot>(actions[1]));
  EXPECT_EQ(std::get<FailSlot>(actions[1]).text, "rank 2 has left");
  ASSERT_TRUE(std::holds_alternative<MarkLeft>(actions[2]));
  EXPECT_EQ(std::get<MarkLeft>(actions[2]).text, "rank 2 has left");
}

TEST_F(CoreTest, WhatCameForAStartThatFailedIsForgotten) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  proto::CoordinatorMessage left;
  left.mutable_rank_left()->set_epoch(1);
  left.mutable_rank_left()->set_rank(2);
  left.mutable_rank_left()->set_message("rank 2 has left");
  core_.OnCoordinator(left);
  core_.OnCoordinator(EndMessage(1, "node n1 was lost"));
  StartOneNode(2);
  EXPECT_TRUE(Take<MarkLeft>().empty());
}

TEST_F(CoreTest, ARequestAfterAnAbortIsAnsweredWithItsReason) {
  StartOneNode();
  core_.OnClientGone(2, "its process ended without shutdown");
  Drop();
  const session::SlotReply reply = Slot("x");
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kAborted));
  EXPECT_EQ(std::string(reply.text),
            "rank 1 (pid 101, host hosta, node n0) died: its process ended "
            "without shutdown");
}

TEST_F(CoreTest, NextEpochStartsWhileTheLastOneDrains) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  Drop();
  Join(4);
  EXPECT_TRUE(TakeSent().back().has_ranks_ready());
  core_.OnCoordinator(StartMessage(2, 2));
  const auto actions = core_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<DropEpoch>(actions.at(0)));
  EXPECT_EQ(std::get<PrepareBackend>(actions.at(1)).node_names.at(1),
            "node n1 (host host1)");
}

TEST_F(CoreTest, NetworkFailureWaitsForTheCoordinatorsReason) {
  StartTwoNodes();
  core_.OnTime(1000);
  core_.OnNetworkFailed(absl::UnavailableError("connection reset"));
  core_.OnTime(3000);
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnCoordinator(EndMessage(1, "the executor of node n1 was lost"));
  EXPECT_EQ(Take<AbortBoard>().at(0).text, "the executor of node n1 was lost");
  core_.OnTime(10000);
  EXPECT_TRUE(Take<AbortBoard>().empty());
}

TEST_F(CoreTest, NetworkFailureAloneEndsTheEpochAfterABound) {
  StartTwoNodes();
  core_.OnTime(1000);
  core_.OnNetworkFailed(absl::UnavailableError("connection reset"));
  core_.OnTime(1000 + 3000 + kBackendGraceMs);
  auto actions = core_.TakeActions();
  EXPECT_TRUE(std::get<SendToCoordinator>(actions.at(0)).message.has_failed());
  EXPECT_EQ(std::get<AbortBoard>(actions.at(1)).text,
            "the network between nodes failed on node n0 (host hosta): "
            "connection reset");
}

TEST_F(CoreTest, LostCoordinatorEndsARunningEpochAndIsSoughtAnewLater) {
  StartOneNode();
  core_.OnLinkLost(absl::UnavailableError("coordinator x:1 lost"));
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0].code, Code::kUnavailable);
  EXPECT_EQ(aborted[0].text, "coordinator x:1 lost");
  core_.OnGoodbye(1, 1);
  core_.OnGoodbye(2, 1);
  Drop();
  Join(2);
  const auto actions = core_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<OpenLink>(actions.at(0)));
}

TEST_F(CoreTest, LostCoordinatorRefusesThoseWhoWait) {
  Join(2);
  core_.OnClient(3, MakeHello(0, 2, 0, 2), 0);  // rank 0 twice: refused
  Drop();
  core_.OnLinkLost(absl::PermissionDeniedError("wrong secret"));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].code, Code::kPermissionDenied);
}

TEST_F(CoreTest, FullSlotTableSaysWhatToDo) {
  Core core({.job = "job", .node = "n0", .host = "h", .slots = 64});
  core.OnClient(1, MakeHello(0, 1, 0, 1), 0);
  auto m = StartMessage(1, 1);
  m.mutable_epoch_start()->set_size(1);
  m.mutable_epoch_start()->mutable_nodes(0)->mutable_ranks()->RemoveLast();
  core.OnCoordinator(m);
  core.OnBoardCreated(absl::OkStatus());
  core.TakeActions();
  for (int i = 0; i < 65; ++i) {
    auto request = session::Make<session::SlotRequest>();
    session::SetText(request.name, "n" + std::to_string(i));
    core.OnSlotRequest(1, request);
  }
  const auto actions = core.TakeActions();
  const auto& last =
      std::get<session::SlotReply>(std::get<ReplyClient>(actions.back()).reply);
  EXPECT_EQ(last.code, static_cast<uint32_t>(Code::kResourceExhausted));
  EXPECT_NE(std::string(last.text).find("--slots"), std::string::npos);
}

TEST_F(CoreTest, RequestsThatCannotBeAreAnswered) {
  StartOneNode();
  EXPECT_EQ(Slot("").code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(Slot("x", Kind::kJoin).code,
            static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(Slot("x", static_cast<Kind>(200)).code,
            static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(Slot("x").code, 0u);
  EXPECT_EQ(Slot("x").slot, Slot("x").slot);
}

TEST_F(CoreTest, IdleExecutorAsksToEnd) {
  StartOneNode();
  core_.OnTime(100000);
  EXPECT_TRUE(Take<ReportIdle>().empty());
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  core_.OnTime(100000 + kIdleMs - 1);
  EXPECT_TRUE(Take<ReportIdle>().empty());
  core_.OnTime(100000 + kIdleMs);
  EXPECT_EQ(Take<ReportIdle>().size(), 1u);
}

TEST_F(CoreTest, StopTellsEverybody) {
  StartOneNode();
  core_.OnClient(9, MakeHello(0, 2, 0, 2), 0);
  Drop();
  core_.OnStop("stopped");
  EXPECT_EQ(Take<AbortBoard>().at(0).text, "stopped");
}

// Records are given out again only when all local ranks have left them.
TEST(RunQueueTest, WaitsForAFreeRecord) {
  SlotTable slots(64);
  SetTable sets({0, 1}, {0});
  bool is_new = false;
  ASSERT_TRUE(slots.Allot(sets.all(), Kind::kBarrier, "b", &is_new).ok());
  slots.Get(0)->reported = 1;
  slots.Get(0)->signatures.resize(1);
  RunQueue queue(2, 0, 1);
  proto::Run run;
  run.add_operations()->set_generation(1);
  run.mutable_operations(0)->mutable_identity()->set_kind(5);
  run.mutable_operations(0)->mutable_identity()->set_name("b");
  for (uint64_t i = 1; i <= 3; ++i) {
    run.set_run(i);
    ASSERT_TRUE(queue.Add(run, &slots).ok());
  }
  EXPECT_FALSE(queue.Add(run, &slots).ok());  // run 3 twice
  EXPECT_EQ(queue.Take()->generation, 1u);
  EXPECT_FALSE(queue.Take().has_value());
  queue.Free(0);
  EXPECT_EQ(queue.Take()->generation, 2u);
  EXPECT_FALSE(queue.Take().has_value());
}

TEST(RunQueueTest, GatherThatIsTooLargeIsAnError) {
  SlotTable slots(64);
  SetTable sets({0, 1}, {0});
  bool is_new = false;
  ASSERT_TRUE(slots.Allot(sets.all(), Kind::kAllgather, "g", &is_new).ok());
  slots.Get(0)->reported = 1;
  Signature s;
  s.kind = Kind::kAllgather;
  s.dims = 2;
  s.shape[0] = s.shape[1] = 1024;
  slots.Get(0)->signatures = {s};
  RunQueue queue(2, 0, 1);
  proto::Run run;
  run.set_run(1);
  run.add_operations()->set_generation(1);
  run.mutable_operations(0)->mutable_identity()->set_kind(1);
  run.mutable_operations(0)->mutable_identity()->set_name("g");
  run.add_first_dims(int64_t{1} << 60);
  run.add_first_dims(int64_t{1} << 60);
  EXPECT_EQ(queue.Add(run, &slots).code(), absl::StatusCode::kInvalidArgument);
  run.set_first_dims(0, -1);
  EXPECT_FALSE(queue.Add(run, &slots).ok());
}

}  // namespace
}  // namespace maypole::worker
