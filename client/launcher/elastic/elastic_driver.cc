#include "client/launcher/elastic/elastic_driver.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

std::string Seconds(milliseconds t) {
  std::string text = std::to_string(t.count() / 1000);
  if (const auto rest = t.count() % 1000; rest != 0) {
    text += "." + std::to_string(1000 + rest).substr(1);
    text.erase(text.find_last_not_of('0') + 1);
  }
  return text + " s";
}

}  // namespace

// --- Events ------------------------------------------------------------------

ElasticDriver::Actions ElasticDriver::OnHosts(
    const std::vector<HostSlots>& hosts, Time now) {
  std::map<std::string, int> listed;
  for (const HostSlots& h : hosts) listed[h.name] = h.slots;
  bool changed = false;
  for (const HostSlots& h : hosts) {
    const auto [it, added] = hosts_.try_emplace(h.name);
    HostState& host = it->second;
    if (added) {
      order_.push_back(h.name);
      host.state = State::kWanted;
    }
    changed |= added || !host.listed || host.slots != h.slots;
    host.slots = h.slots;
    host.listed = true;
    RequestLeave(h.name, h.slots, now);
  }
  for (auto& [name, host] : hosts_) {
    if (!host.listed || listed.contains(name)) continue;
    changed |= host.node >= 0;
    Leave(name, &host, now);
  }
  if (changed && begun_) CountChange("the list of hosts has changed");
  return Decide(now);
}

ElasticDriver::Actions ElasticDriver::OnNodeReady(int node, Time now) {
  std::string name;
  HostState* const host = HostOf(node, &name);
  if (host == nullptr || host->state != State::kStarting) return {};
  host->state = State::kReady;
  return Decide(now);
}

ElasticDriver::Actions ElasticDriver::OnNodeLost(int node,
                                                 const std::string& why,
                                                 Time now) {
  std::string name;
  HostState* const host = HostOf(node, &name);
  if (host == nullptr) return {};
  bool unfinished = false;
  std::erase_if(processes_, [&](const auto& p) {
    if (p.second.host != name) return false;
    unfinished |= !p.second.leave_requested;
    return true;
  });
  host->node = -1;
  if (settings_.fixed) {
    actions_.emplace_back(Tell{name + ": " + why});
    if (!begun_) End("the job was not started");
  } else if (finishing()) {
    if (unfinished) {
      End("host " + name + ": " + why + "; its processes had not finished");
    }
  } else if (host->state == State::kLeaving) {
    host->state = WithoutNode(*host, now);
  } else {
    outside_cause_ = true;
    Fail(name, host, now - host->started < kShortLife,
         "host " + name + ": " + why, now);
  }
  return Decide(now);
}

ElasticDriver::Actions ElasticDriver::OnProcessEnd(int number, const Exit& exit,
                                                   const std::string& how,
                                                   Time now, bool* failed) {
  *failed = false;
  const auto it = processes_.find(number);
  if (it == processes_.end()) return {};
  const Process process = it->second;
  processes_.erase(it);
  if (process.leave_requested) {
    if (exit.finished && !finishing()) {
      finished_at_ = now;
      // The remaining processes decide.
      *failed = !exit.clean() && processes_.empty();
    }
  } else if (settings_.fixed) {
    *failed = !exit.clean();
  } else if (finishing()) {
    const bool stopped = finish_requested_ && exit.by_sigterm();
    // With the exit code of one that leaves at a commit it was still training.
    const bool unfinished = stopped && !exit.signaled;
    if (unfinished) {
      actions_.emplace_back(
          Tell{"process " + std::to_string(number) + " (host " + process.host +
               ") was still training " + Seconds(kFinishGrace) +
               " after another process had trained to the end, and was "
               "stopped: not all ranks have ended their training at the same "
               "step (let them agree when to return or to call sys.exit(0)), "
               "or a rank was lost in the last step"});
    }
    *failed = !exit.clean() && (!stopped || unfinished);
  } else if (exit.clean() || exit.finished) {
    finished_at_ = now;
    *failed = !exit.clean();
  } else {
    // These signals come from outside and say nothing about the program.
    const bool killed =
        (exit.signaled && exit.value == SIGKILL) || exit.by_sigterm();
    outside_cause_ |= killed;
    Fail(process.host, &hosts_.at(process.host),
         !killed && now - process.started < kShortLife,
         "process " + std::to_string(number) + " (host " + process.host + ") " +
             how,
         now);
    *failed = over_;
  }
  return Decide(now);
}

