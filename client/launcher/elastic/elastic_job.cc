#include "client/launcher/elastic/elastic_job.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace maypole::launcher {
namespace {

using std::chrono::seconds;

ElasticDriver::Settings DriverSettings(const ElasticOptions& options,
                                       int first_size) {
  return {.first_size = first_size,
          .min_size = options.min_size,
          .max_size = options.max_size,
          .patience = seconds(options.timeout_s),
          .reset_limit = options.reset_limit,
          .shortest_cooldown = seconds(options.cooldown_s[0]),
          .longest_cooldown = seconds(options.cooldown_s[1])};
}

}  // namespace

ElasticJob::ElasticJob(const ElasticOptions& options, int first_size,
                       OutputLoop* loop, IsHere is_here, Launcher launcher)
    : launcher_(std::move(launcher)),
      driver_(DriverSettings(options, first_size)),
      fixed_hosts_(options.hosts) {
  if (options.discovery_script.empty()) return;
  discovery_.emplace(loop, HostDiscovery::Settings{
                               .script = options.discovery_script,
                               .slots_per_host = options.slots_per_host,
                               .is_here = AskedOnce(std::move(is_here)),
                               .on_hosts =
                                   [this](const std::vector<Host>& hosts) {
                                     OnHosts(hosts,
                                             std::chrono::steady_clock::now());
                                   },
                               .say = launcher_.say});
}

bool ElasticJob::OnProcessEnd(int process, const Exit& exit) {
  const auto it = node_of_.find(process);
  if (it == node_of_.end()) return false;
  nodes_.at(it->second).processes.erase(process);
  node_of_.erase(it);
  bool failed = false;
  Take(driver_.OnProcessEnd(process, exit, std::chrono::steady_clock::now(),
                            &failed));
  return failed;
}

void ElasticJob::OnHosts(const std::vector<Host>& hosts, Time now) {
  std::vector<HostSlots> slots;
  for (Host host : hosts) {
    if (host.here) {  // by whatever name: it is listed at most once
      if (here_.empty()) here_ = host.name;
      host.name = here_;
    }
    hosts_[host.name] = host;
    slots.push_back({host.name, host.slots});
  }
  Take(driver_.OnHosts(slots, now));
}

void ElasticJob::Continue(Time now) {
  if (stopped_) return;
  if (discovery_ && !ending()) discovery_->OnTime(now);
  if (!std::exchange(begun_, true) && !discovery_) OnHosts(fixed_hosts_, now);
  LookAtNodes(now);
  Take(driver_.OnTime(now));
  while (!actions_.empty() && !stopped_) {
    const ElasticDriver::Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](const auto& a) { Do(a); }, action);
    // What it does may be done at once: a node without an agent of its own.
    if (actions_.empty()) LookAtNodes(now);
  }
  std::erase_if(finished_, [](const auto& remote) { return remote->ended(); });
}

std::optional<Time> ElasticJob::deadline() const {
  if (stopped_) return std::nullopt;
  std::optional<Time> first = driver_.deadline();
  const auto add = [&](Time t) { first = first ? std::min(*first, t) : t; };
  for (const auto& [number, node] : nodes_) {
    if (!node.ready) add(node.ready_by);
  }
  if (discovery_ && !ending()) add(discovery_->deadline());
  return first;
}

void ElasticJob::Stop() {
  stopped_ = true;
  if (discovery_) discovery_->Stop();
}

std::vector<RemoteNode*> ElasticJob::remotes() const {
  std::vector<RemoteNode*> remotes;
  for (const auto& [number, node] : nodes_) {
    if (node.remote) remotes.push_back(node.remote.get());
  }
  for (const auto& remote : finished_) remotes.push_back(remote.get());
  return remotes;
}

// --- Nodes -------------------------------------------------------------------

void ElasticJob::LookAtNodes(Time now) {
  std::vector<int> lost;
  for (auto& [number, node] : nodes_) {
    LookAt(number, &node, now);
    if (!node.lost.empty()) lost.push_back(number);
  }
  for (const int number : lost) Lose(number, now);
}

void ElasticJob::OnLost(int number, const std::string& why) {
  const auto it = nodes_.find(number);
  if (it == nodes_.end()) return;
  it->second.lost = why;
  if (!stopped_) return;  // LookAtNodes() sees it
  for (const int process : it->second.processes) {
    launcher_.lose_process(process);
  }
}

