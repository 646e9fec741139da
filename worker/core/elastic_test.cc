// Elastic ranks: the core reports them as they arrive; the coordinator decides
// which of them take part in an epoch.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

session::Hello ElasticHello(int pid, uint64_t last_epoch = 0, int rank = -1) {
  auto hello = session::Make<session::Hello>();
  hello.elastic = 1;
  hello.rank = rank;
  hello.last_epoch = last_epoch;
  hello.min_size = 2;
  hello.max_size = 4;
  hello.pid = pid;
  session::SetText(hello.job, "job");
  session::SetText(hello.host, "hosta");
  return hello;
}

// ExecutorCore's process `pid` is visible as 1000 + pid.
class ElasticCoreTest : public ExecutorCoreTest {
 protected:
  void Come(ClientId client, int pid, uint64_t last_epoch = 0, int rank = -1) {
    core_.OnClient(client, ElasticHello(pid, last_epoch, rank), 1000 + pid);
  }
  // Returns the last RanksReady since the previous call.
  proto::RanksReady Said() {
    proto::RanksReady out;
    for (const auto& m : TakeSent()) {
      if (m.has_ranks_ready()) out = m.ranks_ready();
    }
    return out;
  }
  // The epochs of the last Gone().
  std::vector<uint64_t> epochs_;
  std::vector<proto::RankGone> Gone() {
    std::vector<proto::RankGone> out;
    epochs_.clear();
    for (const auto& m : TakeSent()) {
      if (!m.has_rank_gone()) continue;
      out.push_back(m.rank_gone());
      epochs_.push_back(m.epoch());
    }
    return out;
  }
  // One node: these clients are ranks 0, 1, ...
  static proto::CoordinatorMessage Start(uint64_t epoch,
                                         const std::vector<ClientId>& clients) {
    proto::CoordinatorMessage m;
    proto::EpochStart* start = m.mutable_epoch_start();
    start->set_epoch(epoch);
    start->set_size(static_cast<uint32_t>(clients.size()));
    start->set_chunk_bytes(524288);
    proto::NodeInfo* node = start->add_nodes();
    node->set_protocol_version(kProtocolVersion);
    node->set_node("n0");
    for (uint32_t i = 0; i < clients.size(); ++i) {
      node->add_ranks(i);
      start->add_clients(clients[i]);
    }
    return m;
  }
  void Run(uint64_t epoch, const std::vector<ClientId>& clients) {
    core_.OnCoordinator(Start(epoch, clients));
    EXPECT_TRUE(core_.OnBoardCreated(absl::OkStatus()));
    Drop();
  }
};

TEST_F(ElasticCoreTest, WhoComesIsToldAtOnceWithWhatItWas) {
  Come(1, 11);
  EXPECT_EQ(Take<OpenLink>().size(), 1u);
  Come(2, 12, 7, 3);
  const proto::RanksReady ready = Said();
  EXPECT_TRUE(ready.elastic());
  EXPECT_EQ(ready.min_size(), 2u);
  EXPECT_EQ(ready.max_size(), 4u);
  EXPECT_EQ(ready.chunk_bytes(), 1048576u);
  EXPECT_EQ(ready.round(), 0u);
  ASSERT_EQ(ready.members_size(), 2);
  EXPECT_EQ(ready.members(0).client(), 1u);
  EXPECT_EQ(ready.members(0).epoch(), 0u);
  EXPECT_EQ(ready.members(0).pid(), 11);
  EXPECT_EQ(ready.members(1).epoch(), 7u);
  EXPECT_EQ(ready.members(1).rank(), 3u);
  core_.OnClientGone(1, "its connection closed");
  EXPECT_EQ(Said().members_size(), 1);
  core_.OnGoodbye(2, 0);
  EXPECT_EQ(Said().members_size(), 0);
}

TEST_F(ElasticCoreTest, AStartThatNamesAClientTwiceIsRefused) {
  Come(1, 11);
  Come(2, 12);
  Drop();
  core_.OnCoordinator(Start(1, {1, 1}));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].failed().message(), "the EpochStart message is invalid");
}

