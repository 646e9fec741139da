#include "tests/simulation/parts/launcher.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

// Longer than a node's start takes.
constexpr std::chrono::seconds kStartLimit{60};
// From an event until the job acts.
constexpr int64_t kLongestRound = kSecond;

int64_t Ns(std::chrono::nanoseconds t) { return t.count(); }

}  // namespace

// A node whose start, and whose loss, are the world's.
class Launcher::Node : public launcher::ElasticNode {
 public:
  Node(Launcher* owner, int number) : owner_(owner), number_(number) {}

  bool Ready() override { return owner_->ready_.contains(number_); }
  std::string Standing() const override { return "not ready"; }
  void GiveUp(const std::string&) override {
    owner_->stage_->Found("maypolerun gives up node ", number_);
  }
  Status StartProcess(int process, int slot) override {
    owner_->StartProcess({process, number_, slot});
    return Status();
  }
  void SignalProcess(int process, int signal) override {
    if (!owner_->lost_.contains(number_)) owner_->Signal(process, signal);
  }
  void Stop() override {
    if (owner_->lost_.erase(number_) > 0) return owner_->NoteLoss(number_);
    owner_->StopNode(number_);
  }

 private:
  Launcher* const owner_;
  const int number_;
};

Launcher::Launcher(Stage* stage, const Driver::Settings& settings, Hands hands)
    : stage_(stage),
      settings_(settings),
      hands_(std::move(hands)),
      job_(settings, MakeLauncher()),
      timer_(&stage->scheduler, [this] { Continue(); }),
      last_enough_(stage->scheduler.now()) {}

launcher::ElasticJob::Launcher Launcher::MakeLauncher() {
  return {.start_node = [this](int number, const launcher::Host& host)
              -> std::unique_ptr<launcher::ElasticNode> {
            return StartNode(number, host);
          },
          .start_limit = kStartLimit,
          .add_process = [this](int number, const launcher::Host&,
                                int node) { return AddProcess(number, node); },
          .lose_process =
              [this](int number) {
                if (added_.contains(number)) return;
                stage_->Found("maypolerun loses process ", number,
                              ", which it has not added");
              },
          .say =
              [this](const std::string& line) {
                stage_->Trace("maypolerun: ", line);
              },
          .fail = [this](const std::string& why) { EndBadly(why); }};
}

launcher::Time Launcher::Now() const {
  return launcher::Time(std::chrono::nanoseconds(stage_->scheduler.now()));
}

void Launcher::AskForTime() {
  const std::optional<launcher::Time> deadline = job_.deadline();
  if (!deadline) return;
  const auto ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Now());
  timer_.Ask(std::max<int64_t>(0, ns.count()) + stage_->SoonDelay(),
             stage_->Forever());
}

// --- Events ------------------------------------------------------------------

// maypolerun acts when it has taken all events that are there: usually one.
void Launcher::NoteEvent() {
  if (events_++ > 0) return;
  const bool busy = stage_->random.OneIn(4);
  timer_.Ask(busy ? stage_->random.Magnitude(kMicrosecond, kLongestRound) : 0,
             stage_->Forever());
}

void Launcher::OnHosts(const std::vector<launcher::HostSlots>& hosts) {
  std::map<std::string, Host> before = hosts_;
  for (auto& [name, host] : hosts_) host.listed = false;
  bool changed = false;
  bool unused = false;  // hosts are not listed any more that may have no node
  std::vector<launcher::Host> listed;
  for (const launcher::HostSlots& h : hosts) {
    const bool is_new = !hosts_.contains(h.name);
    Host& host = hosts_[h.name];
    changed |= is_new || !before[h.name].listed || host.slots != h.slots;
    host.slots = h.slots;
    host.listed = true;
    listed.push_back({.name = h.name, .slots = h.slots});
  }
  for (const auto& [name, host] : before) {
    if (!host.listed || hosts_[name].listed) continue;
    (host.node >= 0 ? changed : unused) = true;
    hosts_[name].leaving = host.node >= 0;
  }
  if (changed && begun_) {
    NoteChange();
  } else if ((changed || unused) && !ready_.empty()) {
    ++unsure_changes_;
  }
  NoteSize();
  for (auto& [number, process] : processes_) {
    const Host& host = hosts_.at(process.host);
    const bool stays = host.listed && process.slot < host.slots;
    if (!stays && process.asked_at < 0)
      process.asked_at = stage_->scheduler.now();
  }
  NoteEvent();
  job_.OnHosts(listed, Now());
}

void Launcher::OnNodeReady(int node) {
  if (Host* const host = HostOf(node)) host->ready = true;
  ready_.insert(node);
  NoteEvent();
}

void Launcher::OnNodeLost(int node, const std::string& why) {
  if (HostOf(node) == nullptr) return;
  lost_[node] = why;
  NoteEvent();
  job_.OnNodeLost(node, why);
}

void Launcher::OnProcessEnd(int number, const launcher::Exit& exit) {
  const auto it = processes_.find(number);
  if (it == processes_.end()) return;  // with its node
  const Running process = it->second;
  NoteSize();
  processes_.erase(it);
  if (!finishing() && !exit.clean() && process.asked_at < 0) {
    NoteFailure(process.host);
  }
  NoteEvent();
  job_.OnProcessEnd(number, exit, Now());
}

