#include "client/launcher/node/node_supervisor.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/node/node_protocol.h"
#include "client/launcher/process/announcement.h"
#include "client/launcher/process/gpus.h"
#include "client/launcher/process/process.h"
#include "client/launcher/process/rank_start.h"
#include "common/system/cores.h"
#include "common/system/fd.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectLimit{2000};  // to the coordinator
constexpr milliseconds kRestartPause{500};   // before a daemon's restart
constexpr int kMostFailedRestarts = 3;       // of a daemon, in a row

// If there are several addresses, takes the first that accepts a connection.
Status ChooseCoordinator(const NodeJob& job, std::string* out) {
  if (job.coordinators_size() == 1) {
    *out = job.coordinators(0);
    return Status();
  }
  return FirstThatAccepts(
      {job.coordinators().begin(), job.coordinators().end()}, kConnectLimit,
      out);
}

Status ChooseNetwork(const NodeJob& job, std::string* out) {
  *out = job.network();
  if (!out->empty() || job.interfaces_size() == 0) return Status();
  return AddressesOfInterfaces(
      {job.interfaces().begin(), job.interfaces().end()}, out);
}

}  // namespace

NodeSupervisor::NodeSupervisor(OutputLoop* loop, Settings settings)
    : loop_(loop), settings_(std::move(settings)) {}

Status NodeSupervisor::Prepare(OnSignal on_signal) {
  getrlimit(RLIMIT_NOFILE, &files_);
  const rlimit most = {.rlim_cur = files_.rlim_max,
                       .rlim_max = files_.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
  if (!on_signal) return Status();
  on_signal_ = std::move(on_signal);
  // Orphans that ranks leave behind become our children, so we can end them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t set = HandledSignals();
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return ErrnoStatus(errno, "signalfd");
  return loop_->events()->Watch(
      std::move(signals), {.readable = [this] { OnSignals(); }}, &signals_);
}

void NodeSupervisor::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_.fd(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      ReapOrphans(loop_->Children());
    } else {
      on_signal_(info);
    }
  }
}

Status NodeSupervisor::StartDaemon(const std::string& name,
                                   const std::vector<std::string>& arguments) {
  ChildProcess::Settings settings = {
      .spawn = {.arguments = arguments,
                .process_group = ProcessGroup::kNew,
                .death_signal = SIGTERM,
                .open_files = rlimit{.rlim_cur = files_.rlim_max,
                                     .rlim_max = files_.rlim_max}},
      .out =
          [this, name](std::string_view bytes) {
            core_.OnLog(name);
            settings_.listener->OnDaemonLog(name, bytes);
          },
      .announce = [this,
                   name](std::string_view bytes) { OnAnnounce(name, bytes); },
      .on_end =
          [this, name](Exit exit) {
            const std::string lost = core_.OnDaemonEnd(name, exit);
            if (lost.empty()) return;
            const bool returns = StartsAgain(name, exit);
            settings_.listener->OnDaemonLost(
                lost + (returns ? "; another one is started" : ""), returns);
          }};
  if (name == kCoordinatorName && coordinator_arguments_.empty()) {
    coordinator_arguments_ = arguments;
  }
  std::string program;
  Status status = FindDaemon(arguments[0], &program);
  if (!status.ok()) return status;
  auto daemon = std::unique_ptr<Daemon>(
      new Daemon{name, ChildProcess(loop_, std::move(settings))});
  status = daemon->process.Start(program);
  if (!status.ok()) return status;
  core_.OnDaemonStart(name, daemon->process.pid());
  daemons_.push_back(std::move(daemon));
  return Status();
}

void NodeSupervisor::OnAnnounce(const std::string& daemon,
                                std::string_view bytes) {
  for (const JoinedRank& joined : core_.OnAnnounce(daemon, bytes)) {
    const Node* const node = NodeOf(daemon);
    // Some ranks may form jobs of their own (init(comm=[...])).
    if (node == nullptr || node->job.job() != joined.job) continue;
    const int first = node->job.first_rank();
    if (joined.rank < first || joined.rank >= first + node->job.local_size()) {
      continue;
    }
    FromNode message;
    message.mutable_rank_joined()->set_rank(joined.rank);
    settings_.listener->OnRank(message);
  }
}

void NodeSupervisor::StopDaemon(const std::string& name, int signal) {
  for (const auto& daemon : daemons_) {
    if (daemon->name != name) continue;
    core_.AskToEnd(name);
    daemon->process.Signal(signal);
  }
  if (name == kCoordinatorName) coordinator_.restart_at.reset();
}

Status NodeSupervisor::AddNode(NodeJob job, const std::string& secret_file) {
  Node& node = nodes_[job.node()];
  node.job = std::move(job);
  Status status = FindProgram(node.job.command(0), &node.program);
  if (!status.ok()) {
    return Status(status.code(), "cannot run " + status.message());
  }
  if (node.job.running_agent()) {
    node.agent = node.job.agent_socket();
    return FindRunningAgent(&node.agent);
  }
  return node.job.start_agent() ? StartAgent(&node, secret_file) : Status();
}

