#include "coordinator/core/liveness/stragglers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

constexpr int64_t kMaxWaitingMs = int64_t{1000} * 3600 * 24 * 365;

std::string WaitText(Time wait) {
  return absl::StrFormat("%.1f s", std::chrono::duration<double>(wait).count());
}

}  // namespace

Stragglers::Stragglers(const EpochNodes* nodes, const Departures* departures,
                       const ProcessSets* sets, const OperationTable* table,
                       const Joins* joins, Time check, Time shutdown)
    : nodes_(*nodes),
      departures_(*departures),
      sets_(*sets),
      table_(*table),
      joins_(*joins),
      check_(check),
      shutdown_(shutdown),
      said_(nodes->size()),
      more_(nodes->size(), 0) {}

absl::Status Stragglers::Check(size_t node,
                               const proto::LateOperation& op) const {
  const absl::StatusOr<const RankSet*> set = SetOf(op.identity(), sets_);
  if (!set.ok()) return set.status();
  if (op.waiting_ms() < 0 || op.waiting_ms() > kMaxWaitingMs) {
    return InvalidArgument("a wait of ", op.waiting_ms(), " ms");
  }
  const std::vector<uint32_t>& here = (*set)->by_node[node];
  for (const auto* ranks : {&op.arrived(), &op.missing(), &op.stopped()}) {
    for (const uint32_t rank : *ranks) {
      if (std::ranges::find(here, rank) != here.end()) continue;
      return InvalidArgument(OperationText(op.identity()), " is late for rank ",
                             rank,
                             ", which is not a rank of its process set on the "
                             "node");
    }
  }
  return absl::OkStatus();
}

absl::Status Stragglers::Take(Time now, size_t node,
                              const proto::LateOperations& message) {
  if (message.operations_size() > kMaxLateOperations) {
    return InvalidArgument(message.operations_size(), " late operations; ",
                           kMaxLateOperations, " are allowed");
  }
  std::vector<Said> said;
  for (const proto::LateOperation& op : message.operations()) {
    absl::Status status = Check(node, op);
    if (!status.ok()) return status;
    said.push_back({op, now - std::chrono::milliseconds(op.waiting_ms())});
  }
  said_[node] = std::move(said);
  more_[node] = message.more();
  look_at_ = now;
  return absl::OkStatus();
}

bool Stragglers::NeedsLook() const {
  if (check_ <= Time::zero()) return false;
  return reported_ || table_.pending() > 0 || sets_.waiting() > 0 ||
         !late_for_.empty() || std::ranges::any_of(said_, [](const auto& said) {
           return !said.empty();
         });
}

void Stragglers::Watch(Time now) {
  if (!look_at_ && NeedsLook()) look_at_ = now + check_;
}

std::optional<Time> Stragglers::Deadline() const {
  return NeedsLook() ? look_at_ : std::nullopt;
}

bool Stragglers::Stale(size_t node, const proto::LateOperation& said) const {
  const RankSet* set = sets_.Find(said.identity().process_set());
  // The set was removed, or a rank of it has left.
  if (set == nullptr || departures_.FirstOf(*set)) return true;
  const NegotiatedOperation* op = table_.Find(said.identity());
  if (op == nullptr) return false;
  return op->settled >= said.generation() || op->PresentOn(node);
}

Stragglers::Key Stragglers::KeyOf(const proto::Identity& identity,
                                  uint32_t generation) {
  return {identity.process_set(), identity.kind(), identity.name(), generation};
}

Stragglers::Late& Stragglers::Add(const proto::Identity& identity,
                                  uint32_t generation, Time since,
                                  LateByKey* late) const {
  const auto [it, first] = late->try_emplace(KeyOf(identity, generation));
  Late& l = it->second;
  l.text = OperationText(identity);
  l.since = first ? since : std::min(l.since, since);
  l.set = sets_.Find(identity.process_set());
  l.op = table_.Find(identity);
  return l;
}

void Stragglers::CollectSaid(LateByKey* late) const {
  for (size_t i = 0; i < said_.size(); ++i) {
    for (const auto& [op, since] : said_[i]) {
      if (Stale(i, op)) continue;
      Late& l = Add(op.identity(), op.generation(), since, late);
      l.arrived.insert(op.arrived().begin(), op.arrived().end());
      l.missing.insert(op.missing().begin(), op.missing().end());
      l.said_by.insert(i);
    }
  }
}

void Stragglers::CollectPending(Time now, LateByKey* late) {
  for (const NegotiatedOperation* op : table_.Pending()) {
    if (OperationTable::Complete(*op)) continue;
    uint32_t generation = 0;
    for (const NodePresence& p : op->nodes) {
      if (p.present) generation = std::max(generation, p.generation);
    }
    if (op->first_present + check_ > now &&
        !late->contains(KeyOf(op->identity, generation))) {
      next_ = Earlier(next_, op->first_present + check_);
      continue;
    }
    Add(op->identity, generation, op->first_present, late);
  }
  // Nodes that have not reported the operation as late: either it is present
  // there, or none of their ranks has submitted it.
  for (auto& [key, l] : *late) {
    for (const size_t i : l.set->nodes) {
      const std::vector<uint32_t>& here = l.set->by_node[i];
      if (l.op != nullptr && l.op->PresentOn(i)) {
        l.arrived.insert(here.begin(), here.end());
      } else if (!l.said_by.contains(i)) {
        l.missing.insert(here.begin(), here.end());
      }
    }
  }
}

