#include "tests/simulation/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

// A run that is longer than this hangs.
constexpr int64_t kLongestRun = 600 * kSecond;
constexpr uint64_t kMostSteps = 2000000;
// The time after the last fault by which its consequences have been noticed.
constexpr int64_t kSettleTime = 9 * kSecond;
// A known death must reach all ranks within a second.
constexpr int64_t kSoon = 1300 * kMillisecond;
constexpr int64_t kResumeTimeout = 3 * kSecond;

enum class Fault {
  kKillRank,
  kKillRankInTurn,
  kKillExecutor,
  kKillCoordinator,
  kCutLink,
  kFailBackend,
  kFreezeRank,
  kLeave,
};

struct Node {
  std::shared_ptr<Executor> executor;
  worker::ExecutorCoreOptions core;
};

class World : public Surroundings {
 public:
  explicit World(const RunOptions& options)
      : stage_(options.seed, options.trace, options.sabotage),
        random_(stage_.random),
        ledger_(&stage_),
        fabric_(&stage_),
        interruption_(&stage_,
                      [this] {
                        if (stage_.scheduler.Step()) LookAround();
                      }),
        slots_(options.slots) {
    MakeNodes();
    MakeRanks();
    MakeFaults();
  }

  RunResult Play();

  void Connect(int node, std::shared_ptr<Connection> connection,
               const session::Hello& hello) override;
  EpochRecord* CurrentEpoch(int node) override;
  int64_t InitDelay() override;
  Interruption* interruption() override { return &interruption_; }
  void OnDeath(int rank) override;

 private:
  void MakeNodes();
  void MakeRanks();
  void MakeFaults();
  void StartRank(size_t rank);
  Executor* ExecutorOf(int node);

  void LookAround();
  bool AllSatisfied() const;
  void BringFaults();
  bool Apply(Fault fault);
  bool KillRank();
  bool KillRankInTurn();
  void BuryRank(size_t rank);
  bool KillExecutor();
  bool KillCoordinator();
  bool CutLink();
  bool FailBackend();
  bool FreezeRank();
  bool LeaveEarly();
  std::shared_ptr<Process> SomeProcess();
  // Checks that operations pending now have ended after `time`, unless another
  // fault happens by then.
  void ExpectEnds(EpochRecord* epoch, int64_t time, const std::string& why);
  void Disturb(int64_t until);
  void CheckNothingIsLeft();
  void Hangs(const std::string& why);

  Stage stage_;
  Random& random_;
  Ledger ledger_;
  Fabric fabric_;
  Interruption interruption_;
  const uint32_t slots_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Node> nodes_;
  std::vector<Place> places_;  // by rank
  std::vector<int> node_of_rank_;
  std::vector<std::shared_ptr<Process>> ranks_;  // null: is being restarted
  int last_pid_ = 100;
  std::vector<Fault> faults_;  // still to come; the next one is at the back
  uint64_t next_fault_ = 0;    // step
  int tries_ = 0;
  int64_t disturbed_at_ = -1;  // the last time that something was
  int64_t calm_at_ = 0;
};

// --- Making ------------------------------------------------------------------

