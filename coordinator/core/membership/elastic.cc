#include "coordinator/core/membership/elastic.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

std::string CountText(size_t n) {
  return absl::StrCat(n, n == 1 ? " rank" : " ranks");
}

std::string TermsText(uint32_t min_size, uint32_t max_size) {
  return absl::StrCat(min_size, " to ", max_size, " ranks");
}

}  // namespace

// --- Who waits ---------------------------------------------------------------

absl::Status Elastic::CheckSizes(const NodeMember& node,
                                 const proto::RanksReady& ready) {
  const std::string who = node.Text();
  if (!active()) {
    min_size_ = ready.min_size();
    max_size_ = ready.max_size();
    first_ = who;
  } else if (ready.min_size() != min_size_ || ready.max_size() != max_size_) {
    return InvalidArgument(
        "the job cannot take the ranks of ", who, ": they say that it has ",
        TermsText(ready.min_size(), ready.max_size()), ", those of ", first_,
        " have said ", TermsText(min_size_, max_size_),
        "; start all ranks with the same smallest and greatest number");
  }
  return absl::OkStatus();
}

absl::Status Elastic::CheckVersion(const NodeMember& node) const {
  std::vector<const NodeMember*> nodes = {&node};
  for (const auto& [session, other] : nodes_) {
    if (session == node.session || other.processes.empty()) continue;
    nodes.push_back(&other.member);
  }
  const absl::Status s = CheckVersions(nodes);
  if (s.ok()) return s;
  return absl::Status(
      s.code(), absl::StrCat("the job cannot take the ranks of ", node.Text(),
                             ": ", s.message()));
}

absl::Status Elastic::SetWaiting(Time now, NodeMember node,
                                 const proto::RanksReady& ready) {
  const SessionId session = node.session;
  Node next;
  node.Read(ready);
  absl::Status status;
  if (!ready.members().empty()) status = CheckSizes(node, ready);
  if (!ready.members().empty() && status.ok()) status = CheckVersion(node);
  if (status.ok()) {
    static const std::vector<Process> kNobody;
    const auto it = nodes_.find(session);
    const auto& before = it == nodes_.end() ? kNobody : it->second.processes;
    for (int i = 0; i < ready.members_size(); ++i) {
      next.processes.push_back(MakeProcess(now, node, ready, i, before));
    }
  }
  next.member = std::move(node);
  Replace(session, std::move(next));
  return status;
}

Elastic::Process Elastic::MakeProcess(Time now, const NodeMember& node,
                                      const proto::RanksReady& ready, int i,
                                      const std::vector<Process>& before) {
  const proto::ElasticMember& said = ready.members(i);
  for (const Process& p : before) {
    if (p.client == said.client()) return p;
  }
  Process p;
  p.client = said.client();
  p.said_epoch = said.epoch();
  p.said_rank = said.rank();
  p.pid = said.pid();
  if (!ready.fusion_thresholds().empty()) {
    p.fusion_threshold = ready.fusion_thresholds(i);
  }
  p.arrival = ++arrivals_;
  p.since = now;
  TakeSeat(node, &p);
  // The same connection continues to wait after a failed start.
  if (p.seat && seats_[*p.seat].session == node.session &&
      seats_[*p.seat].process.client == p.client) {
    p.arrival = seats_[*p.seat].process.arrival;
    p.since = seats_[*p.seat].process.since;
  }
  return p;
}

void Elastic::TakeSeat(const NodeMember& node, Process* process) {
  process->seat = FindSeat(node, *process);
  if (!process->seat) return;
  Seat& seat = seats_[*process->seat];
  SetPresence(&seat, Presence::kBack);
  seat.lost = false;
}