void Stragglers::JudgeAside(Time now, Late* late) {
  const RankSet& set = *late->set;
  const NegotiatedOperation* const op = late->op;
  for (const size_t i : set.nodes) {
    const bool said = late->said_by.contains(i);
    // The node is asked to stand in if the operation is present on others.
    const bool asked = op != nullptr && op->present > 0 && joins_.Aside(set, i);
    for (const uint32_t rank : set.by_node[i]) {
      if (!joins_.Aside(rank) || !late->missing.contains(rank)) continue;
      Time becomes = aside_since_[rank] + check_;
      if (!said && asked) {
        becomes = std::max(becomes, op->first_present + check_);
      }
      if ((said || asked) && becomes <= now) {
        late->aside.insert(rank);
        continue;
      }
      late->missing.erase(rank);
      if (said || asked) next_ = Earlier(next_, becomes);
    }
  }
}

std::vector<Stragglers::Late> Stragglers::Collect(Time now) {
  next_.reset();
  LateByKey late;
  CollectSaid(&late);
  CollectPending(now, &late);
  std::vector<Late> out;
  for (auto& [key, l] : late) {
    std::erase_if(l.missing,
                  [&l = l](uint32_t rank) { return l.arrived.contains(rank); });
    if (joins_.AnyAside()) JudgeAside(now, &l);
    out.push_back(std::move(l));
  }
  for (const ProcessSets::Incomplete& request : sets_.Waiting()) {
    const Time becomes = request.since + check_;
    if (becomes > now) {
      next_ = Earlier(next_, becomes);
      continue;
    }
    out.push_back(
        {.text = request.text,
         .since = request.since,
         .arrived = {request.asked.begin(), request.asked.end()},
         .missing = {request.missing.begin(), request.missing.end()}});
  }
  std::erase_if(out, [](const Late& l) { return l.missing.empty(); });
  std::ranges::stable_sort(out, {}, &Late::since);
  return out;
}

void Stragglers::NoteLate(const std::vector<Late>& late) {
  late_for_.clear();
  for (const Late& l : late) {
    for (const uint32_t rank : l.missing) {
      std::vector<std::string>& held = late_for_[rank];
      if (held.size() < kMaxStatusLateFor) held.push_back(l.text);
    }
  }
}

std::optional<Time> Stragglers::MutualSince(
    const std::vector<Late>& late) const {
  std::map<uint32_t, Time> waits, is_awaited;  // since when
  for (const Late& l : late) {
    for (const uint32_t rank : l.arrived) waits.try_emplace(rank, l.since);
    for (const uint32_t rank : l.missing) is_awaited.try_emplace(rank, l.since);
  }
  std::optional<Time> since;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const uint32_t rank : departures_.LiveRanks(i)) {
      if (joins_.Aside(rank)) continue;
      if (!waits.contains(rank) || !is_awaited.contains(rank) ||
          stopped_.contains(rank)) {
        return std::nullopt;
      }
      const Time both = std::max(waits[rank], is_awaited[rank]);
      since = std::max(since.value_or(both), both);
    }
  }
  return since;
}

