#include "worker/core/operations/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

using Runs = std::vector<std::vector<uint32_t>>;
using Slots = std::vector<uint32_t>;

proto::PeerMessage Ready(uint64_t number, uint64_t position) {
  proto::PeerMessage m;
  m.set_schedule(number);
  m.set_ready(position);
  return m;
}

proto::PeerMessage Refusal(uint64_t number, uint64_t from,
                           const std::string& text = "") {
  proto::PeerMessage m;
  m.set_schedule(number);
  m.mutable_refusal()->set_from(from);
  m.mutable_refusal()->set_why(proto::SCHEDULE_OTHER_OPERATION);
  m.mutable_refusal()->set_text(text);
  return m;
}

// Node 0 of two. A round has two runs: slots 0 and 1, then slot 2.
class ScheduleTest : public testing::Test {
 protected:
  void SetUp() override {
    schedule_.Begin(1, 2, 0, {{0, {0, 1}, {0, 1}}, {1, {2}, {0, 1}}}, 1000);
  }
  // The positions of which node 0 has said that it is ready.
  std::vector<uint64_t> SaidReady() {
    std::vector<uint64_t> out;
    for (const auto& m : schedule_.TakeMessages()) {
      EXPECT_EQ(m.nodes, Slots{1});
      EXPECT_EQ(m.message.schedule(), 1u);
      if (m.message.has_ready()) out.push_back(m.message.ready());
    }
    return out;
  }
  static Runs SlotsOf(const std::vector<Schedule::Execution>& executions) {
    Runs out;
    for (const Schedule::Execution& e : executions) {
      EXPECT_TRUE(e.inputs.empty());
      out.push_back(e.slots);
    }
    return out;
  }
  Runs TakeRuns() { return SlotsOf(schedule_.TakeRuns()); }
  Schedule schedule_{0, 2};
};

TEST_F(ScheduleTest, ARunIsExecutedWhenAllItsNodesAreReady) {
  schedule_.Add(1, false, false);
  EXPECT_TRUE(SaidReady().empty());
  schedule_.Add(0, false, false);
  EXPECT_EQ(SaidReady(), std::vector<uint64_t>{0});
  EXPECT_TRUE(schedule_.TakeRuns().empty());
  schedule_.OnPeer(1, Ready(1, 0));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}}));
  EXPECT_EQ(schedule_.executed(), 1u);
  // The next run, then the first one of the next round.
  schedule_.OnPeer(1, Ready(1, 1));
  schedule_.Add(2, false, false);
  EXPECT_EQ(TakeRuns(), (Runs{{2}}));
  schedule_.Add(0, false, false);
  schedule_.Add(1, false, false);
  EXPECT_EQ(SaidReady(), (std::vector<uint64_t>{1, 2}));
  schedule_.OnPeer(1, Ready(1, 2));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}}));
  EXPECT_FALSE(schedule_.over());
}

TEST_F(ScheduleTest, ALaterRunWaitsForItsTurn) {
  schedule_.Add(2, false, false);
  EXPECT_TRUE(SaidReady().empty());
  schedule_.Add(0, false, false);
  schedule_.Add(1, false, false);
  EXPECT_EQ(SaidReady(), (std::vector<uint64_t>{0, 1}));
  schedule_.OnPeer(1, Ready(1, 0));
  schedule_.OnPeer(1, Ready(1, 1));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}, {2}}));
}

TEST_F(ScheduleTest, ARefusalDropsWhatTheOtherNodeIsNotReadyFor) {
  schedule_.Add(0, false, false);
  schedule_.Add(1, false, false);
  schedule_.Add(2, false, false);
  schedule_.OnPeer(1, Ready(1, 0));
  schedule_.OnPeer(1, Refusal(1, 1, "new"));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}}));
  // Node 0 has refused as well, from the first run for which it was not ready.
  const auto said = schedule_.TakeMessages();
  ASSERT_EQ(said.size(), 3u);
  EXPECT_EQ(said[2].message.refusal().from(), 2u);
  EXPECT_EQ(said[2].message.refusal().text(), "new");
  ASSERT_TRUE(schedule_.over());
  EXPECT_EQ(schedule_.why(), proto::SCHEDULE_OTHER_OPERATION);
  EXPECT_EQ(schedule_.text(), "new");
  EXPECT_EQ(schedule_.End(), std::set<uint32_t>{2});
  EXPECT_FALSE(schedule_.active());
}