std::optional<uint32_t> Elastic::NamedSeat(const Process& process) const {
  if (process.said_epoch == 0) return std::nullopt;
  if (process.said_epoch == epoch_) {
    if (process.said_rank >= seats_.size()) return std::nullopt;
    return process.said_rank;
  }
  const auto before = [](const Seat& seat) {
    return std::pair(seat.process.said_epoch, seat.process.said_rank);
  };
  const auto seat = std::ranges::find(
      seats_, std::pair(process.said_epoch, process.said_rank), before);
  if (seat == seats_.end()) return std::nullopt;
  return static_cast<uint32_t>(seat - seats_.begin());
}

std::optional<uint32_t> Elastic::FindSeat(const NodeMember& node,
                                          const Process& process) const {
  // An agent that was started again is another node of its host.
  const auto is_there = [&](const Seat& seat) {
    return seat.node == node.node ||
           (!node.host.empty() && seat.host == node.host);
  };
  std::optional<uint32_t> found = NamedSeat(process);
  if (found && (!is_there(seats_[*found]) ||
                seats_[*found].process.pid != process.pid)) {
    found.reset();
  }
  // By its pid: it is unknown which epoch and rank the processes of another
  // coordinator's epoch had before it.
  for (uint32_t i = 0; i < seats_.size() && !found; ++i) {
    const Seat& seat = seats_[i];
    const bool same_connection =
        seat.session == node.session && seat.process.client == process.client;
    const bool same_process =
        process.said_epoch > 0 && process.said_epoch < epoch_ &&
        seat.node == node.node && seat.process.pid == process.pid;
    if (same_connection || same_process) found = i;
  }
  if (found && seats_[*found].presence == Presence::kBack) return std::nullopt;
  return found;
}

void Elastic::Replace(SessionId session, Node node) {
  auto it = nodes_.find(session);
  std::set<uint64_t> here;
  for (const Process& p : node.processes) here.insert(p.client);
  size_t kept = 0;
  if (it != nodes_.end()) {
    for (const Process& p : it->second.processes) {
      if (here.contains(p.client)) {
        ++kept;
      } else if (p.seat) {
        SetPresence(&seats_[*p.seat], Presence::kGone);
        seats_[*p.seat].lost = true;
      }
    }
    changed_ = changed_ || kept < it->second.processes.size();
    waiting_ -= it->second.processes.size();
    nodes_.erase(it);
  }
  changed_ = changed_ || kept < here.size();
  waiting_ += node.processes.size();
  if (!node.processes.empty()) nodes_.emplace(session, std::move(node));
}

void Elastic::SetPresence(Seat* seat, Presence presence) {
  expected_ -= IsExpected(seat->presence);
  expected_ += IsExpected(presence);
  seat->presence = presence;
  changed_ = true;
}

void Elastic::OnLeft(SessionId session, uint64_t epoch,
                     const proto::RankGone& gone) {
  // Its node repeats this to a coordinator that has replaced another one.
  if (gone.finished() && epoch < epoch_ && finished_.empty()) {
    finished_ = absl::StrCat("rank ", gone.rank(), " of epoch ", epoch);
    changed_ = true;
  }
  if (epoch != epoch_ || gone.rank() >= seats_.size()) return;
  Seat& seat = seats_[gone.rank()];
  // Another executor's process may have taken over the rank.
  if (seat.session != session) return;
  if (IsExpected(seat.presence)) {
    SetPresence(&seat, gone.returns() ? Presence::kReturning : Presence::kGone);
    seat.lost = !gone.returns() && !gone.clean() && !gone.finished();
  }
  if (gone.finished() && finished_.empty()) {
    finished_ = seat.text;
    changed_ = true;
  }
}

void Elastic::OnLost(SessionId session) {
  Replace(session, {});
  for (Seat& seat : seats_) {
    if (seat.session != session || !IsExpected(seat.presence)) continue;
    SetPresence(&seat, Presence::kGone);
    seat.lost = true;
  }
}

std::vector<SessionId> Elastic::WaitingSessions() const {
  std::vector<SessionId> out;
  for (const auto& [session, node] : nodes_) out.push_back(session);
  return out;
}

