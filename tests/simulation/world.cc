#include "tests/simulation/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/cluster.h"

namespace maypole::simulation {
namespace {

// A run that is longer than this hangs.
constexpr int64_t kLongestRun = 600 * kSecond;

class World : public Cluster {
 public:
  explicit World(const RunOptions& options) : Cluster(options) {
    MakeNodes();
    MakeRanks();
    if (options.restarts) {
      ScheduleOften([this] { return KillCoordinator(kSecond / 2); }, 20);
    } else {
      MakeFaults(options.agents);
    }
  }

  RunResult Play();

  EpochRecord* CurrentEpoch(int node, const std::string& key,
                            const BoardConfig& config) override;
  int64_t InitDelay() override;
  void OnDeath(Process* process) override;

 private:
  const Processes& processes() const override { return ranks_; }
  void MakeNodes();
  void MakeRanks();
  void MakeFaults(bool agents);
  void StartRank(size_t rank);

  bool AllSatisfied() const;
  bool KillRank();
  void BuryRank(size_t rank);
  bool LeaveEarly();
  std::shared_ptr<Process> SomeProcess();
  size_t SomeNode() { return random_.Below(nodes_.size()); }

  std::vector<Place> places_;  // by rank
  std::vector<int> node_of_rank_;
  Processes ranks_;  // null: is being restarted
  int last_pid_ = 100;
};

// --- Making ------------------------------------------------------------------

void World::MakeNodes() {
  static constexpr int kNodes[] = {1, 2, 2, 2, 3};
  const int nodes =
      stage_.tree ? random_.Between(2, 5) : kNodes[random_.Below(5)];
  coordinator::Config config;
  if (stage_.tree) {
    config.frozen_nodes = config.relay_nodes = 1;
    config.fan_out = static_cast<uint32_t>(random_.Between(1, 2));
  }
  config.start_timeout = std::chrono::seconds(30);
  config.resume_timeout = coordinator::Time(kResumeTimeout);
  static constexpr uint64_t kThresholds[] = {0, 4096, uint64_t{64} << 20};
  config.fusion_threshold = kThresholds[random_.Below(3)];
  config.operations = slots_ * 3 / 2;
  MakeCoordinator(config, nodes);
  const worker::ExecutorCoreOptions common = SomeOptions();
  for (int i = 0; i < nodes; ++i) AddNode(common, absl::StrCat("h", i));
}

void World::MakeRanks() {
  const int nodes = static_cast<int>(nodes_.size());
  for (int node = 0; node < nodes; ++node) {
    const int local_size = static_cast<int>(random_.Between(1, 3));
    for (int local = 0; local < local_size; ++local) {
      places_.push_back({.rank = static_cast<int>(places_.size()),
                         .local_rank = local,
                         .local_size = local_size,
                         .node = node,
                         .nodes = nodes});
      node_of_rank_.push_back(node);
    }
  }
  if (places_.size() == 1) {  // a job of one rank has no executor
    places_.push_back({.rank = 1, .local_rank = 1, .nodes = nodes});
    node_of_rank_.push_back(0);
    for (Place& place : places_) place.local_size = 2;
  }
  for (Place& place : places_) place.size = static_cast<int>(places_.size());
  ranks_.resize(places_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) StartRank(rank);
}

void World::MakeFaults(bool agents) {
  const Fault kill = [this] { return KillRank(); };
  const Fault kill_in_turn = [this] { return KillInTurn(SomeProcess()); };
  const Fault cut = [this] { return CutLink(SomeNode()); };
  std::vector<Fault> all = {kill,
                            kill,
                            kill_in_turn,
                            kill_in_turn,
                            [this] { return KillExecutor(SomeNode()); },
                            [this] { return KillCoordinator(); },
                            cut,
                            cut,
                            [this] { return FailBackend(SomeNode()); },
                            [this] { return FreezeRank(SomeProcess()); },
                            [this] { return LeaveEarly(); }};
  if (agents) {
    all.insert(all.end(), 6, [this] { return RestartAgent(SomeNode()); });
  }
  ScheduleFaults(all, agents ? 8 : 5);
}

void World::StartRank(size_t rank) {
  ranks_[rank] = std::make_shared<Process>(&stage_, &ledger_, this,
                                           places_[rank], ++last_pid_);
  ranks_[rank]->Start();
}

// --- Services for processes --------------------------------------------------

EpochRecord* World::CurrentEpoch(int, const std::string& key,
                                 const BoardConfig&) {
  if (EpochRecord* epoch = ledger_.Find(key)) return epoch;
  const bool calm = faults_.empty() && stage_.scheduler.now() >= calm_at_;
  const ProgramOptions options{.size = static_cast<int>(places_.size()),
                               .calm = calm,
                               .new_names = slots_ < 64,
                               .repeats = stage_.repeats};
  return ledger_.Begin(key, MakeProgram(&random_, options), node_of_rank_);
}

int64_t World::InitDelay() {
  int64_t delay = random_.Magnitude(10 * kMicrosecond, 10 * kMillisecond);
  if (random_.OneIn(20)) delay = random_.Magnitude(kMillisecond, kSecond);
  if (faults_.empty()) {
    delay += std::max<int64_t>(0, calm_at_ - stage_.scheduler.now());
  }
  return delay;
}

// --- Faults ------------------------------------------------------------------

std::shared_ptr<Process> World::SomeProcess() {
  return ranks_[random_.Below(ranks_.size())];
}

bool World::KillRank() {
  const std::shared_ptr<Process> process = SomeProcess();
  if (process == nullptr) return false;
  BuryRank(static_cast<size_t>(process->place().rank));
  return true;
}

void World::OnDeath(Process* process) {
  ++stage_.counts.ranks_killed_within_a_step;
  BuryRank(static_cast<size_t>(process->place().rank));
}

void World::BuryRank(size_t rank) {
  const std::shared_ptr<Process> process = ranks_[rank];
  Kill(process);
  ranks_[rank].reset();
  stage_.scheduler.After(random_.Magnitude(kMillisecond, kSecond),
                         stage_.Forever(), [this, rank] { StartRank(rank); });
  NotCalmYet();
}

bool World::LeaveEarly() {
  const std::shared_ptr<Process> process = SomeProcess();
  return process != nullptr && !process->frozen() && process->LeaveNow();
}

// --- Playing -----------------------------------------------------------------

bool World::AllSatisfied() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& process) {
    return process != nullptr && process->satisfied();
  });
}

RunResult World::Play() {
  const int64_t start = stage_.scheduler.now();
  stage_.Trace("seed's world: ", nodes_.size(), " nodes, ", places_.size(),
               " ranks, ", faults_.size(), " faults");
  while (!AllSatisfied() && stage_.found().empty()) {
    if (!stage_.scheduler.Step()) {
      Hangs("nothing happens any more");
    } else if (stage_.scheduler.now() - start > kLongestRun ||
               stage_.scheduler.steps() > kMostSteps) {
      Hangs("the run does not end");
    }
    LookAround();
    BringFault();
  }
  if (stage_.found().empty()) CheckNothingIsLeft();
  return Result();
}

}  // namespace

RunResult Play(const RunOptions& options) { return World(options).Play(); }

}  // namespace maypole::simulation