TEST_F(ScheduleTest, AfterItsRefusalANodeStillExecutesWhatItWasReadyFor) {
  schedule_.Add(0, false, false);
  schedule_.Add(1, false, false);
  schedule_.Refuse(proto::SCHEDULE_REQUEST, "a join");
  schedule_.Add(2, false, false);
  EXPECT_EQ(SaidReady(), std::vector<uint64_t>{0});
  EXPECT_FALSE(schedule_.over());
  schedule_.OnPeer(1, Ready(1, 0));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}}));
  EXPECT_FALSE(schedule_.over());
  schedule_.OnPeer(1, Refusal(1, 1));
  ASSERT_TRUE(schedule_.over());
  EXPECT_EQ(schedule_.text(), "a join");
  EXPECT_EQ(schedule_.End(), std::set<uint32_t>{2});
}

TEST_F(ScheduleTest, WhoWaitsTooLongRefuses) {
  EXPECT_EQ(schedule_.WaitMs(), -1);
  schedule_.Add(0, false, false);
  EXPECT_EQ(schedule_.WaitMs(), -1);
  EXPECT_EQ(schedule_.OnTime(5000), std::nullopt);
  schedule_.Urge(0);
  EXPECT_EQ(schedule_.WaitMs(), kScheduleLateMs);
  EXPECT_EQ(schedule_.OnTime(5000 + kScheduleLateMs - 1), std::nullopt);
  EXPECT_EQ(schedule_.WaitMs(), 1);
  EXPECT_TRUE(schedule_.TakeMessages().empty());
  EXPECT_EQ(schedule_.OnTime(5000 + kScheduleLateMs), 0u);
  schedule_.Refuse(proto::SCHEDULE_LATE, "late");
  EXPECT_EQ(schedule_.OnTime(5000 + kScheduleLateMs), std::nullopt);
  const auto said = schedule_.TakeMessages();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].message.refusal().from(), 0u);
  EXPECT_EQ(said[0].message.refusal().why(), proto::SCHEDULE_LATE);
  EXPECT_EQ(schedule_.WaitMs(), -1);
}

TEST_F(ScheduleTest, AMessageMayComeBeforeTheScheduleDoes) {
  Schedule other(1, 2);
  other.OnPeer(0, Ready(1, 0));
  other.Begin(1, 1, 0, {{0, {7}, {0, 1}}}, 0);
  other.Add(7, false, false);
  EXPECT_EQ(SlotsOf(other.TakeRuns()), (Runs{{7}}));
  other.OnPeer(0, Refusal(1, 1));
  ASSERT_TRUE(other.over());
  other.End();
  // A refusal of the next schedule, before this node knows it; and an old
  // message.
  other.OnPeer(0, Refusal(2, 0));
  other.OnPeer(0, Ready(1, 5));
  other.Begin(2, 1, 0, {{0, {7}, {0, 1}}}, 0);
  EXPECT_TRUE(other.over());
}

// The run of slots 0 and 1 is small.
class SmallScheduleTest : public ScheduleTest {
 protected:
  void SetUp() override {
    schedule_.Begin(1, 2, 0, {{0, {0, 1}, {0, 1}, true}, {1, {2}, {0, 1}}},
                    1000);
  }
  static proto::PeerMessage ReadyWith(uint64_t position,
                                      const std::string& inputs) {
    proto::PeerMessage m = Ready(1, position);
    m.set_inputs(inputs);
    return m;
  }
  void AddRound(bool copied) {
    schedule_.Add(0, false, copied);
    schedule_.Add(1, false, true);
    schedule_.Add(2, false, true);
  }
};

TEST_F(SmallScheduleTest, InputsTravelWithTheMessage) {
  AddRound(true);
  const auto messages = schedule_.TakeMessages();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].inputs_of, (Slots{0, 1}));
  EXPECT_TRUE(messages[1].inputs_of.empty());  // it is not small
  schedule_.OnPeer(1, ReadyWith(0, "inputs"));
  schedule_.OnPeer(1, Ready(1, 1));
  const auto runs = schedule_.TakeRuns();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].slots, (Slots{0, 1}));
  EXPECT_EQ(runs[0].inputs, (std::vector<std::string>{"", "inputs"}));
  EXPECT_EQ(runs[0].self, 0u);
  EXPECT_TRUE(runs[1].inputs.empty());
}