Stragglers::Report Stragglers::Check(Time now) {
  Report report;
  look_at_.reset();
  if (check_ <= Time::zero()) return report;
  stopped_.clear();
  size_t more = 0;
  for (size_t i = 0; i < said_.size(); ++i) {
    more += more_[i];
    for (const Said& said : said_[i]) {
      stopped_.insert(said.op.stopped().begin(), said.op.stopped().end());
    }
  }
  const std::vector<Late> late = Collect(now);
  std::set<uint32_t> ranks;
  for (const Late& l : late) ranks.insert(l.missing.begin(), l.missing.end());
  NoteLate(late);
  late_operations_ = late.empty() ? 0 : late.size() + more;
  if (late.empty()) {
    report.over = std::exchange(reported_, false);
    report.waited = longest_;
    reported_ranks_.clear();
    report_at_.reset();
    longest_ = Time::zero();
    if (NeedsLook()) look_at_ = next_.value_or(now + check_);
    return report;
  }
  const Time waited = now - late.front().since;
  if (!std::ranges::includes(reported_ranks_, ranks) && !report_at_) {
    report_at_ = now + kSettle;
  }
  report.shutdown = shutdown_ > Time::zero() && waited >= shutdown_;
  const std::optional<Time> mutual = MutualSince(late);
  report.mutual =
      shutdown_ == Time::zero() && mutual && now - *mutual >= kMutualLimit;
  const bool due = report_at_ && *report_at_ <= now;
  if (due || report.shutdown || report.mutual ||
      (reported_ && repeat_at_ <= now)) {
    report.late = Sentence(now, late);
    report.ranks = {ranks.begin(), ranks.end()};
    std::set<uint32_t> waiting;
    for (const Late& l : late) {
      std::set_difference(l.arrived.begin(), l.arrived.end(), ranks.begin(),
                          ranks.end(), std::inserter(waiting, waiting.end()));
    }
    report.waiting = {waiting.begin(), waiting.end()};
    report.waited = waited;
    if (!reported_) interval_ = check_;
    if (!reported_ || repeat_at_ <= now) {
      repeat_at_ = now + interval_;
      interval_ *= 2;
    }
    reported_ = true;
    reported_ranks_ = ranks;
    report_at_.reset();
  }
  if (reported_) longest_ = std::max(longest_, waited);
  look_at_ = Earlier(now + std::min(kLookAgain, check_), report_at_, next_);
  if (reported_) look_at_ = Earlier(look_at_, repeat_at_);
  if (shutdown_ > Time::zero() && !report.shutdown) {
    look_at_ = Earlier(look_at_, late.front().since + shutdown_);
  }
  if (shutdown_ == Time::zero() && mutual && !report.mutual) {
    look_at_ = Earlier(look_at_, *mutual + kMutualLimit);
  }
  return report;
}

std::string Stragglers::RankText(uint32_t rank) const {
  return absl::StrCat(nodes_[*nodes_.NodeOf(rank)].RankText(rank),
                      stopped_.contains(rank) ? " (stopped by a signal)" : "");
}

std::string Stragglers::Sentence(Time now,
                                 const std::vector<Late>& late) const {
  // Ranks that hold up the same operations share a part of the message. A rank
  // that stands aside may be in two parts: for operations and for requests.
  struct Group {
    bool aside;
    std::vector<uint32_t> ranks;
    std::vector<const Late*> held;
  };
  std::map<std::pair<uint32_t, bool>, std::vector<const Late*>> by_rank;
  std::set<uint32_t> all;
  for (const Late& l : late) {
    for (const uint32_t rank : l.missing) {
      by_rank[{rank, l.aside.contains(rank)}].push_back(&l);
      all.insert(rank);
    }
  }
  std::vector<Group> groups;
  for (const auto& [who, held] : by_rank) {
    const auto& [rank, aside] = who;
    auto same = std::ranges::find_if(
        groups, [&held = held, aside = aside](const Group& g) {
          return g.aside == aside && g.held == held;
        });
    if (same != groups.end()) {
      same->ranks.push_back(rank);
    } else {
      groups.push_back({aside, {rank}, held});
    }
  }
  constexpr size_t kShown = 4;
  std::string out;
  size_t hidden = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i >= kShown) {
      hidden += groups[i].ranks.size();
      continue;
    }
    absl::StrAppend(
        &out, i > 0 ? "; " : "",
        GroupText(now, groups[i].ranks, groups[i].aside, groups[i].held));
  }
  if (hidden > 0) absl::StrAppend(&out, "; and ", hidden, " more ranks");
  const bool all_stopped = std::ranges::all_of(
      all, [this](uint32_t rank) { return stopped_.contains(rank); });
  if (all_stopped) return out;
  return absl::StrCat(out, all.size() == 1 ? "; it" : "; they",
                      " may be slow, stopped or in another branch of the "
                      "program");
}

std::string Stragglers::GroupText(Time now, const std::vector<uint32_t>& ranks,
                                  bool aside,
                                  const std::vector<const Late*>& late) const {
  constexpr size_t kShownRanks = 4;
  std::string out;
  if (ranks.size() <= kShownRanks) {
    out = absl::StrJoin(ranks, ", ", [this](std::string* text, uint32_t rank) {
      absl::StrAppend(text, RankText(rank));
    });
  } else {
    absl::StrAppend(&out, RanksText(ranks), ", the first being ",
                    RankText(ranks.front()), ",");
  }
  absl::StrAppend(&out, ranks.size() == 1 ? " has" : " have");
  if (aside) {
    absl::StrAppend(&out, " joined, and ", ranks.size() == 1 ? "does" : "do",
                    " not stand in for: ");
  } else {
    absl::StrAppend(&out, " not submitted: ");
  }
  const auto text = [now](const Late* l) {
    const std::vector<uint32_t> arrived(l->arrived.begin(), l->arrived.end());
    return absl::StrCat(l->text, " (", RanksText(arrived),
                        arrived.size() == 1 ? " has" : " have", " waited ",
                        WaitText(now - l->since), ")");
  };
  const auto more = [](size_t n) { return absl::StrCat(", and ", n, " more"); };
  return out + ListText(late, 3, ", ", text, more);
}

}  // namespace maypole::coordinator
