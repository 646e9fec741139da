#include "client/launcher/elastic/elastic_driver.h"

#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <set>

namespace maypole::launcher {
namespace {

using std::chrono::seconds;
using D = ElasticDriver;

constexpr Exit kClean{};
constexpr Exit kFailed{.value = 1};
constexpr Exit kKilled{.signaled = true, .value = SIGKILL};
constexpr Exit kTerminated{.signaled = true, .value = SIGTERM};
constexpr Exit kAskedToLeave{.value = 128 + SIGTERM};

Time At(int s) { return Time() + std::chrono::hours(1) + seconds(s); }

D::Settings Sizes(int first, int least, int most) {
  return {.first_size = first, .min_size = least, .max_size = most};
}

template <typename T>
std::vector<T> Of(const D::Actions& actions) {
  std::vector<T> all;
  for (const D::Action& a : actions) {
    if (const T* t = std::get_if<T>(&a)) all.push_back(*t);
  }
  return all;
}

// Hosts a and b with two slots each, whose nodes 0 and 1 are ready; processes
// 0, 1 run on a, and 2, 3 on b.
D TwoHosts(const D::Settings& settings) {
  D d(settings);
  d.OnHosts({{"a", 2}, {"b", 2}}, At(0));
  d.OnNodeReady(0, At(0));
  d.OnNodeReady(1, At(0));
  return d;
}

D::Actions End(D* d, int process, const Exit& exit, Time now,
               bool* failed = nullptr) {
  bool unused = false;
  return d->OnProcessEnd(process, exit, now, failed ? failed : &unused);
}

TEST(ElasticDriverTest, StartsProcessesWhenThereAreEnoughSlots) {
  D d(Sizes(4, 2, 8));
  const auto started = Of<D::StartNode>(d.OnHosts({{"a", 2}, {"b", 2}}, At(0)));
  ASSERT_EQ(started.size(), 2u);
  EXPECT_EQ(started[0].host, "a");
  EXPECT_EQ(started[1].node, 1);
  EXPECT_TRUE(d.OnNodeReady(1, At(1)).empty());
  const auto processes = Of<D::StartProcess>(d.OnNodeReady(0, At(2)));
  ASSERT_EQ(processes.size(), 4u);
  EXPECT_EQ(processes[0].node, 0);
  EXPECT_EQ(processes[1].slot, 1);
  EXPECT_EQ(processes[2].node, 1);
  EXPECT_EQ(processes[3].process, 3);
  EXPECT_FALSE(d.deadline());
}

// The settings of a fixed job of four ranks on the hosts a and b.
D::Settings Fixed() { return {.first_size = 4, .max_size = 4, .fixed = true}; }

TEST(ElasticDriverTest, AFixedJobStartsItsRanksWhenAllNodesAreReady) {
  D d(Fixed());
  EXPECT_EQ(Of<D::StartNode>(d.OnHosts({{"b", 3}, {"a", 1}}, At(0))).size(),
            2u);
  EXPECT_TRUE(d.OnNodeReady(1, At(1)).empty());
  EXPECT_TRUE(d.OnTime(At(100'000)).empty());
  EXPECT_FALSE(d.filled());
  // Ranks are numbered node by node, and within their node.
  const auto ranks = Of<D::StartProcess>(d.OnNodeReady(0, At(100'001)));
  ASSERT_EQ(ranks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ranks[static_cast<size_t>(rank)].process, rank);
    EXPECT_EQ(ranks[static_cast<size_t>(rank)].node, rank < 3 ? 0 : 1);
    EXPECT_EQ(ranks[static_cast<size_t>(rank)].slot, rank < 3 ? rank : 0);
  }
  EXPECT_TRUE(d.filled());
  EXPECT_FALSE(d.deadline());
}

TEST(ElasticDriverTest, NobodyIsReplacedInAFixedJob) {
  D d = TwoHosts(Fixed());
  bool failed = true;
  EXPECT_TRUE(End(&d, 0, kClean, At(1), &failed).empty());
  EXPECT_FALSE(failed);
  EXPECT_TRUE(End(&d, 1, kKilled, At(2), &failed).empty());
  EXPECT_TRUE(failed);
  const auto told = d.OnNodeLost(1, "its connection broke", At(3));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(Of<D::Tell>(told)[0].line, "b: its connection broke");
  EXPECT_TRUE(d.OnTime(At(1000)).empty());
  EXPECT_FALSE(d.over());
}

TEST(ElasticDriverTest, AFixedJobDoesNotStartWithoutANode) {
  D d(Fixed());
  d.OnHosts({{"a", 2}, {"b", 2}}, At(0));
  d.OnNodeReady(0, At(1));
  const auto told = d.OnNodeLost(1, "its connection broke", At(2));
  ASSERT_EQ(Of<D::EndBadly>(told).size(), 1u);
  EXPECT_EQ(Of<D::EndBadly>(told)[0].why, "the job was not started");
  EXPECT_TRUE(d.over());
}

TEST(ElasticDriverTest, StartsNoMoreThanTheMost) {
  D d(Sizes(2, 1, 3));
  d.OnHosts({{"a", 2}, {"b", 2}}, At(0));
  d.OnNodeReady(0, At(0));
  EXPECT_EQ(d.running(), 2);
  EXPECT_EQ(Of<D::StartProcess>(d.OnNodeReady(1, At(1))).size(), 1u);
}

TEST(ElasticDriverTest, AKilledProcessIsStartedAgainOnItsHost) {
  D d = TwoHosts(Sizes(4, 2, 4));
  const auto actions = End(&d, 1, kKilled, At(100));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(Of<D::Tell>(actions)[0].line,
            "process 1 (host a) was killed by signal 9 (Killed); the job goes "
            "on, and host a gets a new process in 1 s");
  EXPECT_EQ(d.deadline(), At(101));
  EXPECT_TRUE(d.OnTime(At(100)).empty());
  const auto again = Of<D::StartProcess>(d.OnTime(At(101)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].process, 4);
  EXPECT_EQ(again[0].node, 0);
  EXPECT_EQ(again[0].slot, 1);
}

TEST(ElasticDriverTest, AHostThatIsListedAgainStillCoolsDown) {
  const D::Settings settings = {
      .first_size = 2, .max_size = 4, .shortest_cooldown = seconds(10)};
  D d = TwoHosts(settings);
  d.OnNodeLost(1, "it is lost", At(100));
  d.OnHosts({{"a", 2}}, At(101));
  EXPECT_TRUE(
      Of<D::StartNode>(d.OnHosts({{"a", 2}, {"b", 2}}, At(102))).empty());
  EXPECT_EQ(d.deadline(), At(110));
  EXPECT_EQ(Of<D::StartNode>(d.OnTime(At(110))).size(), 1u);
  // The same after its node was stopped.
  End(&d, 0, kKilled, At(200));
  d.OnHosts({{"b", 2}}, At(201));
  EXPECT_EQ(Of<D::StopNode>(End(&d, 1, kClean, At(202))).size(), 1u);
  EXPECT_TRUE(
      Of<D::StartNode>(d.OnHosts({{"a", 2}, {"b", 2}}, At(203))).empty());
  EXPECT_EQ(Of<D::StartNode>(d.OnTime(At(210))).size(), 1u);
}

TEST(ElasticDriverTest, AHostThatFailsAgainIsPutAsideForLonger) {
  D d = TwoHosts({.first_size = 4,
                  .min_size = 2,
                  .max_size = 4,
                  .shortest_cooldown = seconds(10),
                  .longest_cooldown = seconds(25)});
  int process = 1, now = 100;
  for (const int cooldown : {10, 20, 25, 25}) {
    End(&d, process, kKilled, At(now));
    EXPECT_EQ(d.deadline(), At(now + cooldown));
    now += cooldown;
    const auto again = Of<D::StartProcess>(d.OnTime(At(now)));
    ASSERT_EQ(again.size(), 1u);
    process = again[0].process;
    now += 61;  // a life that is not short
  }
  // After a long time without failures the cool-down is the shortest again.
  now += 601;
  End(&d, process, kKilled, At(now));
  EXPECT_EQ(d.deadline(), At(now + 10));
}

TEST(ElasticDriverTest, WhatFailsTogetherIsOneFailure) {
  D d(Sizes(4, 2, 4));
  d.OnHosts({{"a", 4}}, At(0));
  d.OnNodeReady(0, At(0));
  for (const int process : {0, 1, 2}) End(&d, process, kFailed, At(10));
  EXPECT_FALSE(d.over());  // after one try
  EXPECT_EQ(d.deadline(), At(11));
  d.OnNodeLost(0, "ssh ended", At(10));
  EXPECT_EQ(d.deadline(), At(11));
}

// Lets all processes that are started from `now` on fail; returns the time at
// which that ended the job, and the last actions.
int FailEachStart(D* d, int now, D::Actions* last) {
  for (const int end = now + 200; !d->over() && now < end; ++now) {
    for (const auto& p : Of<D::StartProcess>(d->OnTime(At(now)))) {
      if (!d->over()) *last = End(d, p.process, kFailed, At(now));
    }
  }
  return now - 1;
}

TEST(ElasticDriverTest, AProgramThatCannotWorkEndsTheJob) {
  D d = TwoHosts(Sizes(4, 2, 4));
  for (const int process : {0, 1, 2, 3}) End(&d, process, kFailed, At(1));
  D::Actions last;
  EXPECT_EQ(FailEachStart(&d, 1, &last), 4);  // 1, 2 and 4 s
  const auto end = Of<D::EndBadly>(last);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_NE(end[0].why.find("3 times on every host"), std::string::npos)
      << end[0].why;
}

TEST(ElasticDriverTest, AProgramThatCannotWorkAnyMoreEndsTheJob) {
  D d = TwoHosts(Sizes(4, 2, 4));
  for (const int process : {0, 1, 2, 3}) End(&d, process, kFailed, At(1000));
  D::Actions last;
  EXPECT_LT(FailEachStart(&d, 1000, &last), 1060);
  EXPECT_TRUE(d.over());
}

// Fails the running processes, one of two hosts after the other, and lets new
// ones start; returns their numbers.
std::vector<int> FailAll(D* d, const std::vector<int>& processes, int now,
                         const Exit& first, D::Actions* last) {
  for (const int process : processes) {
    *last = End(d, process, process == processes[0] ? first : kFailed, At(now));
  }
  std::vector<int> started;
  for (const auto& p : Of<D::StartProcess>(d->OnTime(At(now + 60)))) {
    started.push_back(p.process);
  }
  return started;
}

TEST(ElasticDriverTest, AnErrorThatRecursOnAllRanksEndsTheJob) {
  D d = TwoHosts(Sizes(4, 2, 4));
  D::Actions last;
  std::vector<int> running = FailAll(&d, {0, 1, 2, 3}, 1000, kFailed, &last);
  running = FailAll(&d, running, 1300, kFailed, &last);
  ASSERT_EQ(running.size(), 4u);
  EXPECT_TRUE(Of<D::EndBadly>(last).empty());
  FailAll(&d, running, 1600, kFailed, &last);
  const auto end = Of<D::EndBadly>(last);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_NE(end[0].why.find("all processes have failed 3 times in a row"),
            std::string::npos)
      << end[0].why;
}

TEST(ElasticDriverTest, FailuresOfAllThatAreRareOrHaveAnotherCauseDoNot) {
  for (const bool rare : {false, true}) {
    D d = TwoHosts(Sizes(4, 2, 4));
    D::Actions last;
    std::vector<int> running = {0, 1, 2, 3};
    for (int i = 0; i < 3 * kHopeless; ++i) {
      running = FailAll(&d, running, 1000 + (rare ? 700 : 300) * i,
                        rare ? kFailed : kKilled, &last);
      ASSERT_EQ(running.size(), 4u) << rare << " " << i;
    }
  }
}

TEST(ElasticDriverTest, ALostNodeIsStartedAgain) {
  D d = TwoHosts(Sizes(4, 2, 4));
  d.OnNodeLost(1, "ssh ended", At(100));
  EXPECT_EQ(d.running(), 2);
  const auto started = Of<D::StartNode>(d.OnTime(At(101)));
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].node, 2);
  EXPECT_EQ(started[0].host, "b");
  EXPECT_TRUE(d.OnNodeReady(1, At(102)).empty());  // that node is gone
  EXPECT_EQ(Of<D::StartProcess>(d.OnNodeReady(2, At(102))).size(), 2u);
}

TEST(ElasticDriverTest, ProcessesOfAHostThatIsNotListedLeave) {
  D d = TwoHosts(Sizes(4, 2, 4));
  const auto signals = Of<D::SignalProcess>(d.OnHosts({{"a", 2}}, At(50)));
  ASSERT_EQ(signals.size(), 2u);
  EXPECT_EQ(signals[0].process, 2);
  EXPECT_EQ(signals[0].signal, SIGTERM);
  EXPECT_TRUE(End(&d, 2, kClean, At(51)).empty());
  EXPECT_FALSE(d.finishing());
  const auto killed = Of<D::SignalProcess>(d.OnTime(At(80)));
  ASSERT_EQ(killed.size(), 1u);
  EXPECT_EQ(killed[0].process, 3);
  EXPECT_EQ(killed[0].signal, SIGKILL);
  const auto stopped = Of<D::StopNode>(End(&d, 3, kKilled, At(81)));
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].node, 1);
  // It comes back.
  EXPECT_EQ(Of<D::StartNode>(d.OnHosts({{"a", 2}, {"b", 1}}, At(90))).size(),
            1u);
  EXPECT_EQ(Of<D::StartProcess>(d.OnNodeReady(2, At(91))).size(), 1u);
}

TEST(ElasticDriverTest, TooFewForTooLongEndsTheJob) {
  D d = TwoHosts({.first_size = 4,
                  .min_size = 3,
                  .max_size = 4,
                  .patience = seconds(30),
                  .shortest_cooldown = seconds(100),
                  .longest_cooldown = seconds(100)});
  d.OnNodeLost(1, "ssh ended", At(100));
  EXPECT_EQ(d.deadline(), At(130));
  EXPECT_TRUE(d.OnTime(At(129)).empty());
  const auto end = Of<D::EndBadly>(d.OnTime(At(130)));
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].why,
            "only 2 of at least 3 processes could run for 30 s "
            "(--elastic-timeout)");
  EXPECT_TRUE(d.over());
}

TEST(ElasticDriverTest, ChangesAreLimited) {
  D d = TwoHosts(
      {.first_size = 4, .min_size = 2, .max_size = 4, .reset_limit = 1});
  End(&d, 0, kKilled, At(100));
  EXPECT_FALSE(d.over());
  EXPECT_EQ(Of<D::EndBadly>(End(&d, 2, kKilled, At(200)))[0].why,
            "process 2 (host b) was killed by signal 9 (Killed); that is "
            "change 2 of the job's processes, and --reset-limit is 1");
}

TEST(ElasticDriverTest, AHostThatIsLostAndThenNotListedIsOneChange) {
  D d = TwoHosts(
      {.first_size = 4, .min_size = 2, .max_size = 4, .reset_limit = 1});
  d.OnNodeLost(1, "ssh ended", At(100));
  EXPECT_TRUE(d.OnHosts({{"a", 2}}, At(100)).empty());
  // When it is listed again, the list has changed.
  EXPECT_EQ(Of<D::EndBadly>(d.OnHosts({{"a", 2}, {"b", 2}}, At(200))).size(),
            1u);
}

TEST(ElasticDriverTest, WhatTheCallerKnowsIsSaidInItsWords) {
  D d = TwoHosts({.first_size = 4,
                  .min_size = 2,
                  .max_size = 4,
                  .reset_limit = 1,
                  .shortest_cooldown = std::chrono::milliseconds(1050),
                  .reset_limit_name = "reset_limit"});
  bool failed = false;
  EXPECT_EQ(
      Of<D::Tell>(d.OnProcessEnd(0, kKilled, "died", At(100), &failed))[0].line,
      "process 0 (host a) died; the job goes on, and host a gets a new "
      "process in 1.05 s");
  EXPECT_EQ(
      Of<D::EndBadly>(d.OnProcessEnd(2, kKilled, "died", At(200), &failed))[0]
          .why,
      "process 2 (host b) died; that is change 2 of the job's processes, "
      "and reset_limit is 1");
}

TEST(ElasticDriverTest, NothingIsStartedOnceAProcessHasFinished) {
  D d = TwoHosts(Sizes(4, 2, 4));
  bool failed = false;
  EXPECT_TRUE(End(&d, 0, kClean, At(100), &failed).empty());
  EXPECT_TRUE(d.finishing());
  EXPECT_FALSE(failed);
  EXPECT_TRUE(End(&d, 1, kKilled, At(100), &failed).empty());
  EXPECT_TRUE(failed);
  EXPECT_EQ(d.running(), 2);
}

TEST(ElasticDriverTest,
     AHostThatIsLostBeforeItsProcessesHaveFinishedIsAFailure) {
  D d = TwoHosts(Sizes(4, 2, 4));
  End(&d, 0, kClean, At(100));
  End(&d, 1, kClean, At(100));
  EXPECT_TRUE(d.OnNodeLost(0, "ssh ended", At(101)).empty());
  const auto end = Of<D::EndBadly>(d.OnNodeLost(1, "ssh ended", At(101)));
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].why, "host b: ssh ended; its processes had not finished");
}

