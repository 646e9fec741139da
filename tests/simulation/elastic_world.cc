#include "tests/simulation/elastic_world.h"

#include <algorithm>
#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/parts/elastic_process.h"
#include "tests/simulation/parts/launcher.h"

namespace maypole::simulation {
namespace {

// A run that is longer than this hangs.
constexpr int64_t kLongestRun = 1800 * kSecond;
// Longer than the driver's kShortLife, so that a start that cannot succeed does
// not count as a program that cannot work.
constexpr int64_t kStartTimeout = 90 * kSecond;
constexpr int kMostNodes = 200;
constexpr int64_t kAgentEndTime = 2 * kSecond;       // supervisor.cc
constexpr int64_t kAgentPause = 500 * kMillisecond;  // before its restart

using launcher::Exit;
constexpr Exit kKilled{.signaled = true, .value = SIGKILL};

class ElasticWorld : public Cluster {
 public:
  explicit ElasticWorld(const RunOptions& options);

  RunResult Play();

  EpochRecord* CurrentEpoch(int node, const std::string& key,
                            const BoardConfig& config) override;
  int64_t InitDelay() override;
  void OnDeath(Process* process) override;

 private:
  // A machine that a discovery script may list.
  struct Host {
    std::string name;
    bool listed = true;
    int slots = 1;
  };
  // One life of a host in the job.
  struct Life {
    std::string host;
    int node = -1;  // that the agent is in nodes_, -1: there is no agent
    std::vector<size_t> before;  // nodes of agents that have died
  };

  const Processes& processes() const override { return all_; }
  void OnNodeLost(int node) override { training_->OnNodeLost(node); }
  void MakeJob();
  void MakeFaults();
  std::vector<launcher::HostSlots> Listed() const;

  // --- What the driver wants -------------------------------------------------
  void StartNode(const Launcher::Driver::StartNode& start);
  void StopNode(int life);
  void StartProcess(const Launcher::Driver::StartProcess& start);
  void Signal(int process, int signal);
  void EndBadly(const std::string& why);

  // Does it when no rank is interrupted in its turn.
  void Later(std::function<void()> what) { later_.push_back(std::move(what)); }
  void StartAgent(Life* life);
  void StopAgent(int node);
  void End(int process, const Exit& exit);
  void KillProcess(int process, Exit exit);
  void Forget(int process);
  bool IsCalm() const;

  bool KillAgent();
  bool LoseHost();
  bool ChangeHosts();
  int SomeNumber();  // of a process; -1: there is none
  std::shared_ptr<Process> SomeProcess();
  size_t SomeNode();
  Life* SomeLife();
  void CheckEnd();

