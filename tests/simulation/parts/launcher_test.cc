// maypolerun's part of an elastic job alone, in any order of events: hosts that
// are listed or not, nodes and processes that end. The simulation (--elastic)
// runs it with the rest of Maypole.
#include "tests/simulation/parts/launcher.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace maypole::simulation {
namespace {

using launcher::Exit;

constexpr int64_t kLongestRun = 1000 * kSecond;

class Machines {
 public:
  explicit Machines(uint64_t seed)
      : stage_(seed, getenv("MAYPOLE_TRACE") != nullptr, Sabotage::kNone),
        launcher_(&stage_, SomeSettings(),
                  {.start_node = [this](const auto& s) { StartNode(s.node); },
                   .stop_node = [this](int node) { nodes_.erase(node); },
                   .start_process = [this](const auto& s) { Start(s); },
                   .signal = [this](int p, int s) { Signal(p, s); },
                   .end_badly = [](const std::string&) {}}) {
    for (size_t i = 0; i < 3; ++i) {
      hosts_.push_back({absl::StrCat("h", i), SomeSlots()});
    }
    listed_ = hosts_;
    for (int i = 0; i < 12; ++i) {
      After(stage_.random.Magnitude(kMillisecond, 200 * kSecond),
            [this] { ChangeHosts(); });
    }
  }

  void Play() {
    launcher_.OnHosts(listed_);
    while (stage_.found().empty() && stage_.scheduler.now() < kLongestRun &&
           !launcher_.over() &&
           !(launcher_.finishing() && processes_.empty()) &&
           stage_.scheduler.Step()) {
    }
    for (const std::string& text : stage_.found()) ADD_FAILURE() << text;
    if (!numbers_.empty()) {
      skipped += *numbers_.rbegin() + 1 - static_cast<int>(numbers_.size());
    }
    started += static_cast<int>(numbers_.size());
  }

  int started = 0, lost = 0;
  int skipped = 0;  // numbers of processes that never started

 private:
  Launcher::Driver::Settings SomeSettings() {
    Random& random = stage_.random;
    Launcher::Driver::Settings s;
    s.first_size = static_cast<int>(random.Between(1, 3));
    s.min_size = 1;
    s.max_size = static_cast<int>(random.Between(s.first_size, 9));
    s.patience = std::chrono::seconds(random.Between(20, 120));
    s.longest_cooldown = std::chrono::seconds(random.Between(1, 8));
    return s;
  }
  int SomeSlots() { return static_cast<int>(stage_.random.Between(1, 3)); }
  void After(int64_t delay, std::function<void()> what) {
    stage_.scheduler.After(delay, stage_.Forever(), std::move(what));
  }

  void ChangeHosts() {
    launcher::HostSlots& host = hosts_[stage_.random.Below(hosts_.size())];
    host.slots = SomeSlots();
    listed_.clear();
    for (const launcher::HostSlots& h : hosts_) {
      if (h.name != host.name || !stage_.random.OneIn(3)) listed_.push_back(h);
    }
    if (!launcher_.over()) launcher_.OnHosts(listed_);
    // Its node may be lost in the same round.
    if (!nodes_.empty() && stage_.random.OneIn(2)) {
      auto it = nodes_.begin();
      std::advance(it, stage_.random.Below(nodes_.size()));
      LoseNode(*it);
    }
  }

  void StartNode(int node) {
    nodes_.insert(node);
    After(stage_.random.Magnitude(kMillisecond, 2 * kSecond), [this, node] {
      if (!nodes_.contains(node)) return;
      if (stage_.random.OneIn(8)) return LoseNode(node);
      launcher_.OnNodeReady(node);
    });
  }
  void LoseNode(int node) {
    ++lost;
    nodes_.erase(node);
    std::erase_if(processes_, [&](const auto& p) { return p.second == node; });
    launcher_.OnNodeLost(node, "its connection broke");
  }

  void Start(const Launcher::Driver::StartProcess& start) {
    numbers_.insert(start.process);
    processes_[start.process] = start.node;
    const bool trained = stage_.random.OneIn(40);
    const Exit exit = trained ? Exit{}
                      : stage_.random.OneIn(2)
                          ? Exit{.signaled = true, .value = SIGKILL}
                          : Exit{.value = 1};
    After(stage_.random.Magnitude(kSecond, 200 * kSecond),
          [this, exit, process = start.process] { End(process, exit); });
  }
  void Signal(int process, int signal) {
    if (signal == SIGTERM && stage_.random.OneIn(4)) return;  // it hangs
    After(stage_.SoonDelay(), [this, process, signal] {
      End(process, {.signaled = true, .value = signal});
    });
  }
  void End(int process, const Exit& exit) {
    if (processes_.erase(process) > 0) launcher_.OnProcessEnd(process, exit);
  }

  Stage stage_;
  Launcher launcher_;
  std::vector<launcher::HostSlots> hosts_, listed_;
  std::set<int> nodes_;           // that live
  std::map<int, int> processes_;  // that live: their nodes
  std::set<int> numbers_;         // of all processes
};

TEST(Launcher, AnyOrderOfEvents) {
  uint64_t first = 1, last = 300;
  if (const char* seed = getenv("MAYPOLE_SEED")) {
    first = last = std::strtoull(seed, nullptr, 10);
  }
  if (const char* seeds = getenv("MAYPOLE_SEEDS")) {
    last = std::strtoull(seeds, nullptr, 10);
  }
  int started = 0, lost = 0, skipped = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    Machines machines(Random(seed).Next());
    machines.Play();
    started += machines.started;
    lost += machines.lost;
    skipped += machines.skipped;
    ASSERT_FALSE(testing::Test::HasFailure()) << "MAYPOLE_SEED=" << seed;
  }
  std::printf("%d processes started, %d nodes lost, %d numbers skipped\n",
              started, lost, skipped);
  if (last == first) return;
  EXPECT_GT(skipped, 20);  // it has happened that a node was lost in between
}

}  // namespace
}  // namespace maypole::simulation