TEST_F(SmallScheduleTest, IfANodeHasNoCopiesTheInputsTravelAsUsual) {
  AddRound(false);
  EXPECT_TRUE(schedule_.TakeMessages()[0].inputs_of.empty());
  schedule_.OnPeer(1, ReadyWith(0, "inputs"));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}}));
  schedule_.OnPeer(1, Ready(1, 1));
  EXPECT_EQ(TakeRuns(), (Runs{{2}}));
  // The same if the other node has not sent its inputs.
  AddRound(true);
  schedule_.OnPeer(1, Ready(1, 2));
  EXPECT_EQ(TakeRuns(), (Runs{{0, 1}}));
  // Inputs of the first round are not taken for those of a later one.
  schedule_.OnPeer(1, Ready(1, 3));
  EXPECT_EQ(TakeRuns(), (Runs{{2}}));
  AddRound(true);
  schedule_.OnPeer(1, ReadyWith(4, "later"));
  EXPECT_EQ(schedule_.TakeRuns()[0].inputs[1], "later");
}

TEST_F(SmallScheduleTest, InputsOfADroppedRunAreForgotten) {
  AddRound(true);
  schedule_.OnPeer(1, Refusal(1, 0));
  EXPECT_TRUE(TakeRuns().empty());
  ASSERT_TRUE(schedule_.over());
  EXPECT_EQ(schedule_.End(), (std::set<uint32_t>{0, 1, 2}));
}

// Node 1 of seven in a tree of two children: 0 is above, 3 and 4 are below.
class TreeTest : public testing::Test {
 protected:
  void SetUp() override {
    const Slots all = {0, 1, 2, 3, 4, 5, 6};
    schedule_.Begin(1, 1, 2, {{0, {7}, all}}, 1000);
  }
  Schedule::Message Only() {
    const auto messages = schedule_.TakeMessages();
    EXPECT_EQ(messages.size(), 1u);
    return messages.empty() ? Schedule::Message() : messages[0];
  }
  Schedule schedule_{1, 7};
};

TEST_F(TreeTest, ANodeIsReadyWithAllBelowIt) {
  schedule_.OnPeer(3, Ready(1, 0));
  schedule_.Add(7, false, false);
  EXPECT_TRUE(schedule_.TakeMessages().empty());
  schedule_.OnPeer(4, Ready(1, 0));
  const Schedule::Message up = Only();
  EXPECT_EQ(up.nodes, Slots{0});
  EXPECT_EQ(up.message.ready(), 0u);
  EXPECT_TRUE(schedule_.TakeRuns().empty());
  schedule_.OnPeer(0, Ready(1, 0));
  const Schedule::Message down = Only();
  EXPECT_EQ(down.nodes, (Slots{3, 4}));
  EXPECT_EQ(down.message.ready(), 0u);
  EXPECT_EQ(schedule_.TakeRuns().size(), 1u);
}

TEST_F(TreeTest, ARefusalIsToldAtOnceAndItsPositionWhenAllBelowHaveRefused) {
  schedule_.Add(7, false, false);
  schedule_.Refuse(proto::SCHEDULE_REQUEST, "a join");
  const auto leaving = schedule_.TakeMessages();
  ASSERT_EQ(leaving.size(), 2u);
  EXPECT_EQ(leaving[0].nodes, Slots{0});
  EXPECT_EQ(leaving[1].nodes, (Slots{3, 4}));
  EXPECT_EQ(leaving[1].message.leaving().text(), "a join");
  schedule_.OnPeer(3, Refusal(1, 1));
  EXPECT_TRUE(schedule_.TakeMessages().empty());
  schedule_.OnPeer(4, Refusal(1, 0));
  const Schedule::Message up = Only();
  EXPECT_EQ(up.nodes, Slots{0});
  EXPECT_EQ(up.message.refusal().from(), 0u);
  EXPECT_FALSE(schedule_.over());
  schedule_.OnPeer(0, Refusal(1, 0));
  EXPECT_EQ(Only().nodes, (Slots{3, 4}));
  EXPECT_TRUE(schedule_.TakeRuns().empty());
  ASSERT_TRUE(schedule_.over());
  EXPECT_EQ(schedule_.End(), std::set<uint32_t>{7});
}