TEST_F(ElasticCoreTest, TheStartSaysWhoIsInTheOthersWaitOn) {
  Come(1, 11);
  Come(2, 12);
  Come(3, 13);
  Drop();
  core_.OnCoordinator(Start(4, {3, 1}));
  std::vector<CreateBoard> created;
  proto::RanksReady said;
  for (Action& a : core_.TakeActions()) {
    if (auto* c = std::get_if<CreateBoard>(&a)) created.push_back(*c);
    if (auto* s = std::get_if<SendToCoordinator>(&a)) {
      said = s->message.ranks_ready();
    }
  }
  ASSERT_EQ(created.size(), 1u);
  EXPECT_EQ(created[0].clients, (std::vector<ClientId>{3, 1}));
  EXPECT_EQ(created[0].pids, (std::vector<int>{1013, 1011}));
  EXPECT_EQ(created[0].config.size, 2u);
  EXPECT_EQ(created[0].config.local_size, 2u);
  EXPECT_EQ(said.round(), 1u);
  ASSERT_EQ(said.members_size(), 1);
  EXPECT_EQ(said.members(0).client(), 2u);
}

// The coordinator ignores messages of the previous round.
TEST_F(ElasticCoreTest, ThatNobodyWaitsIsSaidAgainAfterAStart) {
  for (const int i : {1, 2, 3}) Come(static_cast<ClientId>(i), 10 + i);
  core_.OnClientGone(3, "its connection closed");  // crosses with the start
  Drop();
  core_.OnCoordinator(Start(4, {1, 2}));
  std::vector<proto::RanksReady> said;
  for (const auto& m : TakeSent()) {
    if (m.has_ranks_ready()) said.push_back(m.ranks_ready());
  }
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].elastic());
  EXPECT_EQ(said[0].round(), 1u);
  EXPECT_EQ(said[0].members_size(), 0);
}

TEST_F(ElasticCoreTest, ThatNobodyWaitsIsSaidAgainAfterARefusal) {
  for (const int i : {1, 2}) Come(static_cast<ClientId>(i), 10 + i);
  core_.OnClientGone(2, "its connection closed");  // crosses with the refusal
  Drop();
  auto end = EndMessage(0, "there is no place");
  end.mutable_epoch_end()->add_clients(1);
  core_.OnCoordinator(end);
  std::vector<proto::RanksReady> said;
  for (const auto& m : TakeSent()) {
    if (m.has_ranks_ready()) said.push_back(m.ranks_ready());
  }
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].round(), 1u);
  EXPECT_EQ(said[0].members_size(), 0);
}

TEST_F(ElasticCoreTest, ThatNobodyWaitsIsSaidAgainIfAllHaveGoneAtARefusal) {
  for (const int i : {1, 2}) Come(static_cast<ClientId>(i), 10 + i);
  core_.OnClientGone(1, "its connection closed");
  core_.OnClientGone(2, "its connection closed");
  Drop();  // of the previous round: the coordinator ignores it
  auto end = EndMessage(0, "there is no place");
  end.mutable_epoch_end()->add_clients(1);
  core_.OnCoordinator(end);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].ranks_ready().elastic());
  EXPECT_EQ(sent[0].ranks_ready().round(), 1u);
  EXPECT_EQ(sent[0].ranks_ready().members_size(), 0);
}

TEST_F(ElasticCoreTest, AChangeThatIsWantedGoesToTheBoardAlsoIfItCameEarly) {
  Come(1, 11);
  Come(2, 12);
  core_.OnCoordinator(Start(1, {1, 2}));
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_membership_wanted()->set_new_ranks(2);
  core_.OnCoordinator(m);
  EXPECT_TRUE(Take<WantChange>().empty());
  core_.OnBoardCreated(absl::OkStatus());
  auto wants = Take<WantChange>();
  ASSERT_EQ(wants.size(), 1u);
  EXPECT_EQ(wants[0].ranks, 2u);
  m.mutable_membership_wanted()->set_leaving(1);
  core_.OnCoordinator(m);
  wants = Take<WantChange>();
  ASSERT_EQ(wants.size(), 1u);
  EXPECT_EQ(wants[0].ranks, 3u);
  m.set_epoch(9);
  m.mutable_membership_wanted();
  core_.OnCoordinator(m);
  EXPECT_TRUE(Take<WantChange>().empty());
}