TEST(ElasticDriverTest, WhoWaitsWhenOthersHaveFinishedIsEnded) {
  D d = TwoHosts(Sizes(4, 2, 4));
  End(&d, 0, kClean, At(100));
  EXPECT_EQ(d.deadline(), At(105));
  EXPECT_TRUE(d.OnTime(At(104)).empty());
  const auto signals = Of<D::SignalProcess>(d.OnTime(At(105)));
  ASSERT_EQ(signals.size(), 3u);
  EXPECT_EQ(signals[0].signal, SIGTERM);
  EXPECT_FALSE(d.deadline());
  EXPECT_TRUE(d.OnTime(At(200)).empty());
  bool failed = true;
  End(&d, 1, {.signaled = true, .value = SIGTERM}, At(201), &failed);
  EXPECT_FALSE(failed);
  End(&d, 2, kFailed, At(202), &failed);
  EXPECT_TRUE(failed);
}

TEST(ElasticDriverTest, HowProcessesEndThatWereAskedToLeaveDoesNotMatter) {
  D d = TwoHosts(Sizes(4, 2, 4));
  d.OnHosts({{"a", 2}}, At(100));  // 2 and 3 leave
  End(&d, 0, kClean, At(110));
  EXPECT_EQ(Of<D::SignalProcess>(d.OnTime(At(115))).size(), 1u);  // to 1
  const auto killed = Of<D::SignalProcess>(d.OnTime(At(130)));
  ASSERT_EQ(killed.size(), 2u);
  EXPECT_EQ(killed[0].signal, SIGKILL);
  bool failed = true;
  End(&d, 2, kKilled, At(131), &failed);
  EXPECT_FALSE(failed);
  EXPECT_TRUE(d.OnNodeLost(1, "ssh ended", At(132)).empty());
  EXPECT_FALSE(d.over());
  EXPECT_EQ(d.running(), 1);
}