ElasticDriver::Actions ElasticDriver::OnJobLost(const std::string& why) {
  End(why);
  return std::exchange(actions_, {});
}

ElasticDriver::Actions ElasticDriver::OnTime(Time now) { return Decide(now); }

std::optional<Time> ElasticDriver::deadline() const {
  std::optional<Time> first;
  if (over_) return first;
  const auto add = [&](Time t) { first = Earlier(first, t); };
  for (const auto& [number, process] : processes_) {
    if (process.leave_requested) add(*process.leave_requested + kLeaveGrace);
  }
  if (finishing()) {
    if (!finish_requested_) add(*finished_at_ + kFinishGrace);
    return first;
  }
  for (const auto& [name, host] : hosts_) {
    if (host.state == State::kCooling) add(host.cool_until);
  }
  if (too_few_since_) add(*too_few_since_ + settings_.patience);
  return first;
}

// --- Hosts -------------------------------------------------------------------

ElasticDriver::HostState* ElasticDriver::HostOf(int node, std::string* name) {
  for (auto& [n, host] : hosts_) {
    if (host.node != node || node < 0) continue;
    *name = n;
    return &host;
  }
  return nullptr;
}

milliseconds ElasticDriver::Cooldown(int failures) const {
  milliseconds cooldown = settings_.shortest_cooldown;
  for (int i = 1; i < failures && cooldown < settings_.longest_cooldown; ++i) {
    cooldown *= 2;
  }
  return std::min(cooldown, settings_.longest_cooldown);
}

void ElasticDriver::Fail(const std::string& name, HostState* host,
                         bool short_life, const std::string& what, Time now) {
  if (host->failed_at && now - *host->failed_at > kForgetAfter) {
    host->failures = host->short_failures = 0;
  }
  host->failed_at = now;
  if (host->state != State::kCooling) {
    ++host->failures;
    host->short_failures = short_life ? host->short_failures + 1 : 0;
  }
  CountChange(what);
  if (over_) return;
  CheckHope(what, now);
  if (over_ || host->state == State::kLeaving) return;
  const milliseconds cooldown = Cooldown(host->failures);
  host->cool_until = now + cooldown;
  host->state = State::kCooling;
  actions_.emplace_back(Tell{what + "; the job goes on, and host " + name +
                             " gets a new process in " + Seconds(cooldown)});
}

// A host that flaps may come back before its cool-down is over.
ElasticDriver::State ElasticDriver::WithoutNode(const HostState& host,
                                                Time now) {
  return now < host.cool_until ? State::kCooling : State::kWanted;
}

void ElasticDriver::Leave(const std::string& name, HostState* host, Time now) {
  host->listed = false;
  if (host->node < 0 || host->state == State::kLeaving) return;
  host->state = State::kLeaving;
  actions_.emplace_back(Tell{"host " + name +
                             " is not listed any more: its processes leave at "
                             "their next commit, or are killed after " +
                             Seconds(kLeaveGrace)});
  RequestLeave(name, 0, now);
}

void ElasticDriver::RequestLeave(const std::string& name, int slot, Time now) {
  for (auto& [number, process] : processes_) {
    if (process.host != name || process.slot < slot) continue;
    if (process.leave_requested) continue;
    process.leave_requested = now;
    actions_.emplace_back(SignalProcess{number, SIGTERM});
  }
}

void ElasticDriver::KillLate(Time now) {
  for (auto& [number, process] : processes_) {
    if (!process.leave_requested) continue;
    if (now - *process.leave_requested < kLeaveGrace) continue;
    process.leave_requested = now;  // once more, if it does not end
    actions_.emplace_back(SignalProcess{number, SIGKILL});
  }
}

void ElasticDriver::CountChange(const std::string& what) {
  ++changes_;
  if (settings_.reset_limit < 0 || changes_ <= settings_.reset_limit) return;
  End(what + "; that is change " + std::to_string(changes_) +
      " of the job's processes, and " + settings_.reset_limit_name + " is " +
      std::to_string(settings_.reset_limit));
}

// Otherwise a program that cannot work would be restarted forever.
void ElasticDriver::CheckHope(const std::string& what, Time now) {
  const std::string times = std::to_string(kHopeless) + " times";
  if (EachHostIsHopeless()) {
    End(what + "; processes have failed " + times +
        " on every host, each time within " + Seconds(kShortLife) +
        " of their start");
  } else if (HasFailedAsAWhole(now)) {
    End(what + "; all processes have failed " + times +
        " in a row, each time within " + Seconds(kForgetAfter) +
        " of the time before");
  }
}