TEST_F(ElasticCoreTest, WhoMeansToReturnIsWatchedUntilItDoes) {
  Come(1, 11);
  Come(2, 12);
  Run(1, {1, 2});
  core_.OnGoodbye(1, 0, true);
  std::vector<Action> actions = core_.TakeActions();
  // Its pidfd must be kept before the connection is closed.
  ASSERT_GE(actions.size(), 2u);
  EXPECT_EQ(std::get<KeepWatching>(actions[0]).client, 1u);
  EXPECT_EQ(std::get<CloseClient>(actions[1]).client, 1u);
  core_.OnGoodbye(2, 0, true);
  const auto gone = Gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_TRUE(gone[0].clean() && gone[0].returns());
  EXPECT_EQ(core_.clients(), 2u);  // the executor stays for them
  Come(3, 12, 1, 1);
  const auto back = Take<StopWatching>();
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].client, 2u);
  core_.OnProcessEnded(2);  // of the connection before
  EXPECT_TRUE(Gone().empty());
  core_.OnProcessEnded(1);
  const auto ended = Gone();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(epochs_, std::vector<uint64_t>{1});
  EXPECT_EQ(ended[0].rank(), 0u);
  EXPECT_FALSE(ended[0].returns());
  EXPECT_EQ(core_.clients(), 1u);
}

TEST_F(ElasticCoreTest, WhoHasFinishedIsSaidAndKeepsTheJobKnownWhileItLives) {
  for (const int i : {1, 2, 3, 4}) Come(static_cast<ClientId>(i), 10 + i);
  Run(1, {1, 2, 3, 4});
  core_.OnFinished(1, true);
  core_.OnFinished(2, true);
  core_.OnFinished(3, true);
  core_.OnFinished(3, false);  // it trains again
  core_.OnGoodbye(1, 0);
  core_.OnClientGone(2, "its connection closed");
  core_.OnGoodbye(3, 0);
  core_.OnGoodbye(4, 0, true);
  const auto gone = Gone();
  ASSERT_EQ(gone.size(), 4u);
  EXPECT_TRUE(gone[0].finished() && gone[0].clean());
  EXPECT_TRUE(gone[1].finished() && !gone[1].clean());
  EXPECT_FALSE(gone[2].finished());
  EXPECT_FALSE(gone[3].finished());
  core_.OnProcessEnded(4);
  EXPECT_EQ(Gone().size(), 1u);
  EXPECT_EQ(core_.clients(), 1u);
  core_.OnTime(3600 * 1000);  // it evaluates
  EXPECT_TRUE(Take<StopWatching>().empty());
  EXPECT_EQ(core_.clients(), 1u);
  core_.OnProcessEnded(1);
  EXPECT_TRUE(Gone().empty());
  EXPECT_EQ(core_.clients(), 0u);
}

// For all epochs: no process may begin again a training that one has completed.
TEST_F(ElasticCoreTest, WhoHasFinishedIsSaidAgainToAnotherCoordinator) {
  for (const int i : {1, 2, 3}) Come(static_cast<ClientId>(i), 10 + i);
  Run(1, {1, 2, 3});
  core_.OnFinished(1, true);
  core_.OnGoodbye(1, 0);
  core_.OnClientGone(2, "its connection closed");
  core_.OnGoodbye(3, 0, true);
  Come(4, 13, 1, 2);
  Come(5, 15);
  Run(2, {4, 5});
  core_.OnClientGone(5, "its connection closed");
  Drop();
  core_.OnCoordinatorReplaced();
  Drop();
  proto::CoordinatorMessage recovered;
  recovered.set_epoch(2);
  recovered.mutable_recovered();
  core_.OnCoordinator(recovered);
  const auto gone = Gone();
  ASSERT_EQ(gone.size(), 2u);
  EXPECT_EQ(epochs_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(gone[0].rank(), 0u);
  EXPECT_TRUE(gone[0].finished());
  EXPECT_EQ(gone[1].rank(), 1u);
}

TEST_F(ElasticCoreTest, AnotherCoordinatorIsToldWhyAStartHasFailed) {
  for (const int i : {1, 2}) Come(static_cast<ClientId>(i), 10 + i);
  core_.OnCoordinator(Start(1, {1, 2}));
  core_.OnClientGone(1, "its connection closed");
  Drop();
  core_.OnCoordinatorReplaced();
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].node_state().end().message(),
            "rank 0 (pid 11, host hosta, node n0) died: its connection closed");
}