// Any order of events: never more processes than allowed, never two in a slot,
// none on a node that is not there.
TEST(ElasticDriverTest, RandomEventsKeepTheRules) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 r(seed);
    const auto below = [&](int n) { return static_cast<int>(r() % n); };
    D d(Sizes(2, 1, 5));
    std::map<int, std::string> nodes;  // that live
    std::map<int, std::pair<std::string, int>> processes;
    int now = 0;
    const auto take = [&](const D::Actions& actions) {
      for (const D::Action& a : actions) {
        if (const auto* s = std::get_if<D::StartNode>(&a)) {
          for (const auto& [n, host] : nodes) EXPECT_NE(host, s->host);
          EXPECT_TRUE(nodes.emplace(s->node, s->host).second);
        } else if (const auto* stop = std::get_if<D::StopNode>(&a)) {
          EXPECT_EQ(nodes.erase(stop->node), 1u);
        } else if (const auto* p = std::get_if<D::StartProcess>(&a)) {
          ASSERT_TRUE(nodes.contains(p->node));
          const auto place = std::make_pair(nodes[p->node], p->slot);
          for (const auto& [n, other] : processes) EXPECT_NE(other, place);
          processes[p->process] = place;
        } else if (const auto* s = std::get_if<D::SignalProcess>(&a)) {
          EXPECT_TRUE(processes.contains(s->process));
        }
      }
      EXPECT_LE(processes.size(), 5u);
    };
    for (int step = 0; step < 200 && !d.over() && !d.finishing(); ++step) {
      now += below(20);
      const int what = below(8);
      if (what == 0) {
        std::vector<HostSlots> hosts;
        for (const char* name : {"a", "b", "c"}) {
          if (below(3) > 0) hosts.push_back({name, 1 + below(3)});
        }
        take(d.OnHosts(hosts, At(now)));
      } else if (what <= 2 && !nodes.empty()) {
        const int node = std::next(nodes.begin(), below(nodes.size()))->first;
        take(d.OnNodeReady(node, At(now)));
      } else if (what == 3 && !nodes.empty()) {
        const auto [node, host] =
            *std::next(nodes.begin(), below(nodes.size()));
        nodes.erase(node);
        std::erase_if(processes, [&, h = host](const auto& p) {
          return p.second.first == h;
        });
        take(d.OnNodeLost(node, "gone", At(now)));
      } else if (what <= 5 && !processes.empty()) {
        const int p =
            std::next(processes.begin(), below(processes.size()))->first;
        processes.erase(p);
        take(End(&d, p, below(20) == 0 ? kClean : kKilled, At(now)));
      } else {
        take(d.OnTime(At(now)));
      }
      ASSERT_EQ(d.running(), static_cast<int>(processes.size())) << seed;
    }
  }
}