void Launcher::Continue() {
  job_.Continue(Now());
  events_ = 0;
  if (settings_.reset_limit >= 0 && changes_ > settings_.reset_limit &&
      !over() && !finishing()) {
    stage_->Found("maypolerun goes on after ", changes_,
                  " changes; --reset-limit is ", settings_.reset_limit);
  }
  AskForTime();
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

// --- Acts --------------------------------------------------------------------

std::unique_ptr<launcher::ElasticNode> Launcher::StartNode(
    int number, const launcher::Host& h) {
  Host& host = hosts_[h.name];
  const bool early = stage_->scheduler.now() < host.cool_until;
  if (host.node >= 0 || !nodes_.emplace(number, h.name).second ||
      (events_ < 2 && (!host.listed || early))) {
    stage_->Found("maypolerun starts node ", number, " on host ", h.name,
                  ", which is not there to be used");
  }
  host.node = number;
  host.ready = false;
  hands_.start_node({number, h.name});
  return std::make_unique<Node>(this, number);
}

void Launcher::StopNode(int number) {
  Host* const host = HostOf(number);
  if (host == nullptr) {
    stage_->Found("maypolerun stops node ", number, ", which is not there");
    return;
  }
  host->node = -1;
  host->ready = host->leaving = false;
  hands_.stop_node(number);
}

void Launcher::NoteLoss(int number) {
  Host* const host = HostOf(number);
  const std::string name = nodes_.at(number);
  std::erase_if(processes_,
                [&](const auto& p) { return p.second.host == name; });
  host->node = -1;
  host->ready = false;
  if (!finishing() && !std::exchange(host->leaving, false)) NoteFailure(name);
}

Status Launcher::AddProcess(int number, int node) {
  if (!added_.insert(number).second) {
    stage_->Found("maypolerun adds process ", number, " twice");
  }
  if (HostOf(node) == nullptr) {
    stage_->Found("maypolerun adds process ", number, " on node ", node,
                  ", which is not there");
  }
  return Status();
}

void Launcher::StartProcess(const Driver::StartProcess& start) {
  const std::string who =
      absl::StrCat("process ", start.process, ", which ", "maypolerun starts");
  Host* const host = HostOf(start.node);
  if (host == nullptr || !host->ready || (events_ < 2 && !host->listed)) {
    stage_->Found(who, ", is on node ", start.node, ", which is not ready");
    return;
  }
  const std::string& name = nodes_.at(start.node);
  for (const auto& [number, process] : processes_) {
    if (process.host != name || process.slot != start.slot) continue;
    stage_->Found(who, ", is in the slot of process ", number);
  }
  if (events_ < 2 && start.slot >= host->slots) {
    stage_->Found(who, ", is in slot ", start.slot, " of ", host->slots);
  }
  if (events_ < 2 && stage_->scheduler.now() < host->cool_until) {
    stage_->Found(who, ", is on host ", name, ", which has just failed");
  }
  if (running() >= settings_.max_size) {
    stage_->Found(who, ", is one more than the most");
  }
  if (events_ < 2 && (finishing() || over())) {
    stage_->Found(who, ", comes too late");
  }
  begun_ = true;
  processes_[start.process] = {.host = name, .slot = start.slot};
  NoteSize();
  ++stage_->counts.processes_started;
  hands_.start_process(start);
}

void Launcher::Signal(int number, int signal) {
  const auto it = processes_.find(number);
  if (it == processes_.end()) {
    stage_->Found("maypolerun signals process ", number,
                  ", which is not there");
    return;
  }
  Running& process = it->second;
  const int64_t now = stage_->scheduler.now();
  if (signal == SIGTERM) {
    if (process.asked_at < 0 && events_ < 2 && !finishing()) {
      stage_->Found("maypolerun asks process ", number,
                    " to leave, whose slot is there");
    }
    NoteSize();
    if (process.asked_at < 0) process.asked_at = now;
  } else if (process.asked_at < 0 ||
             now + kLongestRound <
                 process.asked_at + Ns(launcher::kLeaveGrace)) {
    stage_->Found("maypolerun kills process ", number, " too early");
  }
  hands_.signal(number, signal);
}

void Launcher::EndBadly(const std::string& why) {
  stage_->Trace("maypolerun ends the job: ", why);
  NoteSize();
  const bool resets = absl::StrContains(why, "--reset-limit");
  const bool hopeless = absl::StrContains(why, "on every host");
  const bool too_few = absl::StrContains(why, "--elastic-timeout");
  const bool true_reason =
      (resets && settings_.reset_limit >= 0 &&
       changes_ + unsure_changes_ > settings_.reset_limit) ||
      (hopeless && HasFailedOftenEverywhere()) ||
      (too_few &&
       stage_->scheduler.now() >= last_enough_ + Ns(settings_.patience)) ||
      absl::StrContains(why, "its processes had not finished");
  if (!true_reason) {
    stage_->Found("maypolerun ends the job without that reason: ", why);
  }
  hands_.end_badly(why);
}

}  // namespace maypole::simulation
