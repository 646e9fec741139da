// JobLauncher, the part that only elastic jobs have.
#include <algorithm>
#include <chrono>
#include <csignal>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/job/job_launcher.h"

namespace maypole::launcher {
namespace {

// How much longer ranks wait than maypolerun.
constexpr int kSlackSeconds = 10;

Time Now() { return std::chrono::steady_clock::now(); }

// At the start a script that cannot run is an error of the command line; later
// its hosts stay as they are.
Status CheckScript(const std::string& script) {
  std::string program;
  std::vector<std::string> arguments;
  const Status status =
      script.empty() ? Status() : FindDiscovery(script, &program, &arguments);
  if (status.ok()) return status;
  return Status(status.code(),
                "cannot run --host-discovery-script " + status.message());
}

ElasticDriver::Settings DriverSettings(const LauncherOptions& options) {
  const ElasticOptions& elastic = *options.elastic;
  return {.first_size = options.ranks,
          .min_size = elastic.min_size,
          .max_size = elastic.max_size,
          .patience = std::chrono::seconds(elastic.timeout_s),
          .reset_limit = elastic.reset_limit,
          .shortest_cooldown = std::chrono::seconds(elastic.cooldown_s[0]),
          .longest_cooldown = std::chrono::seconds(elastic.cooldown_s[1])};
}

class NodeHere : public ElasticNode {
 public:
  using OnLost = std::function<void(const std::string& why)>;
  NodeHere(NodeSupervisor* here, int node, OnLost on_lost)
      : here_(here), node_(node), on_lost_(std::move(on_lost)) {}

  bool Ready() override {
    if (here_->AgentIsLost(node_)) on_lost_(kAgentLost);
    // Null: an agent that runs on this machine anyway.
    const NodeCore::Daemon* const agent = here_->AgentOf(node_);
    return agent == nullptr || agent->ready;
  }
  std::string Standing() const override { return "not ready"; }
  void GiveUp(const std::string& why) override { on_lost_(why); }
  Status StartProcess(int process, int slot) override {
    return here_->StartProcess(node_, process, slot);
  }
  void SignalProcess(int process, int signal) override {
    here_->SignalRank(process, signal);
  }
  void Stop() override { here_->StopAgent(node_); }

 private:
  NodeSupervisor* const here_;
  const int node_;
  const OnLost on_lost_;
};

class NodeElsewhere : public ElasticNode {
 public:
  NodeElsewhere(std::shared_ptr<RemoteNode> remote,
                std::function<NodeJob()> describe)
      : remote_(std::move(remote)), describe_(std::move(describe)) {}

  bool Ready() override {
    if (remote_->greeted() && !std::exchange(told_, true)) {
      ToNode message;
      *message.mutable_job() = describe_();
      remote_->Send(message);
    }
    return remote_->ready();
  }
  std::string Standing() const override {
    return remote_->greeted() ? "not ready" : "no answer through ssh";
  }
  void GiveUp(const std::string& why) override { remote_->GiveUp(why); }
  Status StartProcess(int process, int slot) override {
    ToNode message;
    message.mutable_start_rank()->set_rank(process);
    message.mutable_start_rank()->set_slot(slot);
    remote_->Send(message);
    return Status();
  }
  void SignalProcess(int process, int signal) override {
    ToNode message;
    message.mutable_signal_ranks()->set_signal(signal);
    message.mutable_signal_ranks()->set_only(process);
    remote_->Send(message);
  }
  void Stop() override { remote_->Finish(); }