// SIGTERM from elsewhere, a scheduler or a person.
TEST(ElasticDriverTest, AProcessThatLeavesHasNotFinished) {
  for (const Exit exit : {kAskedToLeave, kTerminated}) {
    D d = TwoHosts(Sizes(4, 2, 4));
    bool failed = false;
    End(&d, 1, exit, At(10), &failed);
    EXPECT_FALSE(failed);
    EXPECT_FALSE(d.finishing());
    const auto started = Of<D::StartProcess>(d.OnTime(At(11)));
    ASSERT_EQ(started.size(), 1u);
    EXPECT_EQ(started[0].node, 0);
    // However often: it says nothing about the program.
    for (int process = 4; process < 4 + 2 * kHopeless; ++process) {
      End(&d, process, exit, At(100 * process), &failed);
      EXPECT_FALSE(d.over());
      ASSERT_EQ(Of<D::StartProcess>(d.OnTime(At(100 * process + 70))).size(),
                1u);
    }
  }
}

TEST(ElasticDriverTest, TheOthersMayEndBySigtermOnceOneHasFinished) {
  D d = TwoHosts(Sizes(4, 2, 4));
  End(&d, 0, kClean, At(10));
  EXPECT_EQ(Of<D::SignalProcess>(d.OnTime(At(15))).size(), 3u);
  bool failed = true;
  End(&d, 2, kTerminated, At(16), &failed);
  EXPECT_FALSE(failed);
  End(&d, 3, kFailed, At(16), &failed);
  EXPECT_TRUE(failed);
}