bool ElasticDriver::EachHostIsHopeless() const {
  bool any = false;
  for (const auto& [name, host] : hosts_) {
    if (!host.listed) continue;
    if (host.short_failures < kHopeless) return false;
    any = true;
  }
  return any;
}

bool ElasticDriver::HasFailedAsAWhole(Time now) {
  if (!processes_.empty() || std::exchange(outside_cause_, false)) return false;
  if (now - whole_failure_at_ > kForgetAfter) whole_failures_ = 0;
  whole_failure_at_ = now;
  return ++whole_failures_ >= kHopeless;
}

bool ElasticDriver::Uses(const std::string& host) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const auto& p) { return p.second.host == host; });
}

// --- Processes ---------------------------------------------------------------

// The slots where processes run or could be started at once.
int ElasticDriver::Slots() const {
  int slots = 0;
  for (const auto& [name, host] : hosts_) {
    if (host.state == State::kReady) slots += host.slots;
  }
  for (const auto& [number, process] : processes_) {
    if (hosts_.at(process.host).state != State::kReady) ++slots;
  }
  return slots;
}

void ElasticDriver::FillSlots(Time now) {
  if (!begun_ && Slots() < settings_.first_size) return;
  begun_ = true;
  for (const std::string& name : order_) {
    HostState& host = hosts_.at(name);
    if (host.state == State::kReady) FillHost(name, &host, now);
  }
}

void ElasticDriver::FillHost(const std::string& name, HostState* host,
                             Time now) {
  std::set<int> taken;
  for (const auto& [number, process] : processes_) {
    if (process.host == name) taken.insert(process.slot);
  }
  for (int slot = 0; slot < host->slots; ++slot) {
    if (running() >= settings_.max_size) return;
    if (taken.contains(slot)) continue;
    const int number = ++last_process_;
    processes_[number] = {.host = name, .slot = slot, .started = now};
    host->started = now;
    actions_.emplace_back(StartProcess{number, host->node, slot});
  }
}

void ElasticDriver::CheckSize(Time now) {
  if (settings_.fixed) return;  // the caller limits the start
  const int least = begun_ ? settings_.min_size : settings_.first_size;
  if (Slots() >= least) {
    too_few_since_.reset();
    return;
  }
  if (!too_few_since_) too_few_since_ = now;
  if (now - *too_few_since_ < settings_.patience) return;
  End("only " + std::to_string(Slots()) + " of at least " +
      std::to_string(least) + " processes could run for " +
      Seconds(settings_.patience) + " (" + settings_.patience_name + ")");
}

void ElasticDriver::SettleHost(const std::string& name, HostState* host,
                               Time now) {
  if (host->state == State::kCooling && now >= host->cool_until) {
    host->state = host->node < 0 ? State::kWanted : State::kReady;
  }
  if (host->state == State::kLeaving && !Uses(name)) {
    actions_.emplace_back(StopNode{std::exchange(host->node, -1)});
    host->state = WithoutNode(*host, now);
  }
  if (host->state == State::kWanted && host->listed) {
    host->node = ++last_node_;
    host->started = now;
    actions_.emplace_back(StartNode{host->node, name});
    host->state = State::kStarting;
  }
}

void ElasticDriver::FinishOthers(Time now) {
  if (finish_requested_ || now - *finished_at_ < kFinishGrace) return;
  finish_requested_ = true;
  for (const auto& [number, process] : processes_) {
    if (process.leave_requested) continue;
    actions_.emplace_back(SignalProcess{number, SIGTERM});
  }
}

ElasticDriver::Actions ElasticDriver::Decide(Time now) {
  if (over_ || filled()) return std::exchange(actions_, {});
  KillLate(now);
  if (finishing()) {
    FinishOthers(now);
  } else {
    for (const std::string& name : order_) {
      SettleHost(name, &hosts_.at(name), now);
    }
    FillSlots(now);
    CheckSize(now);
  }
  return std::exchange(actions_, {});
}

void ElasticDriver::End(const std::string& why) {
  if (std::exchange(over_, true)) return;
  actions_.emplace_back(EndBadly{why});
}

}  // namespace maypole::launcher