void World::MakeNodes() {
  static constexpr int kNodes[] = {1, 2, 2, 2, 3};
  const int nodes = kNodes[random_.Below(5)];
  coordinator::Config config;
  config.start_timeout = std::chrono::seconds(30);
  config.resume_timeout = coordinator::Time(kResumeTimeout);
  static constexpr uint64_t kThresholds[] = {0, 4096, uint64_t{64} << 20};
  config.fusion_threshold = kThresholds[random_.Below(3)];
  config.operations = slots_ * 3 / 2;
  coordinator_ = std::make_unique<Coordinator>(&stage_, config, nodes);
  const auto depth = static_cast<uint32_t>(random_.Between(2, 4));
  const auto records = static_cast<uint32_t>(random_.Between(1, 4));
  for (int i = 0; i < nodes; ++i) {
    Node node;
    node.core.job = "job";
    node.core.node = absl::StrCat("n", i);
    node.core.host = absl::StrCat("h", i);
    node.core.slots = slots_;
    node.core.records = records;
    node.core.chunk_bytes = 4096;
    node.core.ring_depth = depth;
    node.core.start_timeout_ms = 30000;
    node.core.resume_timeout_ms = kResumeTimeout / kMillisecond;
    node.core.nccl_version = random_.OneIn(8) ? 0 : kSimulatedNccl;
    nodes_.push_back(std::move(node));
  }
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

void World::MakeFaults() {
  static const auto& all = *new std::vector<Fault>{
      Fault::kKillRank,       Fault::kKillRank,     Fault::kKillRankInTurn,
      Fault::kKillRankInTurn, Fault::kKillExecutor, Fault::kKillCoordinator,
      Fault::kCutLink,        Fault::kCutLink,      Fault::kFailBackend,
      Fault::kFreezeRank,     Fault::kLeave};
  for (uint64_t n = random_.Below(5); n > 0; --n) {
    faults_.push_back(random_.Pick(all));
  }
  next_fault_ = static_cast<uint64_t>(random_.Magnitude(1, 2000));
}

void World::StartRank(size_t rank) {
  ranks_[rank] = std::make_shared<Process>(&stage_, &ledger_, this,
                                           places_[rank], ++last_pid_);
  ranks_[rank]->Start();
}

// --- Services for processes --------------------------------------------------

Executor* World::ExecutorOf(int node) {
  Node& n = nodes_[static_cast<size_t>(node)];
  if (n.executor != nullptr && n.executor->ending()) {
    n.executor->End();
    n.executor.reset();
  }
  if (n.executor == nullptr) {
    Executor::Options options;
    options.node = node;
    options.core = n.core;
    options.stage = &stage_;
    options.coordinator = coordinator_.get();
    options.fabric = &fabric_;
    n.executor = std::make_shared<Executor>(std::move(options));
    n.executor->Start();
  }
  return n.executor.get();
}

void World::Connect(int node, std::shared_ptr<Connection> connection,
                    const session::Hello& hello) {
  stage_.scheduler.After(stage_.SoonDelay(), stage_.Forever(),
                         [this, node, connection, hello] {
                           ExecutorOf(node)->TakeClient(connection, hello);
                         });
}

EpochRecord* World::CurrentEpoch(int node) {
  const Node& n = nodes_[static_cast<size_t>(node)];
  if (n.executor == nullptr || n.executor->board() == nullptr) return nullptr;
  const std::string& key = n.executor->EpochKey();
  if (EpochRecord* epoch = ledger_.Find(key)) return epoch;
  const bool calm = faults_.empty() && stage_.scheduler.now() >= calm_at_;
  return ledger_.Begin(
      key,
      MakeProgram(&random_, static_cast<int>(places_.size()), calm,
                  /*new_names=*/slots_ < 64),
      node_of_rank_);
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

void World::Disturb(int64_t until) {
  disturbed_at_ = std::max(disturbed_at_, until);
  calm_at_ = std::max(calm_at_, until + kSettleTime);
}

void World::ExpectEnds(EpochRecord* epoch, int64_t time,
                       const std::string& why) {
  if (epoch == nullptr) return;
  const int64_t since = stage_.scheduler.now();
  const int64_t disturbed = disturbed_at_;
  // An executor that dies cannot report what it knows.
  const uint64_t executors_killed = stage_.counts.executors_killed;
  if (disturbed + 2 * kResumeTimeout > since) return;
  stage_.scheduler.After(time, stage_.Forever(), [=, this] {
    if (disturbed != disturbed_at_ ||
        executors_killed != stage_.counts.executors_killed) {
      return;
    }
    ledger_.CheckEnded(*epoch, since, why);
  });
}

std::shared_ptr<Process> World::SomeProcess() {
  return ranks_[random_.Below(ranks_.size())];
}

bool World::KillRank() {
  const std::shared_ptr<Process> process = SomeProcess();
  if (process == nullptr) return false;
  BuryRank(static_cast<size_t>(process->place().rank));
  return true;
}

bool World::KillRankInTurn() {
  const std::shared_ptr<Process> process = SomeProcess();
  if (process == nullptr || process->epoch() == nullptr) return false;
  process->KillAfter(static_cast<int>(random_.Magnitude(1, 100)));
  stage_.scheduler.After(kSecond, process, [p = process.get()] {
    p->KillAfter(0);  // it has not reached that kill point
  });
  return true;
}

void World::OnDeath(int rank) {
  ++stage_.counts.ranks_killed_within_a_step;
  BuryRank(static_cast<size_t>(rank));
}

void World::BuryRank(size_t rank) {
  const std::shared_ptr<Process> process = ranks_[rank];
  const int64_t closes_after =
      random_.OneIn(4) ? random_.Magnitude(kMillisecond, 300 * kMillisecond)
                       : random_.Magnitude(kMicrosecond, kMillisecond);
  const std::string who = absl::StrCat("rank ", rank);
  ledger_.Blame({who});
  ExpectEnds(process->epoch(), closes_after + kSoon,
             absl::StrCat("the death of ", who));
  ++stage_.counts.ranks_killed;
  process->Kill(closes_after);
  ranks_[rank].reset();
  stage_.scheduler.After(random_.Magnitude(kMillisecond, kSecond),
                         stage_.Forever(), [this, rank] { StartRank(rank); });
  calm_at_ = std::max(calm_at_, stage_.scheduler.now() + kSettleTime);
}

bool World::KillExecutor() {
  const size_t i = random_.Below(nodes_.size());
  if (nodes_[i].executor == nullptr) return false;
  const std::string who = absl::StrCat("node n", i);
  ++stage_.counts.executors_killed;
  // The last text: the rank that should write the reason is interrupted at a
  // kill point.
  ledger_.Blame(
      {who, "the executor of this node died",
       "the process that was recording the reason died before it could"});
  for (const auto& process : ranks_) {
    if (process == nullptr || process->epoch() == nullptr) continue;
    ExpectEnds(process->epoch(), kSoon + kResumeTimeout,
               absl::StrCat("the death of the executor of ", who));
  }
  stage_.Trace("the executor of ", who, " is killed");
  nodes_[i].executor->Kill();
  nodes_[i].executor.reset();
  calm_at_ = std::max(calm_at_, stage_.scheduler.now() + kSettleTime);
  return true;
}

bool World::KillCoordinator() {
  if (!coordinator_->alive()) return false;
  const int64_t away = random_.Magnitude(kMillisecond, 6 * kSecond);
  stage_.Trace("the coordinator is killed, comes back in ", away / kMillisecond,
               " ms");
  ++stage_.counts.coordinators_killed;
  ledger_.Blame({"coordinator"});
  coordinator_->Kill();
  stage_.scheduler.After(away, stage_.Forever(), [this] {
    stage_.Trace("the coordinator is back");
    coordinator_->Restart();
  });
  Disturb(stage_.scheduler.now() + away);
  return true;
}

bool World::CutLink() {
  const auto node = static_cast<int>(random_.Below(nodes_.size()));
  const int64_t time = random_.Magnitude(kMillisecond, 10 * kSecond);
  stage_.Trace("node n", node, " is cut off for ", time / kMillisecond, " ms");
  ++stage_.counts.links_cut;
  ledger_.Blame({"coordinator", absl::StrCat("node n", node)});
  coordinator_->Cut(node);
  stage_.scheduler.After(time, stage_.Forever(), [this, node] {
    stage_.Trace("node n", node, " is reachable again");
    coordinator_->Heal(node);
  });
  Disturb(stage_.scheduler.now() + time);
  return true;
}

bool World::FailBackend() {
  const size_t i = random_.Below(nodes_.size());
  Executor* executor = nodes_[i].executor.get();
  if (executor == nullptr || !executor->FailBackend()) return false;
  stage_.Trace("the network of node n", i, " fails");
  ++stage_.counts.backends_failed;
  ledger_.Blame({"the network between nodes failed"});
  Disturb(stage_.scheduler.now() + kResumeTimeout);
  return true;
}

bool World::FreezeRank() {
  const std::shared_ptr<Process> process = SomeProcess();
  if (process == nullptr || process->frozen()) return false;
  // A rank that is stopped for longer may be declared lost.
  const int64_t time = random_.Magnitude(kMillisecond, 30 * kSecond);
  ledger_.Blame({absl::StrCat("rank ", process->place().rank)});
  ++stage_.counts.ranks_frozen;
  process->Freeze(time);
  Disturb(stage_.scheduler.now() + time);
  return true;
}

bool World::LeaveEarly() {
  const std::shared_ptr<Process> process = SomeProcess();
  return process != nullptr && !process->frozen() && process->LeaveNow();
}

bool World::Apply(Fault fault) {
  switch (fault) {
    case Fault::kKillRank:
      return KillRank();
    case Fault::kKillRankInTurn:
      return KillRankInTurn();
    case Fault::kKillExecutor:
      return KillExecutor();
    case Fault::kKillCoordinator:
      return KillCoordinator();
    case Fault::kCutLink:
      return CutLink();
    case Fault::kFailBackend:
      return FailBackend();
    case Fault::kFreezeRank:
      return FreezeRank();
    case Fault::kLeave:
      return LeaveEarly();
  }
  return true;
}

void World::BringFaults() {
  if (faults_.empty() || stage_.scheduler.steps() < next_fault_) return;
  const Fault fault = faults_.back();
  if (!Apply(fault) && ++tries_ < 50) {
    next_fault_ += random_.Below(20);
    return;
  }
  faults_.pop_back();
  tries_ = 0;
  next_fault_ += static_cast<uint64_t>(random_.Magnitude(1, 2000));
  calm_at_ = std::max(calm_at_, stage_.scheduler.now() + kSettleTime);
}

// --- Playing -----------------------------------------------------------------

void World::LookAround() {
  for (const auto& process : ranks_) {
    if (process != nullptr) process->LookAtWakeWord();
  }
  for (Node& node : nodes_) {
    if (node.executor == nullptr) continue;
    node.executor->LookAtWakeWords();
    if (node.executor->done()) {
      node.executor->End();
      node.executor.reset();
    }
  }
}

bool World::AllSatisfied() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& process) {
    return process != nullptr && process->satisfied();
  });
}