void ElasticJob::LookAt(int number, Node* node, Time now) {
  bool ready = false;
  if (!node->ready && now >= node->ready_by) return GiveUp(number, node);
  if (node->remote) {
    if (node->remote->greeted() && !std::exchange(node->told, true)) {
      ToNode message;
      *message.mutable_job() =
          launcher_.describe(number, node->host, node->remote.get());
      node->remote->Send(message);
    }
    ready = node->remote->ready();
  } else {
    // Null: an agent that runs on this machine anyway.
    const NodeCore::Daemon* const agent = launcher_.here->AgentOf(number);
    ready = agent == nullptr || agent->ready;
    if (launcher_.here->AgentIsLost(number)) {
      node->lost = kAgentLost;
      return;
    }
  }
  if (!ready || std::exchange(node->ready, true)) return;
  Take(driver_.OnNodeReady(number, now));
}

// A host on which even a shell's start hangs, or the agent's.
void ElasticJob::GiveUp(int number, Node* node) {
  const std::string why =
      (!node->remote || node->remote->greeted() ? "not ready"
                                                : "no answer through ssh") +
      std::string(" after ") + std::to_string(launcher_.start_limit.count()) +
      " s (--start-timeout)";
  if (node->remote) return node->remote->GiveUp(why);  // calls OnLost()
  launcher_.here->StopAgent(number);
  node->lost = why;
}

// Its processes cannot join the job any more.
void ElasticJob::Lose(int number, Time now) {
  Node node = std::move(nodes_.at(number));
  nodes_.erase(number);
  for (const int process : node.processes) {
    node_of_.erase(process);
    if (!node.remote) launcher_.here->SignalRank(process, SIGKILL);
    launcher_.lose_process(process);
  }
  if (node.remote) {
    node.remote->Finish();
    finished_.push_back(std::move(node.remote));
  }
  Take(driver_.OnNodeLost(number, node.lost, now));
}

void ElasticJob::Take(ElasticDriver::Actions actions) {
  for (ElasticDriver::Action& a : actions) actions_.push_back(std::move(a));
}

void ElasticJob::Do(const ElasticDriver::StartNode& start) {
  Node& node = nodes_[start.node];
  node.ready_by = std::chrono::steady_clock::now() + launcher_.start_limit;
  node.host = hosts_.at(start.host);
  node.host.ranks = 0;  // they start one by one
  if (!node.host.here) {
    node.remote =
        launcher_.connect(node.host, start.node,
                          [this, number = start.node](const std::string& why) {
                            OnLost(number, why);
                          });
    return;
  }
  const Status status = launcher_.here->AddNode(
      launcher_.describe(start.node, node.host, nullptr),
      launcher_.secret_file);
  if (!status.ok()) node.lost = status.message();
}

void ElasticJob::Do(const ElasticDriver::StopNode& stop) {
  const auto it = nodes_.find(stop.node);
  if (it == nodes_.end()) return;
  if (it->second.remote) {
    it->second.remote->Finish();
    finished_.push_back(std::move(it->second.remote));
  } else {
    launcher_.here->StopAgent(stop.node);
  }
  nodes_.erase(it);
}

// --- Processes ---------------------------------------------------------------

void ElasticJob::Do(const ElasticDriver::StartProcess& start) {
  const auto it = nodes_.find(start.node);
  if (it == nodes_.end()) return;  // its loss is on its way to the driver
  Node& node = it->second;
  node_of_[start.process] = start.node;
  node.processes.insert(start.process);
  Status status = launcher_.add_process(start.process, node.host, start.node);
  if (status.ok() && node.remote) {
    ToNode message;
    message.mutable_start_rank()->set_rank(start.process);
    message.mutable_start_rank()->set_slot(start.slot);
    node.remote->Send(message);
  } else if (status.ok()) {
    status =
        launcher_.here->StartProcess(start.node, start.process, start.slot);
  }
  if (status.ok()) return;
  launcher_.say(status.message());
  launcher_.lose_process(start.process);
  OnProcessEnd(start.process, kNotStarted);
}

void ElasticJob::Do(const ElasticDriver::SignalProcess& signal) {
  const auto it = node_of_.find(signal.process);
  if (it == node_of_.end()) return;
  const Node& node = nodes_.at(it->second);
  if (!node.remote) {
    launcher_.here->SignalRank(signal.process, signal.signal);
    return;
  }
  ToNode message;
  message.mutable_signal_ranks()->set_signal(signal.signal);
  message.mutable_signal_ranks()->set_only(signal.process);
  node.remote->Send(message);
}

}  // namespace maypole::launcher