TEST_F(ElasticCoreTest, TheMostImpatientSaysHowLongAStartIsWaitedFor) {
  Come(1, 11);
  EXPECT_EQ(Said().start_timeout_ms(), 0);  // none says anything
  for (const int seconds : {300, 20, 60}) {
    session::Hello hello = ElasticHello(seconds);
    hello.start_timeout_ms = seconds * 1000;
    core_.OnClient(static_cast<ClientId>(seconds), hello, 1000 + seconds);
  }
  EXPECT_EQ(Said().start_timeout_ms(), 20000);
}

TEST_F(ElasticCoreTest, OneThatReturnsIsWatchedAsLongAsAnyoneMayWaitForIt) {
  for (const int seconds : {10, 300}) {
    session::Hello hello = ElasticHello(seconds);
    hello.start_timeout_ms = seconds * 1000;
    core_.OnClient(static_cast<ClientId>(seconds), hello, 1000 + seconds);
  }
  Run(1, {10, 300});
  core_.OnGoodbye(10, 0, true);
  core_.OnGoodbye(300, 0, true);
  core_.OnTime(119999);
  EXPECT_TRUE(Take<StopWatching>().empty());
  EXPECT_EQ(core_.clients(), 2u);
  core_.OnTime(120000);  // --start_timeout
  auto over = Take<StopWatching>();
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].client, 10u);
  EXPECT_EQ(core_.clients(), 1u);
  core_.OnTime(300000);
  over = Take<StopWatching>();
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].client, 300u);
  EXPECT_EQ(core_.clients(), 0u);
}

TEST_F(ElasticCoreTest, WhoIsNotVisibleIsNotSaidToReturn) {
  core_.OnClient(1, ElasticHello(11), 0);
  Come(2, 12);
  Run(1, {1, 2});
  core_.OnGoodbye(1, 0, true);
  core_.OnGoodbye(2, 0, false);
  const auto gone = Gone();
  ASSERT_EQ(gone.size(), 2u);
  EXPECT_FALSE(gone[0].returns());
  EXPECT_FALSE(gone[1].returns());
  EXPECT_EQ(core_.clients(), 0u);
}

TEST_F(ElasticCoreTest, AfterADeathTheOthersAreToldOfAsTheyLeave) {
  Come(1, 11);
  Come(2, 12);
  Come(3, 13);
  Run(1, {1, 2, 3});
  core_.OnClientGone(1, "it was killed");
  EXPECT_EQ(Take<AbortBoard>().size(), 1u);
  core_.OnGoodbye(2, 5, true);
  auto gone = Gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].rank(), 1u);
  EXPECT_TRUE(gone[0].returns());
  Come(4, 12, 1, 1);
  Drop();
  core_.OnClientGone(3, "it was killed too");
  gone = Gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].rank(), 2u);
  EXPECT_FALSE(gone[0].returns());
  Come(5, 15);
  Run(2, {4, 5});
  EXPECT_EQ(Slot("x").code, static_cast<uint32_t>(Code::kFailedPrecondition));
}

TEST_F(ElasticCoreTest, TheJobGoesOnWithoutThoseWhoDoNotLeave) {
  Come(1, 11);
  Come(2, 12);
  Come(3, 13);
  Run(1, {1, 2, 3});
  core_.OnClientGone(1, "it was killed");
  core_.OnGoodbye(2, 0, true);
  Come(4, 12, 1, 1);
  Come(5, 14);
  Drop();
  // The coordinator has waited long enough for client 3.
  core_.OnCoordinator(Start(2, {4, 5}));
  const auto actions = core_.TakeActions();
  int closed = 0, dropped = 0, made = 0;
  for (const Action& a : actions) {
    if (const auto* c = std::get_if<CloseClient>(&a)) closed += c->client == 3;
    dropped += std::holds_alternative<DropEpoch>(a);
    made += std::holds_alternative<CreateBoard>(a);
  }
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(dropped, 1);
  EXPECT_EQ(made, 1);
}

TEST_F(ElasticCoreTest, AStartWithOneWhoHasEndedIsGivenBack) {
  Come(1, 11);
  Come(2, 12);
  core_.OnClientGone(1, "it was killed");
  Drop();
  core_.OnCoordinator(Start(1, {1, 2}));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].epoch(), 1u);
  EXPECT_EQ(sent[0].rank_gone().rank(), 0u);
  EXPECT_EQ(sent[1].ranks_ready().round(), 1u);
  ASSERT_EQ(sent[1].ranks_ready().members_size(), 1);
  EXPECT_EQ(sent[1].ranks_ready().members(0).client(), 2u);
  core_.OnCoordinator(EndMessage(1, "rank 0 was lost"));
  EXPECT_TRUE(Take<RefuseClient>().empty());
  EXPECT_EQ(core_.clients(), 1u);
}