// Some nodes with overlapping process sets execute a schedule until one of them
// does something else, at a random moment. Only the messages from one node to
// another stay in order.
class World {
 public:
  World(uint32_t seed, bool is_tree)
      : random_(seed), fan_out_(is_tree ? 1 + Pick(3) : 0) {
    const uint32_t nodes = 2 + Pick(is_tree ? 9 : 3);
    const uint32_t length = 1 + Pick(4);
    uint32_t slot = 0;
    for (uint32_t i = 0; i < length; ++i) {
      ScheduledRun run{i, {}, {}};
      for (uint32_t n = 1 + Pick(3); n > 0; --n) run.slots.push_back(slot++);
      for (uint32_t n = 0; n < nodes; ++n) {
        if (is_tree || Pick(4) > 0) run.nodes.push_back(n);
      }
      if (run.nodes.size() < 2) run.nodes = {0, nodes - 1};
      run.small = !is_tree && Pick(2) == 0;
      round_.push_back(run);
    }
    for (uint32_t n = 0; n < nodes; ++n) nodes_.push_back({Schedule(n, nodes)});
  }

  void Execute() {
    for (int events = 0; events < 60000 && !AllOver(); ++events) {
      const uint32_t n = Pick(static_cast<uint32_t>(nodes_.size()));
      switch (Pick(3)) {
        case 0:
          Submit(n);
          break;
        case 1:
          Deliver(n);
          break;
        default:
          if (!nodes_[n].begun) {
            Begin(n);
          } else if (Pick(fan_out_ == 0 ? 60 : 600) == 0) {
            nodes_[n].schedule.Refuse(proto::SCHEDULE_REQUEST, "");
          }
      }
      After(n);
    }
  }

  void Check() {
    ASSERT_TRUE(AllOver());
    // A run was executed by all of its nodes, or by none.
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> executed;
    for (const Node& node : nodes_) {
      std::map<uint32_t, uint64_t> rounds;
      uint64_t last = 0;
      for (const Slots& slots : node.runs) {
        const uint32_t index = IndexOf(slots);
        const uint64_t round = rounds[index]++;
        const uint64_t position = round * round_.size() + index;
        EXPECT_TRUE(position >= last) << "out of order";
        last = position;
        ++executed[{round, index}];
      }
    }
    for (const auto& [run, times] : executed) {
      EXPECT_EQ(times, round_[run.second].nodes.size());
    }
    // Each submitted operation was executed, or is left over.
    for (Node& node : nodes_) {
      std::map<uint32_t, int> count = node.submitted;
      for (const Slots& slots : node.runs) {
        for (const uint32_t slot : slots) --count[slot];
      }
      for (const uint32_t slot : node.left) --count[slot];
      for (const auto& [slot, n] : count) EXPECT_EQ(n, 0) << slot;
    }
  }
  uint64_t executed() const { return nodes_[0].runs.size(); }
  uint64_t executed_small() const { return executed_small_; }

 private:
  struct Node {
    Schedule schedule;
    bool begun = false;
    bool over = false;
    std::map<uint32_t, std::deque<proto::PeerMessage>> inbox = {};  // by sender
    std::map<uint32_t, int> submitted = {};
    std::set<uint32_t> pending = {};
    std::vector<Slots> runs = {};
    std::set<uint32_t> left = {};
  };

