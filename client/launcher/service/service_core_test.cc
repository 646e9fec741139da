#include "client/launcher/service/service_core.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Actions = ServiceCore::Actions;

ServiceFacts ProcessFacts() {
  return {.directory = "/d",
          .random_secret = "S",
          .random_token = "T",
          .any_address = "[::]",
          .addresses = {"10.0.0.1", "fd00::1"},
          .user_secret =
              [](std::string* key) {
                *key = "user";
                return Status();
              },
          .cluster_secret =
              [](std::string* key) {
                *key = "cluster";
                return Status();
              },
          .derive = [](const std::string& key,
                       const std::string& text) { return key + ":" + text; }};
}

std::string Place(int rank, int size, int local_size,
                  ExchangeKind exchange = ExchangeKind::kNone,
                  bool at_head = false) {
  return Encode(RankMessage{.job = "j",
                            .node = "n",
                            .rank = rank,
                            .size = size,
                            .local_rank = rank % local_size,
                            .local_size = local_size,
                            .start_timeout_seconds = 30,
                            .exchange = exchange,
                            .head = "n1",
                            .at_head = at_head});
}

// Runs the core and returns its actions as text: "send 1 agent /d/agent.sock
// T", "start coordinator --listen=...", ...
class Service {
 public:
  explicit Service(ServiceFacts facts = ProcessFacts())
      : core(std::move(facts)) {}

  std::vector<std::string> Come(int connection, const std::string& place) {
    std::vector<std::string> out = Texts(core.Connected(connection));
    for (std::string& s : Texts(core.Said(connection, place))) {
      out.push_back(std::move(s));
    }
    return out;
  }
  std::vector<std::string> Say(int connection, const std::string& message) {
    return Texts(core.Said(connection, message));
  }
  std::vector<std::string> CoordinatorReady() {
    return Texts(core.Ready(kCoordinatorName, {.listen = "[::]:4001"}));
  }
  std::vector<std::string> AgentReady() {
    return Texts(core.Ready(kAgentName, {.socket = "/d/agent.sock"}));
  }

  static std::vector<std::string> Texts(const Actions& actions) {
    static const char* const kNames[] = {"send",  "close", "secret",
                                         "start", "dial",  "stop"};
    std::vector<std::string> out;
    for (const ServiceAction& a : actions) {
      std::string text = kNames[a.kind];
      if (a.connection > 0) text += " " + std::to_string(a.connection);
      if (!a.name.empty()) text += " " + a.name;
      for (const std::string& argument : a.arguments) text += " " + argument;
      if (!a.text.empty()) text += " " + a.text;
      for (char& c : text) c = c == '\n' ? '|' : c;
      out.push_back(text);
    }
    return out;
  }

  ServiceCore core;
};

std::string PublishedInfo(const std::string& coordinators,
                          const std::string& secret, const std::string& token) {
  return "maypole-bootstrap-1|" + coordinators + "|" + secret + "|" + token;
}

TEST(ServiceCoreTest, OneNodeHasADaemonOfEachKindOnLoopback) {
  Service s;
  EXPECT_THAT(
      s.Come(1, Place(1, 2, 2)),
      ElementsAre("secret S", AllOf(StartsWith("start coordinator"),
                                    HasSubstr("--listen=127.0.0.1:0 "),
                                    HasSubstr("--secret_file=/d/secret "),
                                    HasSubstr("--start_timeout=30s "))));
  EXPECT_THAT(s.Come(2, Place(0, 2, 2)), IsEmpty());
  EXPECT_THAT(
      s.CoordinatorReady(),
      ElementsAre(AllOf(
          StartsWith("start agent"), HasSubstr("--coordinator=127.0.0.1:4001 "),
          HasSubstr("--socket=/d/agent.sock "), HasSubstr("--node=n "))));
  EXPECT_THAT(s.AgentReady(), ElementsAre("send 1 agent|/d/agent.sock|T",
                                          "send 2 agent|/d/agent.sock|T"));
  // A rank that comes later gets the answer at once.
  EXPECT_THAT(s.Come(3, Place(0, 2, 2)),
              ElementsAre("send 3 agent|/d/agent.sock|T"));
}