// The coordinator would wait for the second one as for one that returns.
TEST_F(ElasticCoreTest, AllWhoHaveEndedBeforeAStartAreReported) {
  Come(1, 11);
  Come(2, 12);
  Come(3, 13);
  core_.OnClientGone(1, "it was killed");
  core_.OnClientGone(3, "it was killed");
  Drop();
  core_.OnCoordinator(Start(1, {1, 2, 3}));
  const auto gone = Gone();
  ASSERT_EQ(gone.size(), 2u);
  EXPECT_EQ(gone[0].rank(), 0u);
  EXPECT_EQ(gone[1].rank(), 2u);
  EXPECT_EQ(epochs_, (std::vector<uint64_t>{1, 1}));
}

// That the other node's rank has left was only known to a coordinator that has
// died; its successor begins the next epoch.
TEST_F(ElasticCoreTest, AnEpochNoLongerDrainsWhenTheNextOneCannotStart) {
  Come(1, 11);
  proto::CoordinatorMessage start = Start(1, {1});
  start.mutable_epoch_start()->set_size(2);
  proto::NodeInfo* other = start.mutable_epoch_start()->add_nodes();
  other->set_protocol_version(kProtocolVersion);
  other->set_node("n1");
  other->add_ranks(1);
  core_.OnCoordinator(start);
  core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
  proto::CoordinatorMessage endpoints;
  endpoints.set_epoch(1);
  endpoints.mutable_endpoints()->add_addresses("");
  endpoints.mutable_endpoints()->add_addresses("b");
  core_.OnCoordinator(endpoints);
  core_.OnBackendConnected(absl::OkStatus());
  EXPECT_TRUE(core_.OnBoardCreated(absl::OkStatus()));
  core_.OnGoodbye(1, 0, true);
  Come(2, 11, 1, 0);
  core_.OnClientGone(2, "it was killed");
  EXPECT_TRUE(core_.drains());
  Drop();
  core_.OnCoordinator(Start(2, {2}));
  EXPECT_FALSE(core_.drains());
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
}

TEST_F(ElasticCoreTest, AStartThatFailsElsewhereIsWaitedForAgain) {
  Come(1, 11, 1, 0);
  Come(2, 12);
  core_.OnCoordinator(Start(2, {1, 2}));
  Drop();
  core_.OnCoordinator(EndMessage(2, "rank 3 was lost"));
  auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<DropEpoch>(actions[0]));
  const auto& ready =
      std::get<SendToCoordinator>(actions[1]).message.ranks_ready();
  ASSERT_EQ(ready.members_size(), 2);
  EXPECT_EQ(ready.members(0).client(), 1u);
  EXPECT_EQ(ready.members(0).epoch(), 1u);  // it has not heard of epoch 2
  EXPECT_FALSE(core_.OnBoardCreated(absl::OkStatus()));
  Run(3, {1, 2});
}

TEST_F(ElasticCoreTest, WhoDiesInAStartEndsItForTheOthersOnly) {
  Come(1, 11);
  Come(2, 12);
  core_.OnCoordinator(Start(1, {1, 2}));
  Drop();
  core_.OnClientGone(2, "it was killed");
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].epoch(), 1u);
  EXPECT_EQ(sent[0].rank_gone().rank(), 1u);
  ASSERT_EQ(sent[1].ranks_ready().members_size(), 1);
  EXPECT_EQ(sent[1].ranks_ready().members(0).client(), 1u);
}

TEST_F(ElasticCoreTest, ANodeWithoutMemoryTellsItsRanksAndTheCoordinator) {
  Come(1, 11);
  Come(2, 12);
  core_.OnCoordinator(Start(1, {1, 2}));
  Drop();
  EXPECT_FALSE(core_.OnBoardCreated(absl::ResourceExhaustedError("no memory")));
  int refused = 0, failed = 0, gone = 0;
  for (const Action& a : core_.TakeActions()) {
    refused += std::holds_alternative<RefuseClient>(a);
    if (const auto* s = std::get_if<SendToCoordinator>(&a)) {
      failed += s->message.has_failed();
      gone += s->message.has_rank_gone();
    }
  }
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(gone, 2);
}

