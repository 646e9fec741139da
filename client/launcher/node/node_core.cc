#include "client/launcher/node/node_core.h"

#include <algorithm>
#include <utility>

namespace maypole::launcher {

void NodeCore::OnDaemonStart(const std::string& name, pid_t pid) {
  if (Daemon* const before = Get(name)) {
    *before = {.name = name,
               .pid = pid,
               .announcement = std::move(before->announcement)};
  } else {
    daemons_.push_back({.name = name, .pid = pid});
  }
}

const NodeCore::Daemon* NodeCore::Find(const std::string& name) const {
  auto it = std::find_if(daemons_.begin(), daemons_.end(),
                         [&](const Daemon& d) { return d.name == name; });
  return it == daemons_.end() ? nullptr : &*it;
}

NodeCore::Daemon* NodeCore::Get(const std::string& name) {
  return const_cast<Daemon*>(Find(name));
}

std::vector<JoinedRank> NodeCore::OnAnnounce(const std::string& name,
                                             std::string_view bytes) {
  Daemon* d = Get(name);
  std::vector<JoinedRank> joined;
  // A daemon that sends no complete line is reported when it ends, or as not
  // ready at the timeout.
  if (d->announced.size() >= kMaxAnnouncementBytes) return joined;
  d->announced += bytes;
  for (size_t end; (end = d->announced.find('\n')) != std::string::npos;) {
    const std::string line = d->announced.substr(0, end);
    d->announced.erase(0, end + 1);
    if (!d->ready) {
      d->announcement = ParseAnnouncement(line);
      d->ready = true;
    } else if (auto rank = ParseJoinedRank(line)) {
      joined.push_back(std::move(*rank));
    }
  }
  return joined;
}

void NodeCore::OnLog(const std::string& name) { Get(name)->wrote = true; }

std::string NodeCore::OnDaemonEnd(const std::string& name, const Exit& exit) {
  Daemon* d = Get(name);
  d->ended = true;
  if (d->asked) return "";
  return name + " (pid " + std::to_string(d->pid) + ") " + Describe(exit) +
         (d->ready ? "" : " before it was ready") +
         (d->wrote ? "; its last lines begin with [" + name + "]"
                   : " and wrote nothing");
}

void NodeCore::AskToEnd(const std::string& name) { Get(name)->asked = true; }

bool NodeCore::all_ready() const {
  return std::all_of(daemons_.begin(), daemons_.end(),
                     [](const Daemon& d) { return d.ready; });
}

std::vector<std::string> NodeCore::not_ready() const {
  std::vector<std::string> names;
  for (const Daemon& d : daemons_) {
    if (!d.ready) {
      names.push_back(d.name + " (pid " + std::to_string(d.pid) + ")");
    }
  }
  return names;
}

bool NodeCore::agents_ended() const {
  return std::all_of(daemons_.begin(), daemons_.end(), [](const Daemon& d) {
    return d.ended || d.name == kCoordinatorName;
  });
}

bool NodeCore::daemons_ended() const {
  return std::all_of(daemons_.begin(), daemons_.end(),
                     [](const Daemon& d) { return d.ended; });
}

std::vector<std::string> NodeCore::Summary() const {
  std::vector<std::string> lines;
  for (const Daemon& d : daemons_) {
    const Announcement& a = d.announcement;
    lines.push_back(d.name + " pid=" + std::to_string(d.pid) +
                    (a.listen.empty() ? "" : " listen=" + a.listen) +
                    (a.socket.empty() ? "" : " socket=" + a.socket) +
                    (a.metrics.empty() ? "" : " metrics=" + a.metrics));
  }
  return lines;
}

NodeCore::Step NodeCore::Enter(Phase phase, Time now, Step step) {
  phase_ = phase;
  entered_ = now;
  return step;
}

NodeCore::Step NodeCore::BeginEnd(Time now) {
  if (phase_ != Phase::kRunning) return Step::kNothing;
  return Enter(Phase::kDraining, now, Step::kKillRanks);
}

std::optional<Time> NodeCore::deadline() const {
  if (phase_ == Phase::kDraining) return entered_ + Within(kDrainLimit);
  if (phase_ == Phase::kStopping) return entered_ + Within(kAgentLimit);
  if (phase_ == Phase::kLast) return entered_ + Within(kCoordinatorLimit);
  return std::nullopt;
}

NodeCore::Step NodeCore::ContinueEnd(Time now, bool output_ended,
                                     bool others_ended) {
  const bool late = deadline() && now >= *deadline();
  if (phase_ == Phase::kDraining && (output_ended || late)) {
    for (Daemon& d : daemons_) d.asked = true;
    return Enter(Phase::kStopping, now, Step::kStopAgents);
  }
  if (phase_ == Phase::kStopping &&
      ((agents_ended() && others_ended) || late)) {
    return Enter(Phase::kLast, now, Step::kStopCoordinator);
  }
  if (phase_ == Phase::kLast && (daemons_ended() || late)) {
    // Also kills executors that a killed agent has left behind.
    return Enter(Phase::kEnded, now, Step::kKillAll);
  }
  return Step::kNothing;
}

}  // namespace maypole::launcher
