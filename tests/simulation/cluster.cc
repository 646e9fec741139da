#include "tests/simulation/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

// RestartSec of maypole-worker.service.
constexpr int64_t kRestartPause = kSecond;

}  // namespace

Cluster::Cluster(const RunOptions& options)
    : stage_(options.seed, options.trace, options.sabotage),
      random_(stage_.random),
      ledger_(&stage_),
      fabric_(&stage_),
      interruption_(&stage_,
                    [this] {
                      if (stage_.scheduler.Step()) LookAround();
                    }),
      slots_(options.slots),
      timelines_(options.timelines) {
  stage_.checksums = options.checksums;
  stage_.repeats = options.repeats;
  stage_.tree = options.tree;
}

void Cluster::MakeCoordinator(const coordinator::Config& config, int nodes) {
  coordinator_ = std::make_unique<Coordinator>(&stage_, config, nodes);
  if (!timelines_) return;
  operator_ = std::make_unique<Operator>(&stage_, coordinator_.get(),
                                         [this] { return disturbed_at_; });
}

worker::ExecutorCoreOptions Cluster::SomeOptions() {
  worker::ExecutorCoreOptions core;
  core.job = "job";
  core.slots = slots_;
  core.chunk_bytes = 4096;
  core.start_timeout_ms = 30000;
  core.resume_timeout_ms = kResumeTimeout / kMillisecond;
  core.ring_depth = static_cast<uint32_t>(random_.Between(2, 4));
  core.records = static_cast<uint32_t>(random_.Between(1, 4));
  return core;
}

void Cluster::AddNode(const worker::ExecutorCoreOptions& common,
                      const std::string& host) {
  Node node;
  node.core = common;
  node.core.node = absl::StrCat("n", nodes_.size());
  node.core.host = host;
  node.core.nccl_version = random_.OneIn(8) ? 0 : kSimulatedNccl;
  nodes_.push_back(std::move(node));
}

// --- Services for processes --------------------------------------------------

