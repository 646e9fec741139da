// JobLauncher, the part that only elastic jobs have.
#include <algorithm>
#include <chrono>
#include <csignal>

#include "client/launcher/elastic/host_discovery.h"
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
  elastic_.emplace(elastic, options_.ranks, &loop_, IsThisMachine,
                   ElasticLauncher(secret_file));
  elastic_->Continue(Now());
  return Status();
}

ElasticJob::Launcher JobLauncher::ElasticLauncher(
    const std::string& secret_file) {
  return {.here = &here_,
          .connect =
              [this](const Host& host, int node, RemoteNode::OnLost lost) {
                auto remote = Connect(host, node, 0, lost);
                if (Status s = Begin(remote.get()); !s.ok()) lost(s.message());
                return remote;
              },
          .describe =
              [this](int node, const Host& host, const RemoteNode* remote) {
                NodeJob job = common_;
                job.set_node(node);
                job.set_local_size(host.slots);
                if (StartsDaemons(options_)) SetCoordinators(remote, &job);
                return remote == nullptr ? job : JobOfRemote(job, *remote);
              },
          .start_limit = std::chrono::seconds(options_.start_timeout_s),
          .secret_file = secret_file,
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
  // Processes are numbered in the order in which they start.
  ranks_.push_back(std::make_unique<Rank>());
  Rank* rank = ranks_.back().get();
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
  Rank* const rank = ranks_[static_cast<size_t>(process)].get();
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
