// Elastic jobs with random orders of events: the coordinator's core and the
// real cores of executors, in one thread, from a seed. Processes come, leave,
// return and are killed; executors are killed; messages are delayed. Then the
// faults stop, and all live processes must be in one epoch, or have received
// the reason why not.
//
// To replay a seed: --test_env=MAYPOLE_SEED=N; for more seeds: MAYPOLE_SEEDS=N.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/testing/testing.h"
#include "worker/core/executor_core.h"

namespace maypole {
namespace {

using std::chrono::milliseconds;

constexpr int kMinSize = 2;
constexpr int kMaxSize = 4;
constexpr size_t kProcesses = 20;  // in all
constexpr size_t kAlive = 6;       // at once

enum class State {
  kIdle,     // lives; may join
  kWaiting,  // in init()
  kRunning,
  kDone,  // has left for good
  kDead,
};

struct Process {
  int pid = 0;
  size_t node = 0;
  State state = State::kIdle;
  worker::ClientId client = 0;
  uint64_t last_epoch = 0;
  int last_rank = -1;
  bool should_leave = false;  // the epoch is over, or a change is wanted
  std::string refused;        // why, the last time

  bool alive() const { return state != State::kDone && state != State::kDead; }
};

// One node's agent, with its executor if there is one.
struct Node {
  std::string name;
  std::unique_ptr<worker::ExecutorCore> core;
  coordinator::Executor* link = nullptr;
  std::deque<proto::ExecutorMessage> up;
  size_t heard = 0;  // of the link's inbox
  worker::ClientId last_client = 0;
  std::map<worker::ClientId, Process*> clients;  // for ever
  std::map<worker::ClientId, Process*> watched;
  std::deque<std::function<void()>> backend;
};

// The rank numbers of an epoch, as sent to the nodes.
struct Start {
  std::string nodes;
  std::map<uint32_t, Process*> ranks;
  std::map<Process*, uint64_t> said;  // its last epoch; 0: it was new
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed), bed_(MakeConfig()) {
    nodes_.resize(1 + Roll(3));
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].name = "n" + std::to_string(i);
    }
  }

  void Run() {
    const uint64_t steps = 200 + Roll(1000);
    for (uint64_t i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      Step();
    }
    // Several times longer than every timeout.
    for (int i = 0; i < 1200 && !testing::Test::HasFailure(); ++i) Calm();
    CheckEnd();
    CheckOrder();
  }

  uint64_t epochs() const { return starts_.size(); }
  int killed = 0, executors_killed = 0, refusals = 0, survived = 0;

 private:
  static coordinator::Config MakeConfig() {
    coordinator::Config config;
    config.start_timeout = std::chrono::seconds(20);
    return config;
  }

  uint64_t Roll(uint64_t n) { return random_() % n; }

  // --- Events
  // -----------------------------------------------------------------

  void Step() {
    switch (Roll(24)) {
      case 0:
        return Come();
      case 1:
      case 2:
        return WithProcess(State::kIdle, [&](Process* p) { Join(p); });
      case 3:
        if (Roll(8) == 0) return WithAnyProcess([&](Process* p) { Kill(p); });
        return;
      case 4:
        if (Roll(3) == 0) {
          return WithProcess(State::kRunning,
                             [&](Process* p) { Leave(p, Roll(4) != 0); });
        }
        return;
      case 5:
        return WithProcess(State::kRunning, [&](Process* p) {
          if (p->should_leave) Leave(p, true);
        });
      case 6:
        if (Roll(40) == 0) KillExecutor(&nodes_[Roll(nodes_.size())]);
        return;
      case 7:
      case 8:
      case 9:
        return Pass(milliseconds(Roll(700)));
      default:
        Move(&nodes_[Roll(nodes_.size())], Roll(3));
    }
  }

  // No more faults: all messages are delivered, and every process that can
  // joins.
  void Calm() {
    for (Node& node : nodes_) {
      for (uint64_t what : {0, 1, 2}) {
        while (Move(&node, what)) {
        }
      }
    }
    for (auto& p : processes_) {
      if (p->state == State::kRunning && p->should_leave) Leave(p.get(), true);
      if (p->state == State::kIdle) Join(p.get());
    }
    Pass(milliseconds(100));
  }

  void Come() {
    size_t alive = 0;
    for (const auto& p : processes_) alive += p->alive();
    if (processes_.size() >= kProcesses || alive >= kAlive) return;
    auto p = std::make_unique<Process>();
    p->pid = static_cast<int>(100 + processes_.size());
    p->node = Roll(nodes_.size());
    processes_.push_back(std::move(p));
    Join(processes_.back().get());
  }

  void WithAnyProcess(const std::function<void(Process*)>& what) {
    if (processes_.empty()) return;
    Process* p = processes_[Roll(processes_.size())].get();
    if (p->alive()) what(p);
  }
  void WithProcess(State state, const std::function<void(Process*)>& what) {
    WithAnyProcess([&](Process* p) {
      if (p->state == state) what(p);
    });
  }

  void Join(Process* p) {
    Node& node = nodes_[p->node];
    if (node.core == nullptr) {
      node.core =
          std::make_unique<worker::ExecutorCore>(worker::ExecutorCoreOptions{
              .job = "j", .node = node.name, .host = "host"});
      SetTime(&node);
    }
    auto hello = session::Make<session::Hello>();
    hello.elastic = 1;
    hello.rank = p->last_rank;
    hello.last_epoch = p->last_epoch;
    hello.min_size = kMinSize;
    hello.max_size = kMaxSize;
    hello.pid = p->pid;
    p->client = ++node.last_client;
    p->state = State::kWaiting;
    node.clients[p->client] = p;
    node.core->OnClient(p->client, hello, p->pid);
    Do(&node);
  }

  void Leave(Process* p, bool returns) {
    Node& node = nodes_[p->node];
    const auto client = std::exchange(p->client, 0);
    p->state = returns ? State::kIdle : State::kDone;
    p->should_leave = false;
    node.core->OnGoodbye(client, Roll(2), returns);
    Do(&node);
  }

  void Kill(Process* p) {
    ++killed;
    Node& node = nodes_[p->node];
    const State state = std::exchange(p->state, State::kDead);
    if (node.core == nullptr) return;
    if (state == State::kWaiting || state == State::kRunning) {
      node.core->OnClientGone(p->client, "it was killed");
    }
    std::vector<worker::ClientId> ended;
    for (const auto& [client, q] : node.watched) {
      if (q == p) ended.push_back(client);
    }
    for (const auto client : ended) {
      node.watched.erase(client);
      node.core->OnProcessEnded(client);
    }
    Do(&node);
  }

  void KillExecutor(Node* node) {
    if (node->core == nullptr) return;
    ++executors_killed;
    if (node->link != nullptr) bed_.Break(*node->link);
    const size_t index = static_cast<size_t>(node - nodes_.data());
    Node fresh;
    fresh.name = node->name;
    *node = std::move(fresh);
    for (auto& p : processes_) {
      if (p->node != index || !p->alive()) continue;
      p->state = State::kIdle;
      p->client = 0;
      p->should_leave = false;
    }
  }

  void Pass(coordinator::Time time) {
    bed_.Pass(time);
    for (Node& node : nodes_) {
      if (node.core == nullptr) continue;
      SetTime(&node);
      Do(&node);
    }
  }
  void SetTime(Node* node) {
    node->core->OnTime(
        std::chrono::duration_cast<milliseconds>(bed_.now()).count());
  }

  // --- The executor's shell
  // ---------------------------------------------------

  // One message up or down, or an answer of the backend.
  bool Move(Node* node, uint64_t what) {
    if (node->core == nullptr) return false;
    if (what == 0 && !node->up.empty() && node->link != nullptr) {
      proto::ExecutorMessage m = std::move(node->up.front());
      node->up.pop_front();
      bed_.From(*node->link, std::move(m));
      EXPECT_FALSE(node->link->refused.has_value())
          << node->link->refused->message();
      bed_.Pass(coordinator::Time{});
    } else if (what == 1 && node->link != nullptr &&
               node->heard < node->link->inbox.size()) {
      const proto::CoordinatorMessage m = node->link->inbox[node->heard++];
      if (m.has_epoch_start()) NoteStart(*node, m.epoch_start());
      node->core->OnCoordinator(m);
    } else if (what == 2 && !node->backend.empty()) {
      const auto answer = std::move(node->backend.front());
      node->backend.pop_front();
      answer();
    } else {
      return false;
    }
    Do(node);
    return true;
  }

  void Do(Node* node) {
    for (auto actions = node->core->TakeActions(); !actions.empty();
         actions = node->core->TakeActions()) {
      for (worker::Action& action : actions) {
        std::visit([&](auto& a) { Do(node, a); }, action);
      }
    }
  }
  template <typename Other>
  void Do(Node*, Other&) {}
  void Do(Node* node, worker::OpenLink&) {
    node->link = &bed_.Connect("j", node->name);
    node->heard = 0;
    EXPECT_FALSE(node->link->refused.has_value());
  }
  void Do(Node* node, worker::SendToCoordinator& a) {
    node->up.push_back(a.message);
  }
  void Do(Node* node, worker::PrepareBackend& a) {
    node->backend.push_back([node, n = a.node_names.size()] {
      node->core->OnBackendPrepared(std::vector<std::string>(n, "address"));
    });
  }
  void Do(Node* node, worker::ConnectBackend&) {
    node->backend.push_back([this, node] {
      node->core->OnBackendConnected(
          Roll(40) == 0 ? absl::UnavailableError("no way") : absl::OkStatus());
    });
  }
  void Do(Node* node, worker::CreateBoard& a) {
    if (node->core->OnBoardCreated(absl::OkStatus())) Welcome(node, a);
  }
  void Do(Node* node, worker::DropEpoch&) { node->backend.clear(); }
  void Do(Node* node, worker::AbortBoard&) { AllShouldLeave(node); }
  void Do(Node* node, worker::MarkLeft&) { AllShouldLeave(node); }
  void Do(Node* node, worker::WantChange& a) {
    if (a.ranks > 0) AllShouldLeave(node);
  }
  void Do(Node* node, worker::KeepWatching& a) {
    node->watched[a.client] = node->clients.at(a.client);
  }
  void Do(Node* node, worker::RefuseClient& a) {
    Process* p = node->clients.at(a.client);
    if (p->client != a.client) return;
    ++refusals;
    EXPECT_NE(a.text, "");
    EXPECT_EQ(p->state, State::kWaiting);
    p->refused = a.text;
    p->state = State::kIdle;
    p->client = 0;
  }
  // It has said goodbye, or the job continues without it.
  void Do(Node* node, worker::CloseClient& a) {
    Process* p = node->clients.at(a.client);
    if (p->client != a.client || p->state != State::kRunning) return;
    p->state = State::kIdle;
    p->client = 0;
    p->should_leave = false;
  }
  void AllShouldLeave(Node* node) {
    for (auto& [client, p] : node->clients) {
      if (p->client == client && p->state == State::kRunning) {
        p->should_leave = true;
      }
    }
  }

  void Welcome(Node* node, const worker::CreateBoard& a) {
    for (size_t i = 0; i < a.clients.size(); ++i) {
      Process* p = node->clients.at(a.clients[i]);
      EXPECT_EQ(p->client, a.clients[i]);
      EXPECT_EQ(p->state, State::kWaiting) << "in two epochs";
      EXPECT_GT(a.config.epoch, p->last_epoch);
      EXPECT_EQ(a.pids[i], p->pid);
      p->state = State::kRunning;
      p->should_leave = false;
      p->last_epoch = a.config.epoch;
      p->last_rank = a.config.global_rank[i];
      EXPECT_EQ(starts_[Key(a.config.epoch)]
                    .ranks[static_cast<uint32_t>(p->last_rank)],
                p);
    }
  }

  // --- What must hold
  // ---------------------------------------------------------

  // A job all of whose executors were lost is forgotten; another begins.
  std::pair<size_t, uint64_t> Key(uint64_t epoch) const {
    size_t forgotten = 0;
    for (const std::string& line : bed_.log()) {
      forgotten += line.starts_with("event=job_forgotten");
    }
    return {forgotten, epoch};
  }

  void NoteStart(const Node& node, const proto::EpochStart& start) {
    Start& s = starts_[Key(start.epoch())];
    std::string nodes;
    uint32_t next = 0;
    for (const proto::NodeInfo& n : start.nodes()) {
      nodes += n.node() + ":";
      for (const uint32_t rank : n.ranks()) {
        EXPECT_EQ(rank, next++) << "ranks are numbered node by node";
        nodes += " " + std::to_string(rank);
      }
    }
    EXPECT_EQ(next, start.size());
    EXPECT_GE(start.size(), static_cast<uint32_t>(kMinSize));
    EXPECT_LE(start.size(), static_cast<uint32_t>(kMaxSize));
    EXPECT_TRUE(s.nodes.empty() || s.nodes == nodes)
        << s.nodes << "; " << nodes;
    s.nodes = nodes;
    const proto::NodeInfo& own = start.nodes(start.node_index());
    EXPECT_EQ(own.node(), node.name);
    ASSERT_EQ(own.ranks_size(), start.clients_size());
    for (int i = 0; i < own.ranks_size(); ++i) {
      Process* p = node.clients.at(start.clients(i));
      EXPECT_TRUE(s.ranks.emplace(own.ranks(i), p).second);
      s.said.emplace(p, p->last_epoch);
    }
  }

  // Processes that were in two consecutive epochs keep their order, unless some
  // of them have not heard of the first one: these come later.
  void CheckOrder() {
    for (const auto& [key, start] : starts_) {
      const auto before = starts_.find({key.first, key.second - 1});
      if (before == starts_.end()) continue;
      std::map<Process*, uint32_t> now;
      for (const auto& [rank, p] : start.ranks) now[p] = rank;
      std::map<uint64_t, int64_t> last;  // by what they have said
      for (const auto& [rank, p] : before->second.ranks) {
        const auto said = start.said.find(p);
        if (said == start.said.end() || said->second == 0) continue;
        const auto [it, first] = last.emplace(said->second, -1);
        EXPECT_GT(now.at(p), it->second)
            << "epoch " << key.second << ", was rank " << rank;
        it->second = now.at(p);
        ++survived;
      }
    }
  }

  void CheckEnd() {
    size_t alive = 0, running = 0;
    std::set<uint64_t> epochs;
    for (const auto& p : processes_) {
      alive += p->alive();
      if (p->state != State::kRunning) continue;
      ++running;
      epochs.insert(p->last_epoch);
      EXPECT_FALSE(p->should_leave);
    }
    EXPECT_EQ(bed_.core().totals().ranks, running);
    if (alive < kMinSize) {
      EXPECT_EQ(running, 0u);
      for (const auto& p : processes_) {
        if (!p->alive()) continue;
        EXPECT_NE(p->refused.find("of at least 2 ranks are there"),
                  std::string::npos)
            << p->refused;
      }
      return;
    }
    EXPECT_EQ(running, std::min<size_t>(alive, kMaxSize)) << Text();
    EXPECT_EQ(epochs.size(), 1u);
    EXPECT_EQ(*epochs.rbegin(), starts_.rbegin()->first.second);
  }

  std::string Text() const {
    std::string out;
    for (const auto& p : processes_) {
      if (!p->alive()) continue;
      out += "\nprocess " + std::to_string(p->pid) + " on " +
             nodes_[p->node].name + ", client " + std::to_string(p->client) +
             (p->state == State::kRunning ? " runs" : " does not run") +
             ", last rank " + std::to_string(p->last_rank) + " of epoch " +
             std::to_string(p->last_epoch) + ", refused: " + p->refused;
    }
    for (const std::string& line : bed_.log()) out += "\n" + line;
    return out;
  }

  std::mt19937_64 random_;
  coordinator::TestBed bed_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<std::pair<size_t, uint64_t>, Start> starts_;  // by Key()
};