 private:
  const std::shared_ptr<RemoteNode> remote_;
  const std::function<NodeJob()> describe_;
  bool told_ = false;  // has got its NodeJob
};

}  // namespace

Status JobLauncher::StartElastic() {
  const ElasticOptions& elastic = *options_.elastic;
  std::string secret_file = options_.secret_file;
  Status status = CheckScript(elastic.discovery_script);
  if (status.ok()) status = DescribeJob();
  common_.set_elastic(true);
  common_.set_min_size(elastic.min_size);
  common_.set_max_size(elastic.max_size);
  // Ranks wait as long as maypolerun does, which says why it gives up.
  common_.set_start_timeout_s(
      std::max(options_.start_timeout_s, elastic.timeout_s) + kSlackSeconds);
  if (status.ok()) status = StartCoordinator(&secret_file);
  if (status.ok()) {
    status = WaitFor(&JobLauncher::NodesMayBeTold,
                     Now() + std::chrono::seconds(options_.start_timeout_s));
  }
  if (status.ok()) status = WriteEndpoints();
  if (!status.ok()) return status;
  elastic_.emplace(DriverSettings(options_), ElasticLauncher(secret_file));
  if (elastic.discovery_script.empty()) {
    elastic_->OnHosts(elastic.hosts, Now());
  } else {
    discovery_.emplace(
        &loop_, HostDiscovery::Settings{
                    .script = elastic.discovery_script,
                    .slots_per_host = elastic.slots_per_host,
                    .is_here = IsThisMachine,
                    .on_hosts =
                        [this](const std::vector<Host>& hosts) {
                          elastic_->OnHosts(hosts, Now());
                        },
                    .say = [this](const std::string& line) { Say(line); }});
  }
  ContinueElastic(Now());
  return Status();
}

void JobLauncher::ContinueElastic(Time now) {
  if (discovery_ && !elastic_->ending()) discovery_->OnTime(now);
  elastic_->Continue(now);
  std::erase_if(remotes_, [](const auto& remote) {
    return remote.use_count() == 1 && remote->ended();
  });
}

void JobLauncher::StopElastic() {
  elastic_->Stop();
  if (discovery_) discovery_->Stop();
}

NodeJob JobLauncher::ElasticJobOf(int node, const Host& host,
                                  const RemoteNode* remote) const {
  NodeJob job = common_;
  job.set_node(node);
  job.set_local_size(host.slots);
  if (StartsDaemons(options_)) SetCoordinators(remote, &job);
  return remote == nullptr ? job : JobOfRemote(job, *remote);
}

std::unique_ptr<ElasticNode> JobLauncher::StartElasticNode(
    int node, const Host& host, const std::string& secret_file) {
  const auto lost = [this, node](const std::string& why) {
    elastic_->OnNodeLost(node, why);
  };
  if (host.here) {
    const Status status =
        here_.AddNode(ElasticJobOf(node, host, nullptr), secret_file);
    if (!status.ok()) lost(status.message());
    return std::make_unique<NodeHere>(&here_, node, lost);
  }
  std::shared_ptr<RemoteNode> remote = Connect(host, node, 0, lost);
  remotes_.push_back(remote);
  if (Status s = Begin(remote.get()); !s.ok()) lost(s.message());
  auto describe = [this, node, host, r = remote.get()] {
    return ElasticJobOf(node, host, r);
  };
  return std::make_unique<NodeElsewhere>(std::move(remote),
                                         std::move(describe));
}

ElasticJob::Launcher JobLauncher::ElasticLauncher(
    const std::string& secret_file) {
  return {.start_node =
              [this, secret_file](int node, const Host& host) {
                return StartElasticNode(node, host, secret_file);
              },
          .start_limit = std::chrono::seconds(options_.start_timeout_s),
          .add_process =
              [this](int process, const Host& host, int node) {
                return AddProcess(process, host, node);
              },
          .lose_process = [this](int process) { LoseProcess(process); },
          .say = [this](const std::string& line) { Say(line); },
          .fail =
              [this](const std::string& why) {
                Say(why + "; stopping the job");
                SignalRanks(supervision_.OnJobFailed(Now()), false);
              }};
}

Status JobLauncher::AddProcess(int process, const Host& host, int node) {
  Rank* const rank = &ranks_[process];
  rank->place = {.rank = process, .node = node};
  rank->host = host.name;
  rank->here = host.here;
  rank->alive = true;
  supervision_.OnRankStart();
  return OpenOutput(rank);
}

// Without a coordinator ranks cannot enter an epoch any more.
void JobLauncher::OnElasticDaemonLost(const std::string& what) {
  if (here_.CoordinatorIsLost()) return elastic_->OnJobLost(what);
  Say(what);
}

// With its node, or because it could not be started: what follows is decided
// for the node.
void JobLauncher::LoseProcess(int process) {
  Rank* const rank = &ranks_.at(process);
  if (!rank->alive) return;
  rank->alive = false;
  supervision_.OnRankReplaced();
  CloseOutput(rank);
}

// A job may have any number of processes, so those that have ended keep no
// files and lines. If one makes the job fail, its last lines are shown.
void JobLauncher::CloseOutput(Rank* rank) {
  if (!rank->out) return;
  rank->out->Flush();
  rank->err->Flush();
  rank->out.reset();
  rank->err.reset();
}

// All ranks have ended, and no other is started.
bool JobLauncher::Over() const {
  if (!supervision_.ranks_ended()) return false;
  return !elastic_ || elastic_->ending() || supervision_.interrupted();
}

}  // namespace maypole::launcher
