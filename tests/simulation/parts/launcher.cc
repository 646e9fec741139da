#include "tests/simulation/parts/launcher.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

int64_t Ns(std::chrono::nanoseconds t) { return t.count(); }

}  // namespace

Launcher::Launcher(Stage* stage, const Driver::Settings& settings, Hands hands)
    : stage_(stage),
      settings_(settings),
      hands_(std::move(hands)),
      driver_(settings),
      timer_(&stage->scheduler, [this] { Take(driver_.OnTime(Now())); }),
      last_enough_(stage->scheduler.now()) {}

launcher::Time Launcher::Now() const {
  return launcher::Time(std::chrono::nanoseconds(stage_->scheduler.now()));
}

void Launcher::AskForTime() {
  const std::optional<launcher::Time> deadline = driver_.deadline();
  if (!deadline) return;
  const auto ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Now());
  timer_.Ask(std::max<int64_t>(0, ns.count()) + stage_->SoonDelay(),
             stage_->Forever());
}

// --- Events ------------------------------------------------------------------

void Launcher::OnHosts(const std::vector<launcher::HostSlots>& hosts) {
  std::map<std::string, Host> before = hosts_;
  for (auto& [name, host] : hosts_) host.listed = false;
  bool changed = false;
  for (const launcher::HostSlots& h : hosts) {
    const bool is_new = !hosts_.contains(h.name);
    Host& host = hosts_[h.name];
    changed |= is_new || !before[h.name].listed || host.slots != h.slots;
    host.slots = h.slots;
    host.listed = true;
  }
  for (const auto& [name, host] : before) {
    if (!host.listed || hosts_[name].listed) continue;
    changed |= host.node >= 0;
    hosts_[name].leaving = host.node >= 0;
  }
  if (changed && begun_) NoteChange();
  Take(driver_.OnHosts(hosts, Now()));
}

void Launcher::OnNodeReady(int node) {
  if (Host* const host = HostOf(node)) host->ready = true;
  Take(driver_.OnNodeReady(node, Now()));
}

void Launcher::OnNodeLost(int node, const std::string& why) {
  Host* const host = HostOf(node);
  if (host == nullptr) return;
  const std::string name = nodes_.at(node);
  std::erase_if(processes_,
                [&](const auto& p) { return p.second.host == name; });
  host->node = -1;
  host->ready = false;
  if (!driver_.finishing() && !std::exchange(host->leaving, false)) {
    NoteFailure(name);
  }
  Take(driver_.OnNodeLost(node, why, Now()));
}

void Launcher::OnProcessEnd(int number, const launcher::Exit& exit) {
  const auto it = processes_.find(number);
  if (it == processes_.end()) return;  // with its node
  const Running process = it->second;
  NoteSize();
  processes_.erase(it);
  if (!driver_.finishing() && !exit.clean() && process.asked_at < 0) {
    NoteFailure(process.host);
  }
  bool failed = false;
  Take(driver_.OnProcessEnd(number, exit, Now(), &failed));
}

// --- The account -------------------------------------------------------------

Launcher::Host* Launcher::HostOf(int node) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) return nullptr;
  Host& host = hosts_.at(it->second);
  return host.node == node ? &host : nullptr;
}

void Launcher::NoteFailure(const std::string& name) {
  Host& host = hosts_.at(name);
  ++host.failures;
  host.cool_until = stage_->scheduler.now() + Ns(settings_.shortest_cooldown);
  NoteChange();
}

void Launcher::NoteChange() { ++changes_; }

void Launcher::NoteSize() {
  const auto staying =
      std::count_if(processes_.begin(), processes_.end(),
                    [](const auto& p) { return p.second.asked_at < 0; });
  if (staying >= settings_.min_size) last_enough_ = stage_->scheduler.now();
}

bool Launcher::HasFailedOftenEverywhere() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& h) {
    return !h.second.listed || h.second.failures >= launcher::kHopeless;
  });
}

// --- Actions -----------------------------------------------------------------