std::vector<int64_t> Elastic::WaitingPids(SessionId session) const {
  std::vector<int64_t> out;
  const auto it = nodes_.find(session);
  if (it == nodes_.end()) return out;
  for (const Process& p : it->second.processes) out.push_back(p.pid);
  return out;
}

void Elastic::Clear() {
  for (const SessionId session : WaitingSessions()) Replace(session, {});
}

// --- While an epoch runs -----------------------------------------------------

uint32_t Elastic::NewRanksWanted() const {
  size_t back = 0;
  for (const Seat& s : seats_) back += s.presence == Presence::kBack;
  const size_t room = max_size_ - std::min<size_t>(max_size_, expected_ + back);
  return static_cast<uint32_t>(std::min(waiting_ - back, room));
}

uint32_t Elastic::Leaving() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      seats_, [](const Seat& s) { return s.presence != Presence::kIn; }));
}

// --- The next start ----------------------------------------------------------

Time Elastic::TimeoutOf(const Node& node) const {
  const int64_t said = node.member.start_timeout_ms;
  return said == 0 ? timeout_ : Time(std::chrono::milliseconds(said));
}

Time Elastic::WaitsSince(const Process& p) const {
  return p.seat && over_since_ ? std::max(p.since, *over_since_) : p.since;
}

std::optional<Time> Elastic::LateAt(const Node& node) const {
  std::optional<Time> first;
  for (const Process& p : node.processes) first = Earlier(first, WaitsSince(p));
  if (first) *first += TimeoutOf(node);
  return first;
}

bool Elastic::AnyBack() const {
  return std::ranges::any_of(nodes_, [](const auto& n) {
    const std::vector<Process>& waiting = n.second.processes;
    return std::ranges::any_of(waiting, GoesOn);
  });
}

// A rank of the last epoch may be new, for example if the start has failed. It
// does not have the job's state, and would begin from the start.
bool Elastic::GoesOn(const Process& p) { return p.seat && p.said_epoch > 0; }

std::optional<Time> Elastic::StartsAt() const {
  if (expected_ > 0 || waiting_ == 0 || waiting_ < min_size_ || Over()) {
    return std::nullopt;
  }
  // Survivors do not wait for processes that may be about to come: these enter
  // the next time the survivors leave the epoch.
  const bool at_once = waiting_ >= max_size_ || AnyBack();
  return at_once ? changed_at_ : changed_at_ + settle_;
}

std::optional<Time> Elastic::Deadline(bool running) const {
  if (changed_ || (!running && waiting_ > 0 && Over())) return Time{};
  std::optional<Time> next;
  if (!running) next = StartsAt();
  for (const auto& [session, node] : nodes_) {
    next = Earlier(next, LateAt(node));
  }
  return next;
}

Elastic::Verdict Elastic::OnTime(Time now, bool running,
                                 const std::string& running_text) {
  Verdict verdict;
  if (std::exchange(changed_, false)) changed_at_ = now;
  if (running) {
    over_since_.reset();
  } else if (!over_since_) {
    over_since_ = now;
  }
  bool late = false;
  bool without_missing = false;
  for (const auto& [session, node] : nodes_) {
    const std::optional<Time> late_at = LateAt(node);
    if (!late_at || *late_at > now) continue;
    late = true;
    if (running || now < *over_since_ + TimeoutOf(node)) continue;
    without_missing = true;
    verdict.waited = std::max(verdict.waited, TimeoutOf(node));
  }
  // Starting without the ranks that do not come back is better than not
  // starting.
  if (without_missing) verdict.left_behind = GiveUpMissing();
  if (!running && Over()) {
    verdict.refused = RefuseAfterEnd();
    return verdict;
  }
  const std::optional<Time> start = running ? std::nullopt : StartsAt();
  verdict.start = start && (*start <= now || late);
  if (late && !verdict.start) {
    verdict.refused = RefuseLate(now, running ? running_text : MissingText());
  }
  return verdict;
}

