#include "coordinator/core/recovery/recovery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// Answers and timelines of an epoch; more come.
constexpr uint32_t kMaxAnswers = uint32_t{1} << 31;

absl::Status Bad(const std::string& what) {
  return InvalidArgument("a node's state with ", what);
}

absl::Status CheckTerms(const proto::EpochStart& start) {
  for (const int64_t ms : {start.stall_check_ms(), start.stall_shutdown_ms()}) {
    if (ms >= 0 && ms <= kMaxStallMs) continue;
    return Bad(absl::StrCat("a stall time of ", ms, " ms"));
  }
  // Any fusion threshold is one.
  if (start.checksums() > kMostChecksumMode) {
    return Bad(absl::StrCat("checksums in mode ", start.checksums()));
  }
  if (start.nodes(0).clients_size() > 0 &&
      (start.min_size() < 1 || start.max_size() < start.size() ||
       start.max_size() < start.min_size() ||
       start.max_size() > static_cast<uint32_t>(kMaxRanks))) {
    return Bad(absl::StrCat("an elastic epoch of ", start.size(), " ranks, of ",
                            start.min_size(), " to ", start.max_size()));
  }
  return absl::OkStatus();
}

absl::Status CheckStart(const proto::EpochStart& start) {
  if (start.epoch() == 0 || start.epoch() > kMaxNumber || start.size() < 1 ||
      start.size() > static_cast<uint32_t>(kMaxRanks) ||
      start.nodes_size() < 1 ||
      start.nodes_size() > static_cast<int>(kMaxNodes) ||
      start.node_index() >= static_cast<uint32_t>(start.nodes_size())) {
    return Bad("an impossible epoch");
  }
  std::set<uint32_t> ranks;
  std::set<std::string> names;
  const int clients = start.nodes(0).clients_size();
  for (const proto::NodeInfo& node : start.nodes()) {
    const bool elastic = node.clients_size() == node.ranks_size();
    if (node.ranks_size() < 1 || node.ranks_size() > kMaxLocalRanks ||
        node.node().size() > kMaxHostBytes ||
        node.host().size() > kMaxHostBytes ||
        node.address().size() > kMaxAddressBytes ||
        !names.insert(node.node()).second ||
        (node.pids_size() != 0 && node.pids_size() != node.ranks_size()) ||
        (clients == 0 ? node.clients_size() != 0 : !elastic)) {
      return Bad(absl::StrCat("an epoch with an impossible node '",
                              Cut(node.node(), kMaxHostBytes), "'"));
    }
    for (const uint32_t rank : node.ranks()) {
      if (rank < start.size() && ranks.insert(rank).second) continue;
      return Bad(absl::StrCat("an epoch that has rank ", rank,
                              " twice, or not among its ", start.size()));
    }
  }
  if (ranks.size() != start.size()) return Bad("an epoch without all ranks");
  return CheckTerms(start);
}

absl::Status CheckSets(const proto::NodeState& state) {
  uint32_t last = 0;
  for (const proto::KnownSet& set : state.sets()) {
    const auto& r = set.ranks();
    const bool ascends = std::ranges::adjacent_find(
                             r, std::greater_equal<uint32_t>()) == r.end();
    if (set.process_set() != ++last || last > kMaxProcessSets || r.empty() ||
        !ascends || r.Get(r.size() - 1) >= state.start().size()) {
      return Bad(absl::StrCat("an impossible process set ", set.process_set()));
    }
  }
  for (const uint32_t rank : state.left()) {
    if (rank >= state.start().size()) {
      return Bad(absl::StrCat("rank ", rank, ", which the job has not"));
    }
  }
  return absl::OkStatus();
}

NodeMember MemberOf(const proto::EpochStart& start,
                    const proto::NodeInfo& info) {
  NodeMember member;
  member.node = info.node();
  member.host = info.host();
  member.address = info.address();
  member.version = info.protocol_version();
  member.ranks = {info.ranks().begin(), info.ranks().end()};
  member.pids = {info.pids().begin(), info.pids().end()};
  member.clients = {info.clients().begin(), info.clients().end()};
  member.chunk_bytes = start.chunk_bytes();
  member.local_size = static_cast<uint32_t>(info.ranks_size());
  return member;
}