Executor* Cluster::ExecutorOf(int node) {
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

void Cluster::Connect(int node, std::shared_ptr<Connection> connection,
                      const session::Hello& hello) {
  stage_.scheduler.After(stage_.SoonDelay(), stage_.Forever(),
                         [this, node, connection, hello] {
                           if (!nodes_[static_cast<size_t>(node)].agent) {
                             return connection->to_client.Close();
                           }
                           ExecutorOf(node)->TakeClient(connection, hello);
                         });
}

// --- Faults ------------------------------------------------------------------

void Cluster::ScheduleFaults(const std::vector<Fault>& all, uint64_t limit) {
  for (uint64_t n = random_.Below(limit); n > 0; --n) {
    faults_.push_back(random_.Pick(all));
  }
  next_fault_ = static_cast<uint64_t>(random_.Magnitude(1, 2000));
}

void Cluster::ScheduleOften(const Fault& fault, uint64_t times) {
  faults_.assign(times, fault);
  most_steps_ = 400;
  next_fault_ = static_cast<uint64_t>(random_.Magnitude(1, most_steps_));
}

bool Cluster::BringFault() {
  if (faults_.empty() || stage_.scheduler.steps() < next_fault_) return false;
  const Fault fault = faults_.back();
  if (!fault() && ++tries_ < 50) {
    next_fault_ += random_.Below(20);
    return false;
  }
  faults_.pop_back();
  tries_ = 0;
  next_fault_ += static_cast<uint64_t>(random_.Magnitude(1, most_steps_));
  NotCalmYet();
  return true;
}

void Cluster::Disturb(int64_t until) {
  disturbed_at_ = std::max(disturbed_at_, until);
  calm_at_ = std::max(calm_at_, until + kSettleTime);
}

void Cluster::ExpectEnds(EpochRecord* epoch, int64_t time,
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

void Cluster::Kill(const std::shared_ptr<Process>& process) {
  const int64_t closes_after =
      random_.OneIn(4) ? random_.Magnitude(kMillisecond, 300 * kMillisecond)
                       : random_.Magnitude(kMicrosecond, kMillisecond);
  const std::string who = absl::StrCat("rank ", process->place().rank);
  ledger_.Blame({who});
  // If its executor has died, too, nobody is left to report it: it is known
  // when the coordinator has given up the executor, as after a node's death.
  const int64_t noticed = process->has_executor() ? 0 : kResumeTimeout;
  ExpectEnds(process->epoch(), closes_after + kSoon + noticed,
             absl::StrCat("the death of ", who));
  ++stage_.counts.ranks_killed;
  process->Kill(closes_after);
}

bool Cluster::KillInTurn(const std::shared_ptr<Process>& process) {
  if (process == nullptr || process->epoch() == nullptr) return false;
  process->KillAfter(static_cast<int>(random_.Magnitude(1, 100)));
  stage_.scheduler.After(kSecond, process, [p = process.get()] {
    p->KillAfter(0);  // it has not reached that kill point
  });
  return true;
}

bool Cluster::KillExecutor(size_t node) {
  Node& n = nodes_[node];
  std::shared_ptr<Executor> executor = std::move(n.executor);
  if (executor == nullptr && !n.orphans.empty()) {
    executor = std::move(n.orphans.back());
    n.orphans.pop_back();
  }
  if (executor == nullptr) return false;
  const std::string who = absl::StrCat("node n", node);
  ++stage_.counts.executors_killed;
  // The last text: the rank that should write the reason is interrupted at a
  // kill point.
  ledger_.Blame(
      {who, "the executor of this node died",
       "the process that was recording the reason died before it could"});
  for (const auto& process : processes()) {
    if (process == nullptr || process->epoch() == nullptr) continue;
    ExpectEnds(process->epoch(), kSoon + kResumeTimeout,
               absl::StrCat("the death of the executor of ", who));
  }
  stage_.Trace("the executor of ", who, " is killed");
  executor->Kill();
  NotCalmYet();
  return true;
}

void Cluster::LoseAgent(size_t node) {
  Node& n = nodes_[node];
  n.agent = false;
  if (n.executor == nullptr) return;
  n.executor->LoseSupervisor();
  n.orphans.push_back(std::move(n.executor));
  n.executor.reset();
}

// No fault is blamed for it: jobs go on.
bool Cluster::RestartAgent(size_t node) {
  if (!nodes_[node].agent) return false;
  stage_.Trace("the agent of node n", node, " is killed");
  ++stage_.counts.agents_killed;
  LoseAgent(node);
  stage_.scheduler.After(kRestartPause + stage_.SoonDelay(), stage_.Forever(),
                         [this, node] {
                           stage_.Trace("node n", node, " has an agent again");
                           nodes_[node].agent = true;
                         });
  return true;
}

void Cluster::KillOrphans(size_t node) {
  for (const auto& orphan : std::exchange(nodes_[node].orphans, {})) {
    ++stage_.counts.executors_killed;
    ledger_.Blame({absl::StrCat("node n", node)});
    orphan->Kill();
  }
}

bool Cluster::KillCoordinator(int64_t most_away) {
  if (!coordinator_->alive()) return false;
  const int64_t away = random_.Magnitude(kMillisecond, most_away);
  stage_.Trace("the coordinator is killed, comes back in ", away / kMillisecond,
               " ms");
  ++stage_.counts.coordinators_killed;
  // Epochs go on; but a new executor waits for its first contact only so long,
  // and if a whole node dies meanwhile, nobody is left to say why.
  ledger_.Blame({"cannot reach the coordinator",
                 "the network between nodes failed",
                 "after the coordinator had been replaced"});
  coordinator_->Kill();
  stage_.scheduler.After(away, stage_.Forever(), [this] {
    stage_.Trace("the coordinator is back");
    coordinator_->Restart();
  });
  Disturb(stage_.scheduler.now() + away);
  return true;
}

bool Cluster::CutLink(size_t i) {
  const auto node = static_cast<int>(i);
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
  if (time >= kResumeTimeout) OnNodeLost(node);
  return true;
}

bool Cluster::FailBackend(size_t node) {
  Executor* executor = nodes_[node].executor.get();
  if (executor == nullptr || !executor->FailBackend()) return false;
  stage_.Trace("the network of node n", node, " fails");
  ++stage_.counts.backends_failed;
  ledger_.Blame({"the network between nodes failed"});
  Disturb(stage_.scheduler.now() + kResumeTimeout);
  return true;
}

bool Cluster::FreezeRank(const std::shared_ptr<Process>& process) {
  if (process == nullptr || process->frozen()) return false;
  // A rank that is stopped for longer may be declared lost.
  const int64_t time = random_.Magnitude(kMillisecond, 30 * kSecond);
  ledger_.Blame({absl::StrCat("rank ", process->place().rank)});
  ++stage_.counts.ranks_frozen;
  process->Freeze(time);
  Disturb(stage_.scheduler.now() + time);
  return true;
}

// --- Playing -----------------------------------------------------------------

void Cluster::DropIfDone(std::shared_ptr<Executor>* executor) {
  if (*executor == nullptr) return;
  (*executor)->LookAtWakeWords();
  if (!(*executor)->done()) return;
  (*executor)->End();
  executor->reset();
}

void Cluster::LookAround() {
  for (const auto& process : processes()) {
    if (process != nullptr) process->LookAtWakeWord();
  }
  for (Node& node : nodes_) {
    DropIfDone(&node.executor);
    for (auto& orphan : node.orphans) DropIfDone(&orphan);
    std::erase(node.orphans, nullptr);
  }
}

void Cluster::Hangs(const std::string& why) {
  std::string text = why;
  for (const auto& process : processes()) {
    if (process != nullptr)
      absl::StrAppend(&text, "\n  ", process->StateText());
  }
  stage_.Found(text, ledger_.PendingText(), "\n  ", coordinator_->StatusText());
}

void Cluster::CheckAllHaveLeft() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Executor* executor = nodes_[i].executor.get();
    if (executor == nullptr) continue;
    if (executor->clients() > 0 || executor->board() != nullptr) {
      stage_.Found("node n", i, " keeps ", executor->clients(), " clients and ",
                   executor->board() ? "a" : "no",
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
                 totals.pending_operations, " operations after all have left");
  }
}

void Cluster::CheckNothingIsLeft(int64_t grace) {
  const int64_t start = stage_.scheduler.now();
  bool left = false;
  while (stage_.scheduler.now() < start + 20 * kSecond &&
         stage_.scheduler.Step()) {
    LookAround();
    if (left || stage_.scheduler.now() < start + grace) continue;
    left = true;
    CheckAllHaveLeft();
  }
  const coordinator::Totals totals = coordinator_->totals();
  if (totals.jobs > 0 || totals.nodes > 0) {
    stage_.Found("the coordinator keeps ", totals.jobs, " jobs and ",
                 totals.nodes, " sessions when all is over");
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].executor != nullptr || !nodes_[i].orphans.empty()) {
      stage_.Found("node n", i, " keeps its executor when all is over");
    }
  }
}

RunResult Cluster::Result() {
  Counts counts = stage_.counts;
  counts.seeds = 1;
  counts.steps = stage_.scheduler.steps();
  for (Node& node : nodes_) {
    if (node.executor != nullptr) node.executor->Kill();
    for (const auto& orphan : node.orphans) orphan->Kill();
  }
  return {counts, stage_.found()};
}

}  // namespace maypole::simulation
