#include "client/launcher/job/rank_table.h"

#include <algorithm>
#include <vector>

#include "client/launcher/hosts/placement.h"
#include "client/launcher/job/start_progress.h"

namespace maypole::launcher {
namespace {

constexpr size_t kMostNamed = 4;  // ranks, of a kind, in one message

// "BEGIN a, b, c, d, 3 more": at most kMostNamed of the items.
template <typename Item, typename Text>
std::string List(const std::vector<Item>& items, const std::string& begin,
                 const std::string& between, const std::string& more,
                 Text text_of) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    text += i == 0 ? begin : between;
    if (i == kMostNamed) {
      return text + std::to_string(items.size() - i) + more;
    }
    text += text_of(items[i]);
  }
  return text;
}

std::string HostOf(const RankTable::Place& place) {
  return place.host.empty() ? NodeName(place.node) : place.host;
}

}  // namespace

int RankTable::awaited() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(),
                    [](const auto& rank) { return !rank.second.joined; }));
}

std::string RankTable::Who(int number) const {
  const Rank& rank = ranks_.at(number);
  return noun_ + " " + std::to_string(number) + " (" +
         (rank.pid == 0 ? "" : "pid " + std::to_string(rank.pid) + ", ") +
         (rank.place.host.empty() ? "" : "host ") + HostOf(rank.place) + ")";
}

std::string RankTable::DescribeAwaited() const {
  std::map<int, std::vector<int>> awaited_of;  // by node
  for (const auto& [number, rank] : ranks_) {
    if (!rank.joined) awaited_of[rank.place.node].push_back(number);
  }
  std::vector<std::string> nodes;
  for (const auto& [node, missing] : awaited_of) {
    nodes.push_back(HostOf(ranks_.at(missing[0]).place) +
                    (missing.size() == 1 ? " (rank " : " (ranks ") +
                    RankGroups(missing) + ")");
  }
  const int all = static_cast<int>(ranks_.size());
  return std::to_string(all - awaited()) + " of " + std::to_string(all) +
         " ranks have called init(); waiting for " + FirstOf(nodes);
}

std::string RankTable::DescribeFailure(const Supervision& supervision,
                                       const EarlyLeavers& leavers,
                                       bool daemon_lost) const {
  const auto describe = [this](const Supervision::Failure& failure) {
    return Who(failure.rank) + " " + Describe(failure.exit);
  };
  const Supervision::Failure& first = *supervision.first_failure();
  // Of several ranks that were killed at once, any may be the cause.
  const std::string text =
      describe(first) + List(supervision.also_killed(), "; ", "; ",
                             " more were killed by signals", describe);
  if (!first.maypole_error) {
    // Ranks for which the failed one may have waited.
    const std::string left =
        List(leavers.named(), "; long before, ", ", ", " more",
             [this](int rank) { return Who(rank); });
    return text + left + (left.empty() ? "" : " had exited with code 0");
  }
  if (daemon_lost) return text;
  return text +
         List(supervision.suspects(),
              " after a Maypole error, which another rank may have caused: ",
              ", ", " more", [this](const Supervision::Suspect& suspect) {
                return Who(suspect.rank) + (suspect.exited_well
                                                ? " exited with code 0"
                                                : " had to be stopped");
              });
}

}  // namespace maypole::launcher
