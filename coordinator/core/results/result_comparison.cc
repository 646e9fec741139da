#include "coordinator/core/results/result_comparison.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/ordering/reported.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// More ranks than this are listed without host and process.
constexpr size_t kMostRanksInFull = 3;

}  // namespace

absl::Status ResultComparison::Take(size_t node, const proto::Results& message,
                                    std::vector<ResultDifference>* found) {
  counts_.equal += message.equal();
  counts_.unchecked += message.unchecked();
  for (const proto::Result& result : message.results()) {
    absl::Status status = CheckIdentity(result.identity());
    if (!status.ok()) return status;
    const RankSet* set = sets_.FindEver(result.identity().process_set());
    status = Check(node, set, result);
    if (!status.ok()) return status;
    if (result.id() == 0) {
      std::vector<Group> groups;
      Add(result, &groups);
      ++counts_.different;
      found->push_back(
          Describe(result.identity(), result.generation(), std::move(groups)));
      continue;
    }
    const Key key(result.id(), result.generation());
    if (!undecided_.contains(key)) Expect(key, result, *set);
    const auto it = undecided_.find(key);
    if (it->second.missing.erase(node) == 0) {
      return InvalidArgument("two reports of the results of ",
                             OperationText(result.identity()));
    }
    Add(result, &it->second.groups);
    if (it->second.missing.empty()) Settle(it, found);
    if (undecided_.size() > limit_) {
      Settle(undecided_.find(by_age_.begin()->second), found);
    }
  }
  return absl::OkStatus();
}

absl::Status ResultComparison::Check(size_t node, const RankSet* set,
                                     const proto::Result& result) const {
  const auto bad = [&](absl::string_view what) {
    return InvalidArgument("results of ", OperationText(result.identity()), " ",
                           what);
  };
  if (set == nullptr || set->by_node[node].empty()) {
    return bad("of a process set without ranks on the node");
  }
  if ((set->nodes.size() == 1) != (result.id() == 0)) {
    return bad(absl::StrCat("with id ", result.id(), " of a process set on ",
                            set->nodes.size(), " nodes"));
  }
  if (result.id() == 0 && result.copies_size() < 2) {
    return bad("which are equal on the node");
  }
  std::set<uint32_t> seen;
  std::set<std::pair<uint32_t, uint64_t>> different;
  const std::vector<uint32_t>& here = set->by_node[node];
  for (const proto::ResultCopies& copies : result.copies()) {
    for (const uint32_t rank : copies.ranks()) {
      if (std::ranges::find(here, rank) == here.end() ||
          !seen.insert(rank).second) {
        return bad(absl::StrCat("with a wrong rank ", rank));
      }
    }
    if (copies.ranks().empty()) return bad("without ranks");
    if (!different.emplace(copies.checksum(), copies.bytes()).second) {
      return bad("with equal copies apart");
    }
  }
  return absl::OkStatus();
}

void ResultComparison::Expect(const Key& key, const proto::Result& result,
                              const RankSet& set) {
  Undecided& entry = undecided_[key];
  entry.identity = result.identity();
  entry.call = result.generation();
  entry.missing = {set.nodes.begin(), set.nodes.end()};
  entry.age = ++last_age_;
  by_age_[last_age_] = key;
}

void ResultComparison::Add(const proto::Result& result,
                           std::vector<Group>* groups) {
  for (const proto::ResultCopies& copies : result.copies()) {
    auto same = std::ranges::find_if(*groups, [&](const Group& g) {
      return g.checksum == copies.checksum() && g.bytes == copies.bytes();
    });
    if (same == groups->end()) {
      same = groups->insert(same, Group{copies.checksum(), copies.bytes(), {}});
    }
    same->ranks.insert(same->ranks.end(), copies.ranks().begin(),
                       copies.ranks().end());
  }
}

void ResultComparison::Settle(std::map<Key, Undecided>::iterator it,
                              std::vector<ResultDifference>* found) {
  Undecided& entry = it->second;
  if (entry.groups.size() > 1) {
    ++counts_.different;
    found->push_back(
        Describe(entry.identity, entry.call, std::move(entry.groups)));
  } else if (!entry.missing.empty()) {
    ++counts_.unchecked;
  } else if (!entry.groups.empty() && entry.groups.front().ranks.size() > 1) {
    ++counts_.equal;
  }
  by_age_.erase(entry.age);
  undecided_.erase(it);
}

void ResultComparison::Finish(std::vector<ResultDifference>* found) {
  while (!by_age_.empty()) {
    Settle(undecided_.find(by_age_.begin()->second), found);
  }
}

ResultDifference ResultComparison::Describe(const proto::Identity& identity,
                                            uint32_t call,
                                            std::vector<Group> groups) const {
  for (Group& g : groups) std::ranges::sort(g.ranks);
  std::ranges::sort(groups, [](const Group& a, const Group& b) {
    if (a.ranks.size() != b.ranks.size()) {
      return a.ranks.size() > b.ranks.size();
    }
    return a.ranks < b.ranks;
  });
  ResultDifference d;
  d.tensor = identity.name();
  d.kind = Name(static_cast<Kind>(identity.kind()));
  d.call = call;
  d.certain = groups[0].ranks.size() > groups[1].ranks.size();
  std::vector<std::string> copies;
  for (const Group& g : groups) {
    const bool wrong = !d.certain || &g != &groups[0];
    if (wrong) d.ranks.insert(d.ranks.end(), g.ranks.begin(), g.ranks.end());
    copies.push_back(absl::StrCat(
        wrong ? WhoText(g.ranks) : RanksText(g.ranks),
        g.ranks.size() == 1 ? " has " : " have ",
        absl::StrFormat("checksum %08x of %d bytes", g.checksum, g.bytes)));
  }
  std::ranges::sort(d.ranks);
  d.text = absl::StrCat(
      "results differ: ", OperationText(identity), " (call ", call,
      "): ", absl::StrJoin(copies, ", "), "; ",
      d.certain ? absl::StrCat("wrong is the copy of ", RanksText(d.ranks))
                : "there is no majority, so any of them can be wrong");
  return d;
}

std::string ResultComparison::WhoText(
    const std::vector<uint32_t>& ranks) const {
  if (ranks.size() > kMostRanksInFull) return RanksText(ranks);
  std::vector<std::string> who;
  for (const uint32_t rank : ranks) {
    who.push_back(nodes_[*nodes_.NodeOf(rank)].RankText(rank));
  }
  return absl::StrJoin(who, " and ");
}

}  // namespace maypole::coordinator