void Launcher::Take(Driver::Actions actions) {
  for (const Driver::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
  if (settings_.reset_limit >= 0 && changes_ > settings_.reset_limit &&
      !driver_.over() && !driver_.finishing()) {
    stage_->Found("maypolerun goes on after ", changes_,
                  " changes; --reset-limit is ", settings_.reset_limit);
  }
  AskForTime();
}

void Launcher::Do(const Driver::StartNode& start) {
  Host& host = hosts_[start.host];
  if (!host.listed || host.node >= 0 ||
      !nodes_.emplace(start.node, start.host).second ||
      stage_->scheduler.now() < host.cool_until) {
    stage_->Found("maypolerun starts node ", start.node, " on host ",
                  start.host, ", which is not there to be used");
  }
  host.node = start.node;
  host.ready = false;
  hands_.start_node(start);
}

void Launcher::Do(const Driver::StopNode& stop) {
  Host* const host = HostOf(stop.node);
  if (host == nullptr) {
    stage_->Found("maypolerun stops node ", stop.node, ", which is not there");
    return;
  }
  host->node = -1;
  host->ready = host->leaving = false;
  hands_.stop_node(stop.node);
}

void Launcher::Do(const Driver::StartProcess& start) {
  const std::string who =
      absl::StrCat("process ", start.process, ", which ", "maypolerun starts");
  Host* const host = HostOf(start.node);
  if (host == nullptr || !host->ready || !host->listed) {
    stage_->Found(who, ", is on node ", start.node, ", which is not ready");
    return;
  }
  const std::string& name = nodes_.at(start.node);
  for (const auto& [number, process] : processes_) {
    if (process.host != name || process.slot != start.slot) continue;
    stage_->Found(who, ", is in the slot of process ", number);
  }
  if (start.slot >= host->slots) {
    stage_->Found(who, ", is in slot ", start.slot, " of ", host->slots);
  }
  if (stage_->scheduler.now() < host->cool_until) {
    stage_->Found(who, ", is on host ", name, ", which has just failed");
  }
  if (running() >= settings_.max_size) {
    stage_->Found(who, ", is one more than the most");
  }
  if (driver_.finishing() || driver_.over()) {
    stage_->Found(who, ", comes too late");
  }
  begun_ = true;
  processes_[start.process] = {.host = name, .slot = start.slot};
  NoteSize();
  ++stage_->counts.processes_started;
  hands_.start_process(start);
}

void Launcher::Do(const Driver::SignalProcess& signal) {
  const auto it = processes_.find(signal.process);
  if (it == processes_.end()) {
    stage_->Found("maypolerun signals process ", signal.process,
                  ", which is not there");
    return;
  }
  Running& process = it->second;
  const Host& host = hosts_.at(process.host);
  const int64_t now = stage_->scheduler.now();
  if (signal.signal == SIGTERM) {
    if (host.listed && process.slot < host.slots && !driver_.finishing()) {
      stage_->Found("maypolerun asks process ", signal.process,
                    " to leave, whose slot is there");
    }
    NoteSize();
    process.asked_at = now;
  } else if (process.asked_at < 0 ||
             now < process.asked_at + Ns(launcher::kLeaveGrace)) {
    stage_->Found("maypolerun kills process ", signal.process, " too early");
  }
  hands_.signal(signal.process, signal.signal);
}

void Launcher::Do(const Driver::Tell& tell) {
  stage_->Trace("maypolerun: ", tell.line);
}

void Launcher::Do(const Driver::EndBadly& end) {
  stage_->Trace("maypolerun ends the job: ", end.why);
  NoteSize();
  const bool resets = absl::StrContains(end.why, "--reset-limit");
  const bool hopeless = absl::StrContains(end.why, "on every host");
  const bool too_few = absl::StrContains(end.why, "--elastic-timeout");
  const bool true_reason =
      (resets && settings_.reset_limit >= 0 &&
       changes_ > settings_.reset_limit) ||
      (hopeless && HasFailedOftenEverywhere()) ||
      (too_few &&
       stage_->scheduler.now() >= last_enough_ + Ns(settings_.patience)) ||
      absl::StrContains(end.why, "its processes had not finished");
  if (!true_reason) {
    stage_->Found("maypolerun ends the job without that reason: ", end.why);
  }
  hands_.end_badly(end.why);
}

}  // namespace maypole::simulation
