#include "coordinator/core/liveness/deadlock.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

bool SameOperation(const proto::BlockedRank& a, const proto::BlockedRank& b) {
  return a.has_identity() && b.has_identity() &&
         a.identity().process_set() == b.identity().process_set() &&
         a.identity().kind() == b.identity().kind() &&
         a.identity().name() == b.identity().name() &&
         a.generation() == b.generation();
}

}  // namespace

Deadlock::Deadlock(EpochNodes* nodes, const Departures* departures,
                   const ProcessSets* sets, const OperationTable* table,
                   const Joins* joins)
    : nodes_(*nodes),
      departures_(*departures),
      sets_(*sets),
      table_(*table),
      joins_(*joins),
      said_(nodes->size()),
      answered_(nodes->size(), false) {}

absl::Status Deadlock::Check(size_t node,
                             const proto::BlockedRank& rank) const {
  const NodeMember& member = nodes_[node];
  bool own = member.HasRank(rank.rank());
  for (const uint32_t missing : rank.missing()) {
    own = own && member.HasRank(missing);
  }
  if (!own) {
    return InvalidArgument(
        "rank ", rank.rank(),
        " is blocked, but it, or a rank that blocks it, is not a "
        "rank of the node");
  }
  const int waits = (rank.has_identity() ? 1 : 0) + (rank.joining() ? 1 : 0) +
                    (rank.asks_for_set() ? 1 : 0);
  if (waits != 1) {
    return InvalidArgument("rank ", rank.rank(), " is blocked by ", waits,
                           " things at once");
  }
  if (!rank.has_identity()) return absl::OkStatus();
  return SetOf(rank.identity(), sets_).status();
}

absl::Status Deadlock::Take(size_t node, const proto::Blocked& message) {
  if (message.round() > round_) {
    return InvalidArgument("an answer to round ", message.round(),
                           " of blocked ranks, the last one is ", round_);
  }
  std::set<uint32_t> seen;
  for (const proto::BlockedRank& rank : message.ranks()) {
    absl::Status status = Check(node, rank);
    if (!status.ok()) return status;
    if (!seen.insert(rank.rank()).second) {
      return InvalidArgument("rank ", rank.rank(), " is blocked twice");
    }
  }
  said_[node] = message;
  if (open_ && message.round() == round_) answered_[node] = true;
  return absl::OkStatus();
}

void Deadlock::Wake() {
  due_ = std::ranges::any_of(
      said_, [](const auto& said) { return said.ranks_size() > 0; });
}

std::vector<size_t> Deadlock::BlockedNodes() const {
  std::vector<size_t> nodes;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<uint32_t> live = departures_.LiveRanks(i);
    for (const uint32_t rank : live) {
      const auto& ranks = said_[i].ranks();
      if (std::ranges::find(ranks, rank, &proto::BlockedRank::rank) ==
          ranks.end()) {
        return {};
      }
    }
    if (!live.empty()) nodes.push_back(i);
  }
  return nodes;
}

Deadlock::Counts Deadlock::CountsOf(const std::vector<size_t>& nodes) const {
  Counts counts;
  for (const size_t i : nodes) {
    for (const auto& r : said_[i].ranks()) counts[r.rank()] = r.count();
  }
  return counts;
}

std::optional<Time> Deadlock::Deadline() const {
  if (due_) return Time::zero();
  if (retries_) return retry_at_;
  return std::nullopt;
}

std::string Deadlock::Check(Time now) {
  due_ = false;
  const std::vector<size_t> nodes = BlockedNodes();
  if (nodes.empty()) {
    open_ = retries_ = false;
    return "";
  }
  if (open_) {
    const bool moved = CountsOf(nodes) != counts_;
    const bool answered =
        std::ranges::all_of(nodes, [this](size_t i) { return answered_[i]; });
    if (!moved && !answered) return "";
    open_ = false;
    const bool quiet = std::ranges::all_of(nodes, [&](size_t i) {
      return said_[i].handled() == nodes_.sent()[i];
    });
    if (!moved && quiet) {
      if (std::string text = Describe(nodes); !text.empty()) return text;
    }
    retry_at_ = now + kRetry;
  }
  retries_ = false;
  if (Describe(nodes).empty()) return "";
  if (now < retry_at_) {
    retries_ = true;
    return "";
  }
  open_ = true;
  counts_ = CountsOf(nodes);
  answered_.assign(nodes_.size(), false);
  proto::CoordinatorMessage message;
  message.mutable_confirm_blocked()->set_round(++round_);
  for (const size_t i : nodes) nodes_.Send(i, message);
  return "";
}