Status NodeSupervisor::StartAgent(Node* node, const std::string& secret_file) {
  const NodeJob& job = node->job;
  const std::string name = NodeName(job.node());
  WorkerSettings& worker = node->worker;
  worker = {.node = name,
            .host = job.host(),
            .socket = settings_.directory + "/" + name + ".sock",
            .secret_file = secret_file,
            .start_timeout_s = job.start_timeout_s(),
            .verbose = job.verbose(),
            .flags = {job.agent_flags().begin(), job.agent_flags().end()}};
  Status status = ChooseCoordinator(job, &worker.coordinator);
  if (status.ok()) status = ChooseNetwork(job, &worker.network);
  if (status.ok()) status = StartDaemon(name, WorkerArguments(worker));
  node->agent = worker.socket;
  return status;
}

NodeSupervisor::Node* NodeSupervisor::Find(int number) {
  const auto it = nodes_.find(number);
  return it == nodes_.end() ? nullptr : &it->second;
}

NodeSupervisor::Node* NodeSupervisor::NodeOf(const std::string& agent) {
  for (auto& [number, node] : nodes_) {
    if (node.worker.node == agent) return &node;
  }
  return nullptr;
}

const NodeCore::Daemon* NodeSupervisor::AgentOf(int number) {
  const Node* const node = Find(number);
  return node == nullptr ? nullptr : core_.Find(node->worker.node);
}

bool NodeSupervisor::AgentIsLost(int number) {
  const Node* const node = Find(number);
  return node != nullptr && node->lives.lost;
}

void NodeSupervisor::StopAgent(int number) {
  Node* const node = Find(number);
  if (node == nullptr) return;
  node->lives.restart_at.reset();
  StopDaemon(node->worker.node, SIGTERM);
}

bool NodeSupervisor::StartsAgain(const std::string& name, const Exit& exit) {
  Lives* lives = &coordinator_;
  if (name != kCoordinatorName) {
    Node* const node = NodeOf(name);
    // Ranks of an elastic job continue without their agent, but need one to
    // join the next epoch.
    if (node == nullptr || !node->job.elastic()) return false;
    lives = &node->lives;
  } else if (exit.clean()) {
    coordinator_.lost = true;
    return false;
  }
  lives->PlanRestart(core_.Find(name)->ready);
  return lives->restart_at.has_value();
}

// A first daemon that was never ready would fail again; a later one may have
// been killed.
void NodeSupervisor::Lives::PlanRestart(bool was_ready) {
  failed = was_ready ? 0 : failed + 1;
  const bool hopeless = !was_ready && restarts == 0;
  if (hopeless || failed > kMostFailedRestarts) {
    lost = true;
  } else {
    restart_at = Now() + kRestartPause;
  }
}

bool NodeSupervisor::Lives::TakeRestart(Time now) {
  if (!restart_at || now < *restart_at) return false;
  restart_at.reset();
  ++restarts;
  return true;
}

void NodeSupervisor::Restart(const std::string& name,
                             const std::vector<std::string>& arguments,
                             Lives* lives) {
  const Status s = StartDaemon(name, arguments);
  if (s.ok()) return;
  lives->PlanRestart(false);
  settings_.listener->OnDaemonLost(s.message(), lives->restart_at.has_value());
}

void NodeSupervisor::RestartDaemons(Time now) {
  // Restarts the coordinator at the address of the one that has died, which
  // executors and operators know; of several equal flags the last one counts.
  if (coordinator_.TakeRestart(now)) {
    std::vector<std::string> arguments = coordinator_arguments_;
    const Announcement& before = core_.Find(kCoordinatorName)->announcement;
    arguments.push_back("--listen=" + before.listen);
    if (!before.metrics.empty()) {
      arguments.push_back("--metrics=" + before.metrics);
    }
    Restart(kCoordinatorName, arguments, &coordinator_);
  }
  // Restarts agents at the same socket, which the ranks know, but as new nodes
  // of the job: the executor of the agent that has ended may still be there.
  for (auto& [number, node] : nodes_) {
    if (!node.lives.TakeRestart(now)) continue;
    node.worker.node =
        NodeName(number) + "." + std::to_string(node.lives.restarts);
    Restart(node.worker.node, WorkerArguments(node.worker), &node.lives);
  }
}

Status NodeSupervisor::EnvironmentOf(const Node& node, int rank, int slot,
                                     std::vector<std::string>* out) const {
  const char* const python_path = getenv("PYTHONPATH");
  RankSurroundings around = {.usable_cores = static_cast<int>(UsableCores()),
                             .agent = node.agent,
                             .python_path = python_path ? python_path : "",
                             .directory = settings_.directory};
  if (node.job.elastic()) {
    around.ranks_here = node.job.local_size();  // earlier nodes have ended
  } else {
    around.ranks_here = 0;
    for (const auto& [number, n] : nodes_) {
      around.ranks_here += n.job.local_size();
    }
  }
  if (node.job.bind_gpus()) {
    Status status =
        FindGpus(getenv("CUDA_VISIBLE_DEVICES"), kDriverGpus, &around.gpus);
    if (!status.ok()) return status;
  }
  *out = EnvironmentWith(RankVariables(
      node.job, around, rank, slot,
      [](const std::string& name) { return getenv(name.c_str()); }));
  return Status();
}