void World::Hangs(const std::string& why) {
  std::string text = why;
  for (const auto& process : ranks_) {
    if (process != nullptr)
      absl::StrAppend(&text, "\n  ", process->StateText());
  }
  stage_.Found(text, ledger_.PendingText(), "\n  ", coordinator_->StatusText());
}

void World::CheckNothingIsLeft() {
  const int64_t start = stage_.scheduler.now();
  bool left = false;
  while (stage_.scheduler.now() < start + 20 * kSecond &&
         stage_.scheduler.Step()) {
    LookAround();
    if (left || stage_.scheduler.now() < start + 2 * kSecond) continue;
    left = true;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Executor* executor = nodes_[i].executor.get();
      if (executor == nullptr) continue;
      if (executor->clients() > 0 || executor->board() != nullptr) {
        stage_.Found("node n", i, " keeps ", executor->clients(),
                     " clients and ", executor->board() ? "a" : "no",
                     " board after all have left");
      }
      if (executor->watches_board()) {
        stage_.Found("node n", i,
                     " watches a board's eventfd after all have left");
      }
    }
    const coordinator::Totals totals = coordinator_->totals();
    if (totals.ranks > 0 || totals.pending_operations > 0) {
      stage_.Found("the coordinator keeps ", totals.ranks, " ranks and ",
                   totals.pending_operations,
                   " operations after all have left");
    }
  }
  const coordinator::Totals totals = coordinator_->totals();
  if (totals.jobs > 0 || totals.nodes > 0) {
    stage_.Found("the coordinator keeps ", totals.jobs, " jobs and ",
                 totals.nodes, " sessions when all is over");
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].executor != nullptr) {
      stage_.Found("node n", i, " keeps its executor when all is over");
    }
  }
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
    BringFaults();
  }
  if (stage_.found().empty()) CheckNothingIsLeft();
  Counts counts = stage_.counts;
  counts.seeds = 1;
  counts.steps = stage_.scheduler.steps();
  for (Node& node : nodes_) {
    if (node.executor != nullptr) node.executor->Kill();
  }
  return {counts, stage_.found()};
}

}  // namespace

RunResult Play(const RunOptions& options) { return World(options).Play(); }

}  // namespace maypole::simulation