bool Elastic::Over() const {
  return !finished_.empty() && expected_ == 0 && !AnyBack();
}

std::vector<Elastic::Refused> Elastic::RefuseAfterEnd() {
  const auto lost = std::ranges::find_if(seats_, &Seat::lost);
  Refused refusal{.why = absl::StrCat("the training is over: ", finished_,
                                      " has finished it"),
                  .code = absl::StatusCode::kOutOfRange};
  if (lost != seats_.end()) {
    refusal.code = absl::StatusCode::kAborted;
    absl::StrAppend(&refusal.why, ", but ", lost->text,
                    " was lost before it had: what it should have done is "
                    "missing; start the job again");
  }
  std::vector<Refused> out;
  for (const SessionId session : WaitingSessions()) {
    refusal.session = session;
    refusal.clients.clear();
    for (const Process& p : nodes_.at(session).processes) {
      refusal.clients.push_back(p.client);
    }
    out.push_back(refusal);
    Replace(session, {});
  }
  return out;
}

std::vector<Elastic::Refused> Elastic::RefuseLate(Time now,
                                                  const std::string& what_is) {
  std::vector<Refused> late;
  for (const SessionId session : WaitingSessions()) {
    Node rest = nodes_.at(session);
    const Time timeout = TimeoutOf(rest);
    Refused gone{.session = session,
                 .clients = {},
                 .why = absl::StrCat("the job did not start within ",
                                     SecondsText(timeout), ": ", what_is)};
    std::erase_if(rest.processes, [&](const Process& p) {
      if (WaitsSince(p) + timeout > now) return false;
      gone.clients.push_back(p.client);
      return true;
    });
    if (gone.clients.empty()) continue;
    late.push_back(std::move(gone));
    Replace(session, std::move(rest));
  }
  return late;
}

std::vector<std::string> Elastic::GiveUpMissing() {
  std::vector<std::string> left_behind;
  for (Seat& seat : seats_) {
    if (!IsExpected(seat.presence)) continue;
    left_behind.push_back(seat.text);
    SetPresence(&seat, Presence::kGone);
    seat.lost = true;
  }
  changed_ = false;  // no reason to wait longer
  return left_behind;
}

std::string Elastic::MissingText() const {
  std::string out = CountText(waiting_);
  if (waiting_ < min_size_) {
    out = absl::StrCat(waiting_, " of at least ", CountText(min_size_));
  }
  out += waiting_ == 1 && min_size_ == 1 ? " is there: " : " are there: ";
  constexpr size_t kShown = 8;
  const auto text = [](const auto& waiting) {
    return absl::StrCat(waiting.second.member.Text(), " with ",
                        CountText(waiting.second.processes.size()));
  };
  const auto more = [](size_t n) {
    return absl::StrCat(" and ", n, " more nodes");
  };
  out += ListText(nodes_, kShown, ", ", text, more);
  size_t shown = 0;
  for (const Seat& seat : seats_) {
    if (seat.presence == Presence::kBack) continue;
    if (shown == kShown) {
      out += " and others";
      break;
    }
    absl::StrAppend(
        &out,
        shown++ > 0 ? ", " : "; missing from the last epoch: ", seat.text);
  }
  return out;
}