TEST_F(ElasticCoreTest, ARefusalIsForThoseItNamesOrForAllWhoWait) {
  Come(1, 11);
  Come(2, 12);
  Come(3, 13);
  Drop();
  proto::CoordinatorMessage m = EndMessage(0, "too late");
  m.mutable_epoch_end()->add_clients(2);
  m.mutable_epoch_end()->set_code(static_cast<int>(Code::kDeadlineExceeded));
  core_.OnCoordinator(m);
  std::vector<RefuseClient> refused;
  proto::RanksReady said;
  for (Action& a : core_.TakeActions()) {
    if (auto* r = std::get_if<RefuseClient>(&a)) refused.push_back(*r);
    if (auto* s = std::get_if<SendToCoordinator>(&a)) {
      said = s->message.ranks_ready();
    }
  }
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].client, 2u);
  EXPECT_EQ(refused[0].code, Code::kDeadlineExceeded);
  EXPECT_EQ(refused[0].text, "too late");
  EXPECT_EQ(said.round(), 1u);
  EXPECT_EQ(said.members_size(), 2);
  core_.OnCoordinator(EndMessage(0, "stopped"));
  EXPECT_EQ(Take<RefuseClient>().size(), 2u);
  EXPECT_EQ(core_.clients(), 0u);
}

TEST_F(ElasticCoreTest, WrongHellosAreRefusedAlone) {
  const auto refusal = [this](const session::Hello& hello) {
    core_.OnClient(9, hello, 1);
    const auto refused = Take<RefuseClient>();
    return refused.size() == 1 ? refused[0].text : "";
  };
  session::Hello hello = ElasticHello(11);
  hello.max_size = 1;
  EXPECT_EQ(refusal(hello),
            "an elastic job has 1 to 16384 ranks; a range from 2 to 1 is not "
            "possible");
  EXPECT_EQ(refusal(ElasticHello(11, 3, -1)),
            "rank -1 of epoch 3 cannot return: ranks must be 0 to 16383");
  Come(1, 11, 3, 1);
  Drop();
  EXPECT_EQ(refusal(ElasticHello(11, 3, 1)),
            "rank 1 of epoch 3 has already returned (pid 11)");
  hello = ElasticHello(12);
  hello.max_size = 8;
  EXPECT_EQ(refusal(hello),
            "the process (pid 12) says that the job has 2 to 8 ranks, but "
            "others on this node say 2 to 4 ranks; start all ranks with the "
            "same smallest and greatest number");
  EXPECT_EQ(refusal(MakeHello(0, 2, 0, 2)),
            "the process (pid 100) is not elastic, but others on this node "
            "are; start all ranks of a job alike");
  Come(2, 12);
  Run(1, {1, 2});
  EXPECT_EQ(refusal(MakeHello(0, 2, 0, 2)),
            "rank 0 is not elastic, but job 'job' is running with elastic "
            "ranks; start all ranks of a job alike");
  EXPECT_EQ(refusal(ElasticHello(11, 1, 0)),
            "rank 0 of job 'job' is connected already (pid 11)");
}

TEST_F(ElasticCoreTest, AFixedJobRefusesElasticRanks) {
  StartOneNode();
  Come(3, 13);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].text,
            "the process (pid 13) is elastic, but job 'job' is running with "
            "ranks that are not; start all ranks of a job alike");
}

TEST_F(ElasticCoreTest, TheLinksEndIsToldToAll) {
  Come(1, 11);
  Come(2, 12);
  Come(3, 13);
  Run(1, {1, 2});
  core_.OnLinkLost(absl::UnavailableError("coordinator lost"));
  int aborted = 0, refused = 0;
  for (const Action& a : core_.TakeActions()) {
    aborted += std::holds_alternative<AbortBoard>(a);
    refused += std::holds_alternative<RefuseClient>(a);
  }
  EXPECT_EQ(aborted, 1);
  EXPECT_EQ(refused, 1);
  core_.OnGoodbye(1, 0, true);
  core_.OnGoodbye(2, 0, true);
  Drop();
  // A new session: rounds count from 0 again.
  Come(4, 11, 1, 0);
  EXPECT_EQ(Said().round(), 0u);
}

}  // namespace
}  // namespace maypole::worker