TEST(ServiceCoreTest, EndsWithTheLastRank) {
  Service s;
  s.Come(1, Place(0, 2, 2));
  s.Come(2, Place(1, 2, 2));
  EXPECT_THAT(Service::Texts(s.core.Closed(1)), IsEmpty());
  EXPECT_THAT(Service::Texts(s.core.Closed(2)), ElementsAre("stop"));
  EXPECT_THAT(Service::Texts(s.core.Idle()), IsEmpty());
}

TEST(ServiceCoreTest, TheLastToSayByeWaitsForTheEnd) {
  Service s;
  s.Come(1, Place(0, 2, 2));
  s.Come(2, Place(1, 2, 2));
  EXPECT_THAT(s.Say(2, "bye"), ElementsAre("close 2"));
  EXPECT_THAT(s.Say(1, "bye"), ElementsAre("stop"));
}

TEST(ServiceCoreTest, NobodyComes) {
  Service s;
  EXPECT_THAT(Service::Texts(s.core.Idle()), ElementsAre("stop"));
}

TEST(ServiceCoreTest, AFailureIsToldToAll) {
  Service s;
  s.Come(1, Place(0, 2, 2));
  EXPECT_THAT(Service::Texts(s.core.Failed("broken")),
              ElementsAre("send 1 error|14|broken"));
  EXPECT_THAT(s.Come(2, Place(1, 2, 2)), ElementsAre("send 2 error|14|broken"));
  EXPECT_THAT(s.CoordinatorReady(), IsEmpty());
}

TEST(ServiceCoreTest, WhoHasAnAgentLearnsFromItWhatHasHappened) {
  Service s;
  s.Come(1, Place(0, 2, 2));
  s.CoordinatorReady();
  s.AgentReady();
  EXPECT_THAT(Service::Texts(s.core.Failed("agent ended")), IsEmpty());
}

TEST(ServiceCoreTest, AnotherJobIsRefusedAlone) {
  Service s;
  s.Come(1, Place(0, 2, 2));
  EXPECT_THAT(s.Come(2, Place(1, 3, 3)),
              ElementsAre(AllOf(StartsWith("send 2 error|3|"),
                                HasSubstr("rank 1 of job j with 3 ranks"))));
  s.CoordinatorReady();
  EXPECT_THAT(s.AgentReady(), ElementsAre("send 1 agent|/d/agent.sock|T"));
}

TEST(ServiceCoreTest, NodesThatCannotFindEachOther) {
  Service s;
  EXPECT_THAT(s.Come(1, Place(0, 4, 2)),
              ElementsAre(AllOf(StartsWith("send 1 error|3|2 of the job's 4"),
                                HasSubstr("MAYPOLE_COORDINATOR=HOST:PORT"))));
}

TEST(ServiceCoreTest, RankZerosNodePublishes) {
  Service s;
  const auto carried = ExchangeKind::kCarried;
  EXPECT_THAT(s.Come(1, Place(2, 4, 2, carried)), ElementsAre("send 1 get"));
  EXPECT_THAT(s.Come(2, Place(0, 4, 2, carried)),
              ElementsAre("secret S", HasSubstr("--listen=[::]:0 ")));
  EXPECT_THAT(s.CoordinatorReady(),
              ElementsAre("send 2 publish|" + PublishedInfo("10.0.0.1:4001 "
                                                            "[fd00::1]:4001",
                                                            "S", "T"),
                          HasSubstr("--coordinator=127.0.0.1:4001 ")));
  EXPECT_THAT(s.Say(2, "published"), IsEmpty());
  // The rank that was asked before gets what this node has published.
  EXPECT_THAT(s.Say(1, "got\nmaypole-bootstrap-1\n10.0.0.1:4001\nS\nT"),
              IsEmpty());
  EXPECT_THAT(s.AgentReady(), ElementsAre("send 1 agent|/d/agent.sock|T",
                                          "send 2 agent|/d/agent.sock|T"));
}