bool SameMembers(const proto::EpochStart& a, const proto::EpochStart& b) {
  if (a.size() != b.size() || a.nodes_size() != b.nodes_size()) return false;
  for (int i = 0; i < a.nodes_size(); ++i) {
    const auto& x = a.nodes(i);
    const auto& y = b.nodes(i);
    if (x.node() != y.node() || !std::ranges::equal(x.ranks(), y.ranks())) {
      return false;
    }
  }
  return true;
}

absl::Status CheckDecision(const proto::Decision& d) {
  switch (d.what_case()) {
    case proto::Decision::kRun:
      if (d.run().operations_size() >= 1 &&
          d.run().operations_size() <= static_cast<int>(kMaxRunOperations)) {
        return absl::OkStatus();
      }
      return Bad(
          absl::StrCat("a run of ", d.run().operations_size(), " operations"));
    case proto::Decision::kOperationFailed:
      if (d.operation_failed().code() != 0) return absl::OkStatus();
      return Bad("an operation that has failed without an error");
    default:
      return absl::OkStatus();
  }
}

// The epoch's counters, from which later numbers continue.
absl::Status CheckCounters(const proto::NodeState& state) {
  struct Counter {
    const char* what;
    uint64_t value;
    uint64_t limit;
  };
  const Counter counters[] = {
      {"run", state.last_run(), kMaxNumber},
      {"schedule", state.schedule(), kMaxNumber},
      {"answer about process sets", state.sets_answered(), kMaxAnswers},
      {"answer to joins", state.joins_answered(), kMaxAnswers},
      {"timeline", state.timeline().number(), kMaxAnswers}};
  for (const Counter& c : counters) {
    if (c.value <= c.limit) continue;
    return Bad(absl::StrCat(c.what, " ", c.value, "; at most ", c.limit,
                            " is allowed"));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const proto::NodeState& state) {
  const uint32_t least = state.schedule() == 0 ? 0 : 1;
  if (state.schedule_length() < least ||
      state.schedule_length() > kMaxScheduledOperations ||
      state.schedule_fan_out() > kMaxNodes ||
      (state.follows() && state.schedule() == 0)) {
    return Bad(absl::StrCat(
        "schedule ", state.schedule(), " of ", state.schedule_length(),
        " runs, with a fan-out of ", state.schedule_fan_out(), "; ", least,
        " to ", kMaxScheduledOperations, " runs and a fan-out of 0 to ",
        kMaxNodes, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status CheckTimeline(const proto::NodeState& state) {
  const proto::Timeline& t = state.timeline();
  if (t.number() == 0 ||
      (t.rank() < state.start().size() &&
       t.node() < static_cast<uint32_t>(state.start().nodes_size()) &&
       t.path().size() <= kMaxShownPathBytes)) {
    return absl::OkStatus();
  }
  return Bad(absl::StrCat("a timeline of rank ", t.rank(), " on node ",
                          t.node(), ", with a path of ", t.path().size(),
                          " bytes"));
}

absl::Status CheckCommunicators(const proto::NodeState& state) {
  const auto nodes = static_cast<uint32_t>(state.start().nodes_size());
  const auto is_number = [](uint32_t n) {
    return n >= 1 && n <= kMaxCommunicators;
  };
  for (const proto::Communicator& c : state.communicators()) {
    bool sound = is_number(c.number());
    std::set<uint32_t> seen;
    for (const proto::CommunicatorPart& part : c.parts()) {
      sound = sound && part.node() < nodes && seen.insert(part.node()).second &&
              part.gpus_size() <= static_cast<int>(kMaxGpus) &&
              std::ranges::all_of(part.gpus(),
                                  [](uint32_t gpu) { return gpu < kMaxGpus; });
    }
    if (!sound) {
      return Bad(absl::StrCat("an impossible communicator ", c.number()));
    }
  }
  for (const proto::CommunicatorId& id : state.communicator_ids()) {
    if (is_number(id.number()) && !id.id().empty() &&
        id.id().size() <= kMaxCommunicatorIdBytes) {
      continue;
    }
    return Bad(absl::StrCat("an id of ", id.id().size(),
                            " bytes for communicator ", id.number()));
  }
  for (const uint32_t number : state.ids_received()) {
    if (!is_number(number)) {
      return Bad(absl::StrCat("the id of communicator ", number));
    }
  }
  return absl::OkStatus();
}

// Compares what states of the same epoch must agree on.
bool SameSchedule(const proto::NodeState& a, const proto::NodeState& b) {
  return a.schedule() != b.schedule() ||
         (a.schedule_length() == b.schedule_length() &&
          a.schedule_fan_out() == b.schedule_fan_out());
}

}  // namespace

uint64_t NumberOf(const proto::Decision& d) {
  switch (d.what_case()) {
    case proto::Decision::kRun:
      return d.run().decision();
    case proto::Decision::kOperationFailed:
      return d.operation_failed().decision();
    case proto::Decision::kSetReply:
      return d.set_reply().decision();
    case proto::Decision::kJoinReply:
      return d.join_reply().decision();
    default:
      return 0;
  }
}

absl::Status CheckNodeState(const proto::NodeState& state) {
  if (state.last_decision() > kMaxNumber) {
    return Bad(absl::StrCat("decision ", state.last_decision()));
  }
  uint64_t last = 0;
  for (const proto::Decision& d : state.decisions()) {
    const uint64_t number = NumberOf(d);
    if (number <= last || number > state.last_decision()) {
      return Bad(absl::StrCat("decision ", number, " out of order"));
    }
    if (absl::Status s = CheckDecision(d); !s.ok()) return s;
    last = number;
  }
  if (!state.has_start()) return absl::OkStatus();
  absl::Status status = CheckStart(state.start());
  if (status.ok()) status = CheckSets(state);
  if (status.ok()) status = CheckCounters(state);
  if (status.ok()) status = CheckSchedule(state);
  if (status.ok()) status = CheckTimeline(state);
  return status.ok() ? CheckCommunicators(state) : status;
}

void Recovery::Await(Time now, SessionId session, const std::string& node) {
  Report& report = reports_[session];
  report.node = node;
  report.awaited_until = std::min(now, deadline_) + kStateTime;
  lost_.erase(node);
}

Time Recovery::deadline() const {
  Time last = deadline_;
  for (const auto& [session, report] : reports_) {
    if (!report.state) last = std::max(last, report.awaited_until);
  }
  return last;
}

absl::Status Recovery::Take(SessionId session, const proto::NodeState& state) {
  if (absl::Status s = CheckNodeState(state); !s.ok()) return s;
  Report& report = reports_.at(session);
  if (report.state) return Bad("another one before");
  if (state.has_start()) {
    const proto::EpochStart& start = state.start();
    if (start.nodes(static_cast<int>(start.node_index())).node() !=
        report.node) {
      return Bad("an epoch in which this node is another one");
    }
    for (const auto& [other, r] : reports_) {
      if (!r.state || r.state->start().epoch() != start.epoch()) continue;
      if (!SameMembers(r.state->start(), start)) {
        return Bad("an epoch with other members than another node says");
      }
      if (!SameSchedule(*r.state, state)) {
        return Bad(absl::StrCat("schedule ", state.schedule(), " of ",
                                state.schedule_length(),
                                " runs, which another node says to have ",
                                r.state->schedule_length()));
      }
    }
  }
  report.state = state;
  return absl::OkStatus();
}

void Recovery::Forget(SessionId session, const std::string& how) {
  const auto it = reports_.find(session);
  if (it == reports_.end()) return;
  lost_[it->second.node] = how;
  reports_.erase(it);
}

std::vector<SessionId> Recovery::Sessions() const {
  std::vector<SessionId> out;
  for (const auto& [session, report] : reports_) out.push_back(session);
  return out;
}

const proto::NodeState* Recovery::StateOf(SessionId session) const {
  const auto it = reports_.find(session);
  return it == reports_.end() || !it->second.state ? nullptr
                                                   : &*it->second.state;
}

uint64_t Recovery::LastDecision() const {
  uint64_t last = 0;
  for (const auto& [session, report] : reports_) {
    if (report.state) last = std::max(last, report.state->last_decision());
  }
  return last;
}

const proto::EpochStart* Recovery::LastStart() const {
  const proto::EpochStart* last = nullptr;
  for (const auto& [session, report] : reports_) {
    if (!report.state || !report.state->has_start()) continue;
    const proto::EpochStart& start = report.state->start();
    if (last == nullptr || last->epoch() < start.epoch()) last = &start;
  }
  return last;
}

SessionId Recovery::SessionOf(const std::string& node) const {
  for (const auto& [session, report] : reports_) {
    if (report.node == node) return session;
  }
  return 0;
}

std::set<uint32_t> Recovery::LeftOf(const proto::EpochStart& start) const {
  std::set<uint32_t> left;
  for (const auto& [session, report] : reports_) {
    if (!report.state || report.state->start().epoch() != start.epoch()) {
      continue;
    }
    const proto::NodeState& state = *report.state;
    left.insert(state.left().begin(), state.left().end());
    if (!state.has_end() || state.end().code() != 0) continue;
    const auto& own = start.nodes(static_cast<int>(state.start().node_index()));
    left.insert(own.ranks().begin(), own.ranks().end());
  }
  return left;
}

bool Recovery::Complete() const {
  for (const auto& [session, report] : reports_) {
    if (!report.state) return false;
  }
  const proto::EpochStart* start = LastStart();
  if (start == nullptr) return false;
  const std::set<uint32_t> left = LeftOf(*start);
  if (left.size() == start->size()) return false;
  for (const proto::NodeInfo& node : start->nodes()) {
    if (SessionOf(node.node()) != 0 || lost_.contains(node.node())) continue;
    for (const uint32_t rank : node.ranks()) {
      if (!left.contains(rank)) return false;
    }
  }
  return true;
}

std::optional<Recovery::Epoch> Recovery::LastEpoch(
    const std::string& waited) const {
  const proto::EpochStart* start = LastStart();
  if (start == nullptr) return std::nullopt;
  Epoch epoch;
  epoch.start = *start;
  epoch.left = LeftOf(*start);
  std::string missing;
  // No node gets endpoints before all nodes have answered EpochStart.
  const bool all_have_heard =
      std::ranges::any_of(reports_, [&](const auto& report) {
        const auto& state = report.second.state;
        return state && state->start().epoch() == start->epoch() &&
               state->connected();
      });
  for (const proto::NodeInfo& info : start->nodes()) {
    NodeMember member = MemberOf(*start, info);
    member.session = SessionOf(info.node());
    const proto::NodeState* state = StateOf(member.session);
    const bool has_heard =
        state != nullptr && state->start().epoch() == start->epoch();
    // A node that must have heard but has not is another executor.
    const bool is_new = state != nullptr && !has_heard && all_have_heard;
    if (state == nullptr || is_new) member.session = 0;
    if (!has_heard) state = nullptr;
    if (state != nullptr && state->end().code() != 0 && epoch.over.empty()) {
      epoch.over = Cut(state->end().message(), kMaxErrorBytes);
      if (epoch.over.empty()) epoch.over = "it has ended on another node";
    }
    const bool live = std::ranges::any_of(
        member.ranks,
        [&epoch](uint32_t rank) { return !epoch.left.contains(rank); });
    if (member.session == 0 && live && missing.empty()) {
      const auto lost = lost_.find(info.node());
      missing = absl::StrCat(
          member.ExecutorText(), " ",
          is_new ? "was replaced by a new one"
          : lost != lost_.end()
              ? lost->second
              : absl::StrCat("was lost: it did not come back within ", waited,
                             " after the coordinator had been replaced"));
    }
    epoch.members.push_back(std::move(member));
    epoch.states.push_back(state);
  }
  if (epoch.over.empty()) epoch.over = missing;
  return epoch;
}

}  // namespace maypole::coordinator