TEST(ElasticCores, AnyOrderOfEvents) {
  uint64_t first = 1, last = 3000;
  if (const char* seed = std::getenv("MAYPOLE_SEED")) {
    first = last = std::strtoull(seed, nullptr, 10);
  }
  if (const char* seeds = std::getenv("MAYPOLE_SEEDS")) {
    last = std::strtoull(seeds, nullptr, 10);
  }
  uint64_t epochs = 0;
  int killed = 0, executors = 0, refusals = 0, survived = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    World world(seed);
    world.Run();
    epochs += world.epochs();
    killed += world.killed;
    executors += world.executors_killed;
    refusals += world.refusals;
    survived += world.survived;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  std::printf(
      "%llu seeds: %llu epochs, %d times a process came from one to the next, "
      "%d processes and %d executors killed, %d refusals\n",
      static_cast<unsigned long long>(last - first + 1),
      static_cast<unsigned long long>(epochs), survived, killed, executors,
      refusals);
  if (last - first < 1000) return;
  // The seeds have covered all kinds of events.
  EXPECT_GT(epochs, 2 * (last - first));
  EXPECT_GT(survived, 3000);
  EXPECT_GT(killed, 500);
  EXPECT_GT(executors, 100);
}

}  // namespace
}  // namespace maypole