  std::unique_ptr<Training> training_;
  std::unique_ptr<Launcher> launcher_;
  worker::ExecutorCoreOptions common_;
  std::vector<Host> hosts_;
  std::map<int, Life> lives_;  // by the driver's number
  std::map<int, std::shared_ptr<ElasticProcess>> ranks_;  // the same
  Processes all_;                                         // ranks_'s
  std::map<int, int> life_of_;                            // of ranks_
  std::deque<std::function<void()>> later_;
  int last_pid_ = 100;
  bool ended_badly_ = false;
};

// --- Making ------------------------------------------------------------------

// Numbers that follow one another would give streams of random numbers that
// are each other's shifted copies (random.h).
RunOptions Mixed(RunOptions options) {
  options.seed = Random(options.seed).Next();
  return options;
}

ElasticWorld::ElasticWorld(const RunOptions& options)
    : Cluster(Mixed(options)) {
  MakeJob();
  MakeFaults();
  Later([this] { launcher_->OnHosts(Listed()); });
}

void ElasticWorld::MakeJob() {
  const auto hosts = 1 + random_.Below(3);
  int slots = 0;
  for (uint64_t i = 0; i < hosts; ++i) {
    hosts_.push_back(
        {absl::StrCat("h", i), true, static_cast<int>(random_.Between(1, 3))});
    slots += hosts_.back().slots;
  }
  Launcher::Driver::Settings settings;
  settings.first_size = static_cast<int>(random_.Between(1, slots));
  settings.min_size = static_cast<int>(random_.Between(1, settings.first_size));
  settings.max_size =
      random_.OneIn(2)
          ? slots + 4
          : static_cast<int>(random_.Between(settings.first_size, slots));
  settings.patience = std::chrono::seconds(random_.Between(5, 120));
  if (random_.OneIn(6)) {
    settings.reset_limit = static_cast<int>(random_.Below(4));
  }
  settings.shortest_cooldown = std::chrono::seconds(random_.Between(1, 3));
  settings.longest_cooldown = std::chrono::seconds(random_.Between(3, 20));
  training_ = std::make_unique<Training>(
      &stage_, ElasticTerms{.min_size = settings.min_size,
                            .max_size = settings.max_size,
                            .last_step = random_.Between(3, 30)});
  launcher_ = std::make_unique<Launcher>(
      &stage_, settings,
      Launcher::Hands{
          .start_node = [this](const auto& start) { StartNode(start); },
          .stop_node = [this](int life) { StopNode(life); },
          .start_process = [this](const auto& start) { StartProcess(start); },
          .signal = [this](int process, int s) { Signal(process, s); },
          .end_badly = [this](const std::string& why) { EndBadly(why); }});
  coordinator::Config config;
  config.start_timeout = coordinator::Time(kStartTimeout);
  config.resume_timeout = coordinator::Time(kResumeTimeout);
  config.operations = slots_ * 3 / 2;
  MakeCoordinator(config, kMostNodes);
  common_ = SomeOptions();
  common_.start_timeout_ms = kStartTimeout / kMillisecond;
}

void ElasticWorld::MakeFaults() {
  const Fault kill = [this] {
    const int number = SomeNumber();
    if (number >= 0) KillProcess(number, kKilled);
    return number >= 0;
  };
  const Fault kill_in_turn = [this] { return KillInTurn(SomeProcess()); };
  const Fault fail = [this] {
    const int number = SomeNumber();
    if (number >= 0) ranks_.at(number)->Fail();
    return number >= 0;
  };
  // Not by maypolerun: a scheduler, or somebody.
  const Fault terminate = [this] {
    const int number = SomeNumber();
    if (number >= 0) ranks_.at(number)->Sigterm();
    return number >= 0;
  };
  const Fault kill_agent = [this] { return KillAgent(); };
  const Fault change = [this] { return ChangeHosts(); };
  const auto at_some_node = [this](bool (ElasticWorld::*fault)(size_t)) {
    return
        [this, fault] { return !nodes_.empty() && (this->*fault)(SomeNode()); };
  };
  ScheduleFaults(
      {kill, kill, kill_in_turn, kill_in_turn, fail, terminate,
       at_some_node(&ElasticWorld::KillExecutor), kill_agent, kill_agent,
       [this] { return LoseHost(); }, at_some_node(&ElasticWorld::CutLink),
       [this] { return KillCoordinator(); },
       at_some_node(&ElasticWorld::FailBackend),
       [this] { return FreezeRank(SomeProcess()); }, change, change, change},
      8);
}

std::vector<launcher::HostSlots> ElasticWorld::Listed() const {
  std::vector<launcher::HostSlots> listed;
  for (const Host& host : hosts_) {
    if (host.listed) listed.push_back({host.name, host.slots});
  }
  return listed;
}

// --- Services for processes --------------------------------------------------

bool ElasticWorld::IsCalm() const {
  return faults_.empty() && stage_.scheduler.now() >= calm_at_;
}

EpochRecord* ElasticWorld::CurrentEpoch(int, const std::string& key,
                                        const BoardConfig& config) {
  if (EpochRecord* epoch = ledger_.Find(key)) return epoch;
  const ProgramOptions options{.size = static_cast<int>(config.size),
                               .calm = IsCalm(),
                               .new_names = slots_ < 64,
                               .elastic = true,
                               .repeats = stage_.repeats};
  // Which node a rank is on is known when it is welcomed.
  return ledger_.Begin(key, MakeProgram(&random_, options),
                       std::vector<int>(config.size, -1));
}

int64_t ElasticWorld::InitDelay() {
  return random_.OneIn(20)
             ? random_.Magnitude(kMillisecond, kSecond)
             : random_.Magnitude(10 * kMicrosecond, 10 * kMillisecond);
}

// --- What the driver wants ---------------------------------------------------

void ElasticWorld::StartNode(const Launcher::Driver::StartNode& start) {
  const bool fails =
      random_.OneIn(30) || nodes_.size() >= static_cast<size_t>(kMostNodes);
  lives_[start.node] = {.host = start.host};
  stage_.scheduler.After(random_.Magnitude(kMillisecond, 2 * kSecond),
                         stage_.Forever(), [this, number = start.node, fails] {
                           const auto it = lives_.find(number);
                           if (it == lives_.end()) return;
                           if (fails) {
                             lives_.erase(it);
                             return launcher_->OnNodeLost(
                                 number, "it cannot be reached");
                           }
                           StartAgent(&it->second);
                           launcher_->OnNodeReady(number);
                         });
}

void ElasticWorld::StartAgent(Life* life) {
  life->node = static_cast<int>(nodes_.size());
  AddNode(common_, life->host);
}

// SIGTERM to it, and by it to its executor; two seconds later SIGKILL.
void ElasticWorld::StopAgent(int node) {
  const std::shared_ptr<Executor> executor =
      nodes_[static_cast<size_t>(node)].executor;
  LoseAgent(static_cast<size_t>(node));
  if (executor == nullptr) return;
  if (executor->clients() > 0) {  // it has not seen their ends yet
    ledger_.Blame({"was stopped (SIGTERM)"});
    ledger_.Disturb();
    NotCalmYet();
  }
  executor->Stop();
  stage_.scheduler.After(kAgentEndTime, executor,
                         [e = executor.get()] { e->Kill(); });
}

void ElasticWorld::StopNode(int number) {
  const auto it = lives_.find(number);
  if (it == lives_.end()) return;  // its host was lost
  if (it->second.node >= 0) StopAgent(it->second.node);
  lives_.erase(it);
}

void ElasticWorld::StartProcess(const Launcher::Driver::StartProcess& start) {
  ElasticProcess::Environment environment;
  environment.stage = &stage_;
  environment.ledger = &ledger_;
  environment.surroundings = this;
  environment.training = training_.get();
  environment.start_timeout = kStartTimeout;
  environment.node = [this, life = start.node] {
    const auto it = lives_.find(life);
    return it == lives_.end() ? -1 : it->second.node;
  };
  environment.on_exit = [this, number = start.process](const Exit& exit) {
    End(number, exit);
  };
  environment.on_disturbance = [this] {
    ledger_.Disturb();
    NotCalmYet();
  };
  const auto process =
      std::make_shared<ElasticProcess>(std::move(environment), ++last_pid_);
  ranks_[start.process] = process;
  life_of_[start.process] = start.node;
  all_.push_back(process);
  stage_.scheduler.After(random_.Magnitude(kMillisecond, kSecond), process,
                         [p = process.get()] { p->Start(); });
}

void ElasticWorld::Signal(int number, int signal) {
  const auto it = ranks_.find(number);
  if (it == ranks_.end()) return;  // its end is on its way
  if (signal == SIGTERM) {
    ++stage_.counts.sigterms;
    return it->second->Sigterm();
  }
  if (it->second->evaluates() || it->second->frozen()) {
    return Later([this, number] {
      if (ranks_.contains(number)) KillProcess(number, kKilled);
    });
  }
  stage_.Found("pid ", it->second->pid(),
               " has not left within the grace; it is killed");
}

// The process has ended; maypolerun hears of it.
void ElasticWorld::End(int number, const Exit& exit) {
  Forget(number);
  stage_.scheduler.After(
      stage_.SoonDelay(), stage_.Forever(),
      [this, number, exit] { launcher_->OnProcessEnd(number, exit); });
}

void ElasticWorld::Forget(int number) {
  const auto it = ranks_.find(number);
  training_->OnWaitsNoMore(it->second->pid());
  std::erase(all_, it->second);
  ranks_.erase(it);
  life_of_.erase(number);
}

void ElasticWorld::KillProcess(int number, Exit exit) {
  const std::shared_ptr<ElasticProcess> process = ranks_.at(number);
  exit.finished = process->evaluates();
  ledger_.Blame({absl::StrCat("pid ", process->pid())});
  Kill(process);
  NotCalmYet();
  End(number, exit);
}

void ElasticWorld::EndBadly(const std::string&) {
  ended_badly_ = true;
  ++stage_.counts.jobs_ended_badly;
  Later([this] {
    while (!ranks_.empty()) KillProcess(ranks_.begin()->first, kKilled);
    while (!lives_.empty()) StopNode(lives_.begin()->first);
  });
}

// --- Faults ------------------------------------------------------------------

int ElasticWorld::SomeNumber() {
  if (ranks_.empty()) return -1;
  auto it = ranks_.begin();
  std::advance(it, random_.Below(ranks_.size()));
  return it->first;
}

std::shared_ptr<Process> ElasticWorld::SomeProcess() {
  const int number = SomeNumber();
  return number < 0 ? nullptr : ranks_.at(number);
}

size_t ElasticWorld::SomeNode() { return random_.Below(nodes_.size()); }

ElasticWorld::Life* ElasticWorld::SomeLife() {
  if (lives_.empty()) return nullptr;
  auto it = lives_.begin();
  std::advance(it, random_.Below(lives_.size()));
  return it->second.node < 0 ? nullptr : &it->second;
}

void ElasticWorld::OnDeath(Process* process) {
  ++stage_.counts.ranks_killed_within_a_step;
  for (const auto& [number, rank] : ranks_) {
    if (rank.get() == process) return KillProcess(number, kKilled);
  }
}

bool ElasticWorld::KillAgent() {
  Life* const life = SomeLife();
  if (life == nullptr) return false;
  const int number =
      std::find_if(lives_.begin(), lives_.end(), [&](const auto& l) {
        return &l.second == life;
      })->first;
  stage_.Trace("the agent of host ", life->host, " (node n", life->node,
               ") is killed");
  ++stage_.counts.agents_killed;
  life->before.push_back(static_cast<size_t>(life->node));
  LoseAgent(static_cast<size_t>(std::exchange(life->node, -1)));
  stage_.scheduler.After(
      kAgentPause + stage_.SoonDelay(), stage_.Forever(), [this, number] {
        const auto it = lives_.find(number);
        if (it == lives_.end()) return;
        StartAgent(&it->second);
        stage_.Trace("host ", it->second.host, " has an agent again, node n",
                     it->second.node);
      });
  NotCalmYet();
  return true;
}

// All that runs there is lost at once.
bool ElasticWorld::LoseHost() {
  Life* const life = SomeLife();
  if (life == nullptr) return false;
  const auto it =
      std::find_if(lives_.begin(), lives_.end(),
                   [&](const auto& l) { return &l.second == life; });
  const int lost = it->first;
  const auto node = static_cast<size_t>(life->node);
  stage_.Trace("host ", life->host, " is lost");
  ++stage_.counts.hosts_lost;
  std::vector<int> numbers;
  for (const auto& [number, l] : life_of_) {
    if (l == lost) numbers.push_back(number);
  }
  ledger_.Blame({absl::StrCat("node n", node)});
  KillExecutor(node);
  nodes_[node].agent = false;
  for (const size_t before : life->before) KillOrphans(before);
  for (const int number : numbers) {  // maypolerun hears of the host only
    ledger_.Blame({absl::StrCat("pid ", ranks_.at(number)->pid())});
    Kill(ranks_.at(number));
    Forget(number);
  }
  lives_.erase(it);
  stage_.scheduler.After(stage_.MessageDelay(), stage_.Forever(), [this, lost] {
    launcher_->OnNodeLost(lost, "its connection broke");
  });
  NotCalmYet();
  return true;
}

bool ElasticWorld::ChangeHosts() {
  Host& host = hosts_[random_.Below(hosts_.size())];
  ++stage_.counts.host_changes;
  switch (random_.Below(4)) {
    case 0:
      host.slots = static_cast<int>(random_.Between(1, 3));
      break;
    case 1:
      if (hosts_.size() < 5) {
        hosts_.push_back({absl::StrCat("h", hosts_.size()), true,
                          static_cast<int>(random_.Between(1, 3))});
        break;
      }
      [[fallthrough]];
    default:
      host.listed = !host.listed;
      // It may be back at once.
      if (!host.listed && random_.OneIn(4)) {
        stage_.scheduler.After(
            random_.Magnitude(kSecond, 60 * kSecond), stage_.Forever(),
            [this, &name = host.name, i = &host - hosts_.data()] {
              hosts_[static_cast<size_t>(i)].listed = true;
              if (!launcher_->over()) launcher_->OnHosts(Listed());
            });
      }
  }
  std::string text;
  for (const auto& h : Listed())
    absl::StrAppend(&text, " ", h.name, ":", h.slots);
  stage_.Trace("hosts:", text);
  launcher_->OnHosts(Listed());
  return true;
}

// --- Playing -----------------------------------------------------------------

RunResult ElasticWorld::Play() {
  const int64_t start = stage_.scheduler.now();
  const Launcher::Driver::Settings& s = launcher_->settings();
  stage_.Trace("seed's elastic world: ", hosts_.size(), " hosts, ",
               s.first_size, " processes first, ", s.min_size, " to ",
               s.max_size, " ranks, ", training_->terms().last_step, " steps, ",
               faults_.size(), " faults");
  const auto is_over = [&] {
    return launcher_->running() == 0 && ranks_.empty() &&
           (launcher_->finishing() || ended_badly_);
  };
  while (stage_.found().empty()) {
    while (!later_.empty()) {
      const auto what = std::move(later_.front());
      later_.pop_front();
      what();
    }
    if (is_over()) break;
    if (!stage_.scheduler.Step()) {
      Hangs("nothing happens any more");
    } else if (stage_.scheduler.now() - start > kLongestRun ||
               stage_.scheduler.steps() > kMostSteps) {
      Hangs("the run does not end");
    }
    LookAround();
    // What has been finished is known as long as the executors live.
    if (!launcher_->over() && !training_->finished() && BringFault()) {
      training_->OnDisturbed(calm_at_);
    }
  }
  if (stage_.found().empty()) CheckEnd();
  return Result();
}

void ElasticWorld::CheckEnd() {
  // As maypolerun does at its end.
  launcher_->Stop();
  while (!lives_.empty()) StopNode(lives_.begin()->first);
  // The loss of a host is noticed after --resume_timeout.
  CheckNothingIsLeft(kResumeTimeout + 5 * kSecond);
}

}  // namespace

RunResult PlayElastic(const RunOptions& options) {
  return ElasticWorld(options).Play();
}

}  // namespace maypole::simulation