TEST(ElasticDriverTest, WhoWasStillTrainingWhenAnotherHadFinishedFails) {
  D d = TwoHosts(Sizes(4, 2, 4));
  End(&d, 0, kClean, At(10));
  EXPECT_EQ(Of<D::SignalProcess>(d.OnTime(At(15))).size(), 3u);
  bool failed = false;
  const auto lines = Of<D::Tell>(End(&d, 1, kAskedToLeave, At(16), &failed));
  EXPECT_TRUE(failed);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0].line.find("process 1 (host a) was still training 5 s after "
                         "another process had trained to the end"),
      0u);
}

// A process's host is delisted just when the process has trained to the end.
TEST(ElasticDriverTest, NothingIsStartedOnceAProcessThatLeavesHasFinished) {
  for (const int code : {0, 1}) {
    D d(Sizes(1, 1, 1));
    d.OnHosts({{"a", 1}}, At(0));
    d.OnNodeReady(0, At(0));
    d.OnHosts({{"b", 1}}, At(10));
    d.OnNodeReady(1, At(10));
    bool failed = false;
    const Exit exit{.value = code, .finished = true};
    EXPECT_TRUE(End(&d, 0, exit, At(11), &failed).empty());
    EXPECT_TRUE(d.finishing());
    EXPECT_EQ(failed, code != 0) << "nobody else could end well";
  }
  D d = TwoHosts(Sizes(4, 2, 4));
  d.OnHosts({{"a", 2}}, At(10));
  bool failed = true;
  Exit exit = kKilled;
  exit.finished = true;
  End(&d, 2, exit, At(40), &failed);
  EXPECT_FALSE(failed);
  EXPECT_EQ(Of<D::SignalProcess>(d.OnTime(At(45))).size(), 2u);
}

// The training does not start again, so the process's failure is the job's.
TEST(ElasticDriverTest, AProcessThatFailsAfterItsTrainingIsNotReplaced) {
  D d = TwoHosts(Sizes(4, 2, 4));
  Exit exit = kFailed;
  exit.finished = true;
  bool failed = false;
  End(&d, 2, exit, At(10), &failed);
  EXPECT_TRUE(failed);
  EXPECT_TRUE(d.finishing());
  EXPECT_TRUE(Of<D::StartProcess>(d.OnTime(At(100))).empty());
}

}  // namespace
}  // namespace maypole::launcher