TEST(ServiceCoreTest, OtherNodesGet) {
  Service s;
  const auto carried = ExchangeKind::kCarried;
  EXPECT_THAT(s.Come(1, Place(2, 4, 2, carried)), ElementsAre("send 1 get"));
  EXPECT_THAT(s.Come(2, Place(3, 4, 2, carried)), IsEmpty());
  // The rank that was asked dies: the other rank is asked.
  EXPECT_THAT(Service::Texts(s.core.Closed(1)), ElementsAre("send 2 get"));
  EXPECT_THAT(
      s.Say(2, "got\nmaypole-bootstrap-1\n10.0.0.1:1 [fd00::1]:1\nS2\nT2"),
      ElementsAre("secret S2", "dial 10.0.0.1:1 [fd00::1]:1"));
  EXPECT_THAT(Service::Texts(s.core.Dialed("10.0.0.1:1")),
              ElementsAre(AllOf(HasSubstr("--coordinator=10.0.0.1:1 "),
                                HasSubstr("--secret_file=/d/secret"))));
  EXPECT_THAT(s.AgentReady(), ElementsAre("send 2 agent|/d/agent.sock|T2"));
}

// Other users may be able to read torchrun's store.
TEST(ServiceCoreTest, WhoHasATokenPublishesAddressesOnly) {
  ServiceFacts facts = ProcessFacts();
  facts.token = "mine";
  Service head(facts), other(facts);
  const auto carried = ExchangeKind::kCarried;
  EXPECT_THAT(
      head.Come(1, Place(0, 4, 2, carried)),
      ElementsAre("secret mine:secret of j", HasSubstr("--listen=[::]:0 ")));
  EXPECT_THAT(
      head.CoordinatorReady(),
      ElementsAre("send 1 publish|" +
                      PublishedInfo("10.0.0.1:4001 [fd00::1]:4001", "", ""),
                  StartsWith("start agent")));
  EXPECT_THAT(head.AgentReady(),
              ElementsAre("send 1 agent|/d/agent.sock|mine:token of j"));
  EXPECT_THAT(other.Come(1, Place(2, 4, 2, carried)),
              ElementsAre("send 1 get"));
  EXPECT_THAT(other.Say(1, "got\nmaypole-bootstrap-1\n10.0.0.1:4001\n\n"),
              ElementsAre("secret mine:secret of j", "dial 10.0.0.1:4001"));
  EXPECT_THAT(Service::Texts(other.core.Dialed("10.0.0.1:4001")),
              ElementsAre(HasSubstr("--secret_file=/d/secret")));
  EXPECT_THAT(other.AgentReady(),
              ElementsAre("send 1 agent|/d/agent.sock|mine:token of j"));
}

TEST(ServiceCoreTest, ATokenIsSetOnAllNodesOrOnNone) {
  Service without;
  without.Come(1, Place(2, 4, 2, ExchangeKind::kCarried));
  EXPECT_THAT(without.Say(1, "got\nmaypole-bootstrap-1\n10.0.0.1:4001\n\n"),
              ElementsAre(AllOf(StartsWith("send 1 error|3|MAYPOLE_TOKEN"),
                                HasSubstr("rank 0's node, but not on this"))));
  ServiceFacts facts = ProcessFacts();
  facts.token = "mine";
  Service with(facts);
  with.Come(1, Place(2, 4, 2, ExchangeKind::kCarried));
  // The core uses nothing that another user may have published.
  EXPECT_THAT(with.Say(1, "got\nmaypole-bootstrap-1\n10.0.0.1:4001\nS2\nT2"),
              ElementsAre(AllOf(StartsWith("send 1 error|3|MAYPOLE_TOKEN"),
                                HasSubstr("this node, but not on rank 0's"))));
}

TEST(ServiceCoreTest, ALauncherThatCarriesNothingAfterAll) {
  Service s;
  s.Come(1, Place(2, 4, 2, ExchangeKind::kCarried));
  EXPECT_THAT(s.Say(1, "failed\nno server"),
              ElementsAre("send 1 error|14|no server"));
}

TEST(ServiceCoreTest, WhatCannotBePublishedIsToldHere) {
  Service s;
  s.Come(1, Place(0, 4, 2, ExchangeKind::kCarried));
  s.CoordinatorReady();
  EXPECT_THAT(s.Say(1, "failed\nno server"),
              ElementsAre("send 1 error|14|no server"));
}