  uint32_t Above(uint32_t n) const {
    return n == 0 ? UINT32_MAX : (n - 1) / fan_out_;
  }
  uint32_t Pick(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool AllOver() const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const Node& n) { return n.over; });
  }
  uint32_t IndexOf(const Slots& slots) const {
    for (const ScheduledRun& run : round_) {
      if (run.slots == slots) return run.index;
    }
    ADD_FAILURE() << "an unknown run";
    return 0;
  }
  void Begin(uint32_t n) {
    std::vector<ScheduledRun> runs;
    for (const ScheduledRun& run : round_) {
      if (std::count(run.nodes.begin(), run.nodes.end(), n) > 0) {
        runs.push_back(run);
      }
    }
    nodes_[n].schedule.Begin(1, static_cast<uint32_t>(round_.size()), fan_out_,
                             runs, 0);
    nodes_[n].begun = true;
  }
  // Submits any operation of the node that is not pending.
  void Submit(uint32_t n) {
    Node& node = nodes_[n];
    if (!node.begun || node.over) return;
    const ScheduledRun& run =
        round_[Pick(static_cast<uint32_t>(round_.size()))];
    const uint32_t slot =
        run.slots[Pick(static_cast<uint32_t>(run.slots.size()))];
    // Once per round, as a program does.
    if (!node.schedule.Has(slot) || node.pending.contains(slot)) return;
    const int least = Least(node);
    if (node.submitted[slot] > least) return;
    ++node.submitted[slot];
    node.pending.insert(slot);
    node.schedule.Add(slot, false, /*copied=*/Pick(8) > 0);
  }
  // A small run has the inputs of all of its nodes for this position.
  void CheckInputs(uint32_t n, const Schedule::Execution& run) {
    if (run.inputs.empty()) return;
    const ScheduledRun& scheduled = round_[IndexOf(run.slots)];
    ASSERT_EQ(run.inputs.size(), scheduled.nodes.size());
    std::string position;
    for (size_t i = 0; i < run.inputs.size(); ++i) {
      if (i == run.self) {
        EXPECT_EQ(scheduled.nodes[i], n);
        continue;
      }
      const std::string of = std::to_string(scheduled.nodes[i]) + "/";
      ASSERT_EQ(run.inputs[i].substr(0, of.size()), of);
      const std::string at = run.inputs[i].substr(of.size());
      EXPECT_TRUE(position.empty() || position == at);
      position = at;
    }
  }
  int Least(Node& node) {
    int least = INT32_MAX;
    for (const ScheduledRun& run : round_) {
      for (const uint32_t slot : run.slots) {
        if (!node.schedule.Has(slot)) continue;
        least = std::min(least, node.submitted[slot]);
      }
    }
    return least;
  }
  void Deliver(uint32_t n) {
    Node& node = nodes_[n];
    const uint32_t from = Pick(static_cast<uint32_t>(nodes_.size()));
    if (node.inbox[from].empty()) return;
    node.schedule.OnPeer(from, node.inbox[from].front());
    node.inbox[from].pop_front();
  }
  void After(uint32_t n) {
    Node& node = nodes_[n];
    for (const Schedule::Execution& run : node.schedule.TakeRuns()) {
      node.runs.push_back(run.slots);
      for (const uint32_t slot : run.slots) node.pending.erase(slot);
      executed_small_ += run.inputs.empty() ? 0 : 1;
      CheckInputs(n, run);
    }
    for (const auto& m : node.schedule.TakeMessages()) {
      proto::PeerMessage message = m.message;
      // Which inputs these are.
      if (!m.inputs_of.empty()) {
        message.set_inputs(std::to_string(n) + "/" +
                           std::to_string(message.ready()));
      }
      for (const uint32_t to : m.nodes) {
        EXPECT_TRUE(fan_out_ == 0 || Above(n) == to || Above(to) == n);
        nodes_[to].inbox[n].push_back(message);
      }
    }
    if (!node.schedule.over() || node.over) return;
    node.left = node.schedule.End();
    node.over = true;
  }

  std::mt19937 random_;
  const uint32_t fan_out_;
  uint64_t executed_small_ = 0;
  std::vector<ScheduledRun> round_;
  std::vector<Node> nodes_;
};

TEST(ScheduleWorldTest, EachRunIsExecutedByAllOfItsNodesOrByNone) {
  uint64_t executed = 0;
  uint64_t small = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    World world(seed, false);
    world.Execute();
    world.Check();
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
    executed += world.executed();
    small += world.executed_small();
  }
  EXPECT_GT(executed, 2000u);
  EXPECT_GT(small, 1000u);
}

TEST(ScheduleWorldTest, SoItIsInATree) {
  uint64_t executed = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    World world(seed, true);
    world.Execute();
    world.Check();
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
    executed += world.executed();
  }
  EXPECT_GT(executed, 2000u);
}

}  // namespace
}  // namespace maypole::worker