std::optional<Deadlock::Wait> Deadlock::WaitOf(
    size_t node, const proto::BlockedRank& rank) const {
  std::optional<Wait> wait;
  if (rank.joining()) {
    if (joins_.Aside(rank.rank())) wait = Wait{"join", joins_.Missing()};
  } else if (rank.asks_for_set()) {
    if (auto request = sets_.WaitOf(rank.rank())) {
      wait = Wait{std::move(request->text), std::move(request->missing)};
    }
  } else {
    wait = OperationWait(node, rank);
  }
  if (!wait) return wait;
  std::ranges::sort(wait->missing);
  // Ranks that stand aside submit operations, but make no other calls.
  std::erase_if(wait->missing, [&](uint32_t r) {
    return departures_.Has(r) || (rank.has_identity() && joins_.Aside(r));
  });
  if (wait->missing.empty()) return std::nullopt;
  wait->exact = wait->exact || wait->missing.size() == 1;
  return wait;
}

std::optional<Deadlock::Wait> Deadlock::OperationWait(
    size_t node, const proto::BlockedRank& rank) const {
  const RankSet* set = sets_.Find(rank.identity().process_set());
  // If the set was removed, or a rank of it has left, the operation fails.
  if (set == nullptr || !set->Has(rank.rank()) || departures_.FirstOf(*set)) {
    return std::nullopt;
  }
  Wait wait;
  wait.text = OperationText(rank.identity());
  wait.missing.assign(rank.missing().begin(), rank.missing().end());
  if (set->nodes.size() == 1) return wait;
  const NegotiatedOperation* op = table_.Find(rank.identity());
  auto present = [&](size_t i) {
    return op != nullptr && op->PresentOn(i) &&
           op->nodes[i].generation == rank.generation();
  };
  // All ranks of the node have submitted it, but it is not pending here: its
  // answer is in flight.
  if (wait.missing.empty() && !present(node)) return std::nullopt;
  for (const size_t i : set->nodes) {
    if (i != node && !present(i)) AddMissing(i, *set, rank, &wait);
  }
  return wait;
}

void Deadlock::AddMissing(size_t node, const RankSet& set,
                          const proto::BlockedRank& rank, Wait* wait) const {
  for (const proto::BlockedRank& other : said_[node].ranks()) {
    if (!SameOperation(other, rank)) continue;
    wait->missing.insert(wait->missing.end(), other.missing().begin(),
                         other.missing().end());
    return;
  }
  // None of the node's ranks waits for it, but some may have submitted it.
  const std::vector<uint32_t>& here = set.by_node[node];
  wait->missing.insert(wait->missing.end(), here.begin(), here.end());
  wait->exact = wait->exact && here.size() == 1;
}

std::string Deadlock::Describe(const std::vector<size_t>& nodes) const {
  // Ranks that wait for the same thing; groups are ordered by smallest rank.
  struct Group {
    std::vector<uint32_t> ranks;
    Wait wait;
  };
  std::map<uint32_t, Wait> waits;
  for (const size_t i : nodes) {
    for (const proto::BlockedRank& rank : said_[i].ranks()) {
      if (departures_.Has(rank.rank())) continue;
      std::optional<Wait> wait = WaitOf(i, rank);
      if (!wait) return "";
      waits.emplace(rank.rank(), *std::move(wait));
    }
  }
  std::vector<Group> groups;
  for (auto& [rank, wait] : waits) {
    const Wait& w = wait;
    auto same = std::ranges::find_if(groups, [&](const Group& g) {
      return g.wait.text == w.text && g.wait.missing == w.missing;
    });
    if (same != groups.end()) {
      same->ranks.push_back(rank);
    } else {
      groups.push_back({{rank}, std::move(wait)});
    }
  }
  const auto text = [](const Group& g) {
    const std::string missing = RanksText(g.wait.missing);
    return absl::StrCat(
        RanksText(g.ranks), g.ranks.size() == 1 ? " waits for " : " wait for ",
        g.wait.text, ", which ",
        g.wait.exact
            ? absl::StrCat(missing,
                           g.wait.missing.size() == 1 ? " has" : " have",
                           " not submitted")
            : absl::StrCat("not all of ", missing, " have submitted"));
  };
  const auto more = [](size_t n) {
    return absl::StrCat("; and ", n, " other waits");
  };
  return absl::StrCat("deadlock: every rank waits for another: ",
                      ListText(groups, 8, "; ", text, more),
                      "; the ranks submit different operations, or wait for "
                      "them in different orders",
                      SameNameHint(nodes));
}

std::string Deadlock::SameNameHint(const std::vector<size_t>& nodes) const {
  std::map<std::string, std::pair<uint32_t, uint32_t>> names;  // kind, set
  for (const size_t i : nodes) {
    for (const proto::BlockedRank& rank : said_[i].ranks()) {
      if (!rank.has_identity()) continue;
      const std::pair<uint32_t, uint32_t> used(rank.identity().kind(),
                                               rank.identity().process_set());
      const auto [it, first] = names.try_emplace(rank.identity().name(), used);
      if (it->second == used) continue;
      return absl::StrCat(
          "; '", it->first, "' is the same name in different ",
          it->second.first != used.first ? "collectives" : "process sets");
    }
  }
  return "";
}

}  // namespace maypole::coordinator
