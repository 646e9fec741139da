#include "client/launcher/elastic/elastic_job.h"

#include <csignal>
#include <utility>

namespace maypole::launcher {

bool ElasticJob::OnProcessEnd(int process, const Exit& exit, Time now) {
  const auto it = node_of_.find(process);
  if (it == node_of_.end()) return false;
  node_of_.erase(it);
  bool failed = false;
  Take(driver_.OnProcessEnd(process, exit, now, &failed));
  return failed;
}

void ElasticJob::OnHosts(const std::vector<Host>& hosts, Time now) {
  std::vector<HostSlots> slots;
  for (const Host& host : hosts) {
    hosts_[host.name] = host;
    slots.push_back({host.name, host.slots});
  }
  Take(driver_.OnHosts(slots, now));
}

void ElasticJob::OnNodeLost(int number, const std::string& why) {
  const auto it = nodes_.find(number);
  if (it == nodes_.end()) return;
  it->second.lost = why;
  if (!stopped_) return;  // CheckNodes() sees it
  for (const auto& [process, node] : node_of_) {
    if (node == number) launcher_.lose_process(process);
  }
}

void ElasticJob::Continue(Time now) {
  if (stopped_) return;
  CheckNodes(now);
  Take(driver_.OnTime(now));
  while (!actions_.empty() && !stopped_) {
    const ElasticDriver::Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([&](const auto& a) { Do(a, now); }, action);
    // An action may complete at once: a node without an agent of its own.
    if (actions_.empty()) CheckNodes(now);
  }
}

std::optional<Time> ElasticJob::deadline() const {
  if (stopped_) return std::nullopt;
  std::optional<Time> first = driver_.deadline();
  for (const auto& [number, node] : nodes_) {
    if (!node.ready) first = Earlier(first, node.ready_by);
  }
  return first;
}

// --- Nodes -------------------------------------------------------------------

void ElasticJob::CheckNodes(Time now) {
  std::vector<int> lost;
  for (auto& [number, node] : nodes_) {
    CheckNode(number, &node, now);
    if (!node.lost.empty()) lost.push_back(number);
  }
  for (const int number : lost) Lose(number, now);
}

void ElasticJob::CheckNode(int number, Node* node, Time now) {
  // On some hosts even the start of a shell hangs, or that of the agent.
  if (node->lost.empty() && !node->ready && now >= node->ready_by) {
    node->runner->GiveUp(node->runner->Standing() + " after " +
                         std::to_string(launcher_.start_limit.count()) +
                         " s (--start-timeout)");
  }
  if (!node->lost.empty()) return;
  const bool ready = node->runner->Ready();
  if (!node->lost.empty() || !ready || std::exchange(node->ready, true)) return;
  Take(driver_.OnNodeReady(number, now));
}

// The node's processes can no longer join the job.
void ElasticJob::Lose(int number, Time now) {
  Node node = std::move(nodes_.at(number));
  nodes_.erase(number);
  std::erase_if(node_of_, [&](const auto& entry) {
    if (entry.second != number) return false;
    if (node.runner) node.runner->SignalProcess(entry.first, SIGKILL);
    launcher_.lose_process(entry.first);
    return true;
  });
  if (node.runner) node.runner->Stop();
  Take(driver_.OnNodeLost(number, node.lost, now));
}

void ElasticJob::Take(ElasticDriver::Actions actions) {
  for (ElasticDriver::Action& a : actions) actions_.push_back(std::move(a));
}

void ElasticJob::Do(const ElasticDriver::StartNode& start, Time now) {
  Node& node = nodes_[start.node];
  node.ready_by = now + launcher_.start_limit;
  node.host = hosts_.at(start.host);
  node.runner = launcher_.start_node(start.node, node.host);
}

void ElasticJob::Do(const ElasticDriver::StopNode& stop, Time) {
  const auto it = nodes_.find(stop.node);
  if (it == nodes_.end()) return;
  it->second.runner->Stop();
  nodes_.erase(it);
}

// --- Processes ---------------------------------------------------------------

void ElasticJob::Do(const ElasticDriver::StartProcess& start, Time now) {
  const auto it = nodes_.find(start.node);
  if (it == nodes_.end()) return;  // the driver knows that its node is lost
  Node& node = it->second;
  node_of_[start.process] = start.node;
  Status status = launcher_.add_process(start.process, node.host, start.node);
  if (status.ok()) {
    status = node.runner->StartProcess(start.process, start.slot);
  }
  if (status.ok()) return;
  if (driver_.fixed()) {
    Stop();
    return launcher_.fail(status.message());
  }
  launcher_.say(status.message());
  launcher_.lose_process(start.process);
  OnProcessEnd(start.process, kNotStarted, now);
}

void ElasticJob::Do(const ElasticDriver::SignalProcess& signal, Time) {
  const auto it = node_of_.find(signal.process);
  if (it == node_of_.end()) return;
  nodes_.at(it->second).runner->SignalProcess(signal.process, signal.signal);
}

}  // namespace maypole::launcher