Status NodeSupervisor::StartProcess(int number, int rank, int slot) {
  const Node* const node = &nodes_.at(number);
  // Removes ranks that have ended and whose output has been read.
  std::erase_if(ranks_, [](const auto& r) {
    return !r->process.running() && r->process.output_ended();
  });
  const bool takes_stdin = settings_.gives_stdin && rank == 0;
  // Only the terminal's foreground group may read from it.
  const bool foreground = takes_stdin && isatty(0) != 0;
  const auto report = [this, rank](RankOutput::Stream stream) {
    return [this, rank, stream](std::string_view bytes) {
      settings_.listener->OnRank(OutputOf(rank, stream, bytes));
    };
  };
  ChildProcess::Settings settings = {
      .spawn = {.arguments = {node->job.command().begin(),
                              node->job.command().end()},
                .environment = std::vector<std::string>(),
                .process_group =
                    foreground ? ProcessGroup::kJoin : ProcessGroup::kNew,
                .group = settings_.terminal_group,
                .death_signal = SIGKILL,
                .open_files = files_},
      .owns_group = !foreground,
      .on_end = [this, rank, elastic = node->job.elastic()](Exit exit) {
        if (elastic) exit.finished = HasFinished(rank);
        settings_.listener->OnRank(EndOf(rank, exit));
      }};
  Status status =
      EnvironmentOf(*node, rank, slot, &*settings.spawn.environment);
  if (!status.ok()) return status;
  if (!settings_.raw_output) {
    settings.out = report(RankOutput::STDOUT);
    settings.err = report(RankOutput::STDERR);
  }
  if (!node->job.function().empty()) {
    settings.announce = report(RankOutput::RESULT);
  }
  auto started = std::unique_ptr<Rank>(
      new Rank{rank, foreground, ChildProcess(loop_, std::move(settings))});
  status = started->process.Start(node->program, takes_stdin ? 0 : kDevNull);
  if (!status.ok()) return status;
  ranks_.push_back(std::move(started));
  FromNode message;
  message.mutable_rank_started()->set_rank(rank);
  message.mutable_rank_started()->set_pid(ranks_.back()->process.pid());
  settings_.listener->OnRank(message);
  return Status();
}

bool NodeSupervisor::HasFinished(int process) const {
  // Removes the file: it is checked only once.
  return unlink(FinishedFile(settings_.directory, process).c_str()) == 0;
}

void NodeSupervisor::SignalRanks(int signal, bool from_terminal) {
  for (const auto& rank : ranks_) {
    if (!rank->foreground || !from_terminal) rank->process.Signal(signal);
  }
}

void NodeSupervisor::SignalRank(int number, int signal) {
  for (const auto& rank : ranks_) {
    if (rank->rank == number) rank->process.Signal(signal);
  }
}

bool NodeSupervisor::OutputEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->process.output_ended();
  });
}

std::vector<pid_t> NodeSupervisor::End() {
  for (auto& [number, node] : nodes_) node.lives.restart_at.reset();
  coordinator_.restart_at.reset();
  if (core_.BeginEnd(Now()) != NodeCore::Step::kKillRanks) {
    return {};
  }
  // KillDescendants() reaps them: other processes may get their process ids.
  for (const auto& rank : ranks_) rank->process.Forget();
  std::vector<pid_t> left =
      KillDescendants(loop_->Children(), core_.Within(kKillLimit));
  OnTime(Now());  // skips phases without work
  return left;
}

std::optional<Time> NodeSupervisor::deadline() const {
  std::optional<Time> first =
      Earlier(core_.deadline(), coordinator_.restart_at);
  for (const auto& [number, node] : nodes_) {
    first = Earlier(first, node.lives.restart_at);
  }
  return first;
}

void NodeSupervisor::OnTime(Time now) {
  RestartDaemons(now);
  const bool others_ended = !settings_.others_ended || settings_.others_ended();
  NodeCore::Step step;
  while ((step = core_.ContinueEnd(now, OutputEnded(), others_ended)) !=
         NodeCore::Step::kNothing) {
    Take(step);
  }
}

void NodeSupervisor::Take(NodeCore::Step step) {
  if (step == NodeCore::Step::kKillAll) {
    for (const auto& daemon : daemons_) {
      daemon->process.Forget();
      daemon->process.CloseOutput();
    }
    KillDescendants(loop_->Children(), kKillLimit.normal);
    return;
  }
  const bool last = step == NodeCore::Step::kStopCoordinator;
  if (!last) {
    for (const auto& rank : ranks_) rank->process.CloseOutput();
  }
  for (const auto& daemon : daemons_) {
    if ((daemon->name == kCoordinatorName) == last) {
      daemon->process.Signal(SIGTERM);
    }
  }
}

std::string NodeSupervisor::DescribeAgent() const {
  if (!core_.daemons().empty()) return core_.Summary().front();
  if (nodes_.empty() || nodes_.begin()->second.agent.empty()) return "";
  return "socket=" + nodes_.begin()->second.agent;
}

}  // namespace maypole::launcher