Elastic::Chosen Elastic::Choose() const {
  struct Candidate {
    std::tuple<int, uint64_t, uint64_t> order;
    SessionId session;
    const Process* process;
  };
  std::vector<Candidate> all;
  for (const auto& [session, node] : nodes_) {
    for (const Process& p : node.processes) {
      std::tuple<int, uint64_t, uint64_t> order{3, p.arrival, 0};
      if (p.seat && p.said_epoch == epoch_) {
        order = {0, p.said_rank, 0};
      } else if (p.said_epoch > 0) {
        const int later = restored_ ? -1 : 2;
        order = {p.said_epoch < epoch_ ? 1 : later, UINT64_MAX - p.said_epoch,
                 p.said_rank};
      }
      all.push_back({order, session, &p});
    }
  }
  std::ranges::sort(all, {}, [](const Candidate& c) {
    return std::pair(c.order, c.process->arrival);
  });
  if (all.size() > max_size_) all.resize(max_size_);
  Chosen chosen;
  std::map<SessionId, size_t> places;
  for (const Candidate& c : all) {
    const auto [it, is_new] = places.emplace(c.session, chosen.size());
    if (is_new) chosen.emplace_back(c.session, std::vector<Process>());
    chosen[it->second].second.push_back(*c.process);
  }
  return chosen;
}

uint64_t Elastic::LastEpochSaid() const {
  uint64_t last = 0;
  for (const auto& [session, node] : nodes_) {
    for (const Process& p : node.processes) {
      if (p.said_epoch <= kMaxNumber) last = std::max(last, p.said_epoch);
    }
  }
  return last;
}

std::vector<NodeMember> Elastic::Begin(uint64_t epoch) {
  std::vector<NodeMember> members;
  std::vector<Seat> seats;
  for (const auto& [session, processes] : Choose()) {
    const auto first = static_cast<uint32_t>(seats.size());
    members.push_back(TakeOut(session, processes, first));
    for (const Process& p : processes) {
      const auto rank = static_cast<uint32_t>(seats.size());
      seats.push_back({.session = session,
                       .node = members.back().node,
                       .host = members.back().host,
                       .process = p,
                       .text = members.back().RankText(rank)});
    }
  }
  epoch_ = epoch;
  restored_ = false;
  seats_ = std::move(seats);
  expected_ = seats_.size();
  for (auto& [session, node] : nodes_) {
    for (Process& p : node.processes) p.seat.reset();
  }
  changed_ = true;
  return members;
}

void Elastic::Restore(const proto::EpochStart& start,
                      const std::vector<NodeMember>& members) {
  epoch_ = start.epoch();
  restored_ = true;
  min_size_ = start.min_size();
  max_size_ = start.max_size();
  first_ = "those of the last epoch";
  seats_.assign(start.size(), Seat());
  for (const NodeMember& m : members) {
    for (size_t i = 0; i < m.ranks.size(); ++i) {
      Seat& seat = seats_[m.ranks[i]];
      seat.presence = m.session == 0 ? Presence::kGone : Presence::kIn;
      seat.session = m.session;
      seat.node = m.node;
      seat.host = m.host;
      seat.process.client = m.clients[i];
      seat.process.pid = m.PidOf(i);
      seat.text = m.RankText(m.ranks[i]);
    }
  }
  expected_ = 0;
  for (const Seat& seat : seats_) expected_ += IsExpected(seat.presence);
  for (auto& [session, node] : nodes_) {
    for (Process& p : node.processes) TakeSeat(node.member, &p);
  }
  changed_ = true;
}

NodeMember Elastic::TakeOut(SessionId session,
                            const std::vector<Process>& processes,
                            uint32_t first_rank) {
  const auto it = nodes_.find(session);
  NodeMember member = it->second.member;
  bool said = false;
  for (const Process& p : processes) {
    member.ranks.push_back(first_rank++);
    member.clients.push_back(p.client);
    member.pids.push_back(p.pid);
    member.fusion_thresholds.push_back(p.fusion_threshold);
    said = said || p.fusion_threshold >= 0;
    std::erase_if(it->second.processes,
                  [&](const Process& q) { return q.client == p.client; });
  }
  if (!said) member.fusion_thresholds.clear();
  member.local_size = static_cast<uint32_t>(processes.size());
  waiting_ -= processes.size();
  if (it->second.processes.empty()) nodes_.erase(it);
  return member;
}

}  // namespace maypole::coordinator