TEST(ServiceCoreTest, SlurmsNodesDeriveTheSame) {
  const auto derived = ExchangeKind::kDerived;
  Service head, other;
  const auto at_head = head.Come(1, Place(0, 4, 2, derived, true));
  ASSERT_EQ(at_head.size(), 2u);
  EXPECT_EQ(at_head[0], "secret user:secret of j");
  const size_t colon = at_head[1].find("[::]:") + 5;
  const std::string port =
      at_head[1].substr(colon, at_head[1].find(' ', colon) - colon);
  EXPECT_GE(std::stoi(port), 20000);
  EXPECT_LT(std::stoi(port), 30000);
  EXPECT_THAT(other.Come(1, Place(2, 4, 2, derived)),
              ElementsAre("secret user:secret of j", "dial n1:" + port));
  other.core.Dialed("10.0.0.9:" + port);
  EXPECT_THAT(other.AgentReady(),
              ElementsAre("send 1 agent|/d/agent.sock|user:token of j"));
}

TEST(ServiceCoreTest, APortInUseCanBeChosen) {
  Service s;
  s.Come(1, Place(0, 4, 2, ExchangeKind::kDerived, true));
  EXPECT_THAT(Service::Texts(s.core.Failed("in use")),
              ElementsAre(AllOf(StartsWith("send 1 error|14|in use ("),
                                HasSubstr("MAYPOLE_COORDINATOR_PORT"))));
}

TEST(ServiceCoreTest, AGivenPortAndToken) {
  ServiceFacts facts = ProcessFacts();
  facts.coordinator_port = "4711";
  facts.token = "mine";
  Service s(facts);
  EXPECT_THAT(s.Come(1, Place(2, 4, 2, ExchangeKind::kDerived)),
              ElementsAre("secret mine:secret of j", "dial n1:4711"));
}

TEST(ServiceCoreTest, ACoordinatorThatRuns) {
  ServiceFacts facts = ProcessFacts();
  facts.coordinator = "head:4001";
  facts.secret_file = "/etc/secret";
  Service s(facts);
  EXPECT_THAT(s.Come(1, Place(2, 4, 2)),
              ElementsAre(AllOf(StartsWith("start agent"),
                                HasSubstr("--coordinator=head:4001 "),
                                HasSubstr("--secret_file=/etc/secret"))));
  EXPECT_THAT(s.AgentReady(),
              ElementsAre("send 1 agent|/d/agent.sock|cluster:token of j"));
}

TEST(ServiceCoreTest, ACoordinatorThatRunsAndATokenThatTravels) {
  ServiceFacts facts = ProcessFacts();
  facts.coordinator = "head:4001";
  Service s(facts);
  const auto carried = ExchangeKind::kCarried;
  EXPECT_THAT(
      s.Come(1, Place(0, 4, 2, carried)),
      ElementsAre("send 1 publish|" + PublishedInfo("head:4001", "", "T")));
  EXPECT_THAT(s.Say(1, "published"), ElementsAre(StartsWith("start agent")));
}

TEST(ServiceCoreTest, AnAgentThatRunsIsUsed) {
  ServiceFacts facts = ProcessFacts();
  facts.running_agent = "/run/maypole/agent.sock";
  Service s(facts);
  EXPECT_THAT(s.Come(1, Place(0, 2, 2)),
              ElementsAre("send 1 agent|/run/maypole/agent.sock|T"));
}

TEST(ServiceCoreTest, AgentsMustRunEverywhereOrNowhere) {
  Service s;
  s.Come(1, Place(2, 4, 2, ExchangeKind::kCarried));
  EXPECT_THAT(s.Say(1, "got\nmaypole-bootstrap-1\n\n\nT"),
              ElementsAre(AllOf(StartsWith("send 1 error|14|"),
                                HasSubstr("none runs on this node"))));
}

TEST(ServiceCoreTest, NonsenseIsAnswered) {
  Service s;
  EXPECT_THAT(s.Come(1, "GET / HTTP/1.0"),
              ElementsAre(StartsWith("send 1 error|3|")));
  EXPECT_THAT(s.Come(2, Place(0, 2, 2)), Contains(StartsWith("start")));
  EXPECT_THAT(s.Say(2, "got\nx"), IsEmpty());
}

}  // namespace
}  // namespace maypole::launcher
