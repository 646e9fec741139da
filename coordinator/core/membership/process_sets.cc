#include "coordinator/core/membership/process_sets.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

bool SameRequest(const proto::SetRequest& a, const proto::SetRequest& b) {
  return a.remove() == b.remove() && a.process_set() == b.process_set() &&
         std::ranges::equal(a.ranks(), b.ranks());
}

std::vector<uint32_t> RanksOf(const proto::SetRequest& request) {
  return {request.ranks().begin(), request.ranks().end()};
}

// "ask for [0, 1]", "ask to remove process set 2"
std::string AskText(const proto::SetRequest& request, bool one) {
  if (request.remove()) {
    return absl::StrCat(one ? "asks" : "ask", " to remove process set ",
                        request.process_set());
  }
  return absl::StrCat(one ? "asks" : "ask", " for ",
                      MembersText(RanksOf(request)));
}

// The answer to a request of these members.
proto::SetReply MembersReply(const std::vector<uint32_t>& ranks,
                             const absl::Status& status, uint32_t id) {
  proto::SetReply reply;
  reply.set_by_members(true);
  reply.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  reply.set_process_set(id);
  reply.set_code(static_cast<int>(status.code()));
  if (!status.ok()) {
    reply.set_message(
        Cut(absl::StrCat("process set of ranks ", MembersText(ranks), ": ",
                         status.message()),
            kMaxErrorBytes));
  }
  return reply;
}

}  // namespace

bool RankSet::Has(uint32_t rank) const {
  return std::ranges::binary_search(ranks, rank);
}

size_t RankSet::PositionOf(uint32_t rank) const {
  return static_cast<size_t>(std::ranges::lower_bound(ranks, rank) -
                             ranks.begin());
}

std::string RankSet::Text() const {
  if (id == 0) return absl::StrCat("the job of ", ranks.size(), " ranks");
  return absl::StrCat("process set ", id, " (ranks ", MembersText(ranks), ")");
}

std::string MembersText(const std::vector<uint32_t>& ranks) {
  const auto more = [](size_t n) { return absl::StrCat(", and ", n, " more"); };
  return absl::StrCat("[", ListText(ranks, 16, ", ", std::identity(), more),
                      "]");
}

ProcessSets::ProcessSets(EpochNodes* nodes, const Departures* departures,
                         uint32_t size)
    : nodes_(*nodes), departures_(*departures), size_(size), numbers_(size, 0) {
  std::vector<uint32_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  Add(0, std::move(all));
}

void ProcessSets::Add(uint32_t id, std::vector<uint32_t> ranks) {
  RankSet& set = sets_.emplace_back();
  set.id = id;
  set.ranks = std::move(ranks);
  set.by_node.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const uint32_t rank : nodes_[i].ranks) {
      if (set.Has(rank)) set.by_node[i].push_back(rank);
    }
    if (!set.by_node[i].empty()) set.nodes.push_back(i);
  }
  ids_.emplace(set.ranks, id);
}

const RankSet* ProcessSets::FindEver(uint32_t id) const {
  return id < sets_.size() ? &sets_[id] : nullptr;
}

const RankSet* ProcessSets::Find(uint32_t id) const {
  const RankSet* set = FindEver(id);
  return set == nullptr || set->removed ? nullptr : set;
}

absl::Status ProcessSets::Check(size_t node,
                                const proto::SetRequest& message) const {
  if (!nodes_[node].HasRank(message.rank()) || message.rank() >= size_) {
    return InvalidArgument("a process set request of rank ", message.rank(),
                           ", which is not a rank of the node");
  }
  // After a rank has left, each rank gets its own answers, and another
  // coordinator may not know them.
  if (message.by_members()) {
    const std::vector<uint32_t> ranks = RanksOf(message);
    if (std::ranges::find(ranks, message.rank()) == ranks.end()) {
      return InvalidArgument("rank ", message.rank(),
                             " asks as a member for a process set of ",
                             MembersText(ranks));
    }
    return CheckRanks(ranks);
  }
  if (departures_.ranks().empty() &&
      message.number() != numbers_[message.rank()] + 1) {
    return InvalidArgument("process set request ", message.number(),
                           " of rank ", message.rank(), " after request ",
                           numbers_[message.rank()]);
  }
  if (message.ranks_size() > kMaxRanks) {
    return InvalidArgument("a process set of ", message.ranks_size(),
                           " ranks; ", kMaxRanks, " are allowed");
  }
  if (!asked_.empty() &&
      message.number() >= asked_.begin()->first + kMaxSetRequests) {
    return InvalidArgument("process set request ", message.number(),
                           " of rank ", message.rank(), " while request ",
                           asked_.begin()->first, " has not been answered; ",
                           kMaxSetRequests, " may wait");
  }
  return absl::OkStatus();
}

absl::Status ProcessSets::OnRequest(Time now, size_t node,
                                    const proto::SetRequest& message,
                                    const Busy& busy) {
  absl::Status sound = Check(node, message);
  if (!sound.ok()) return sound;
  if (message.by_members()) return OnMembersRequest(now, node, message);
  numbers_[message.rank()] = message.number();
  if (!departures_.ranks().empty()) {
    Send(node, LeftReply(message.number()));
    return absl::OkStatus();
  }
  Request& request = asked_[message.number()];
  if (++request.count == 1) request.since = now;
  auto group = std::ranges::find_if(request.groups, [&](const Group& g) {
    return SameRequest(g.request, message);
  });
  if (group == request.groups.end()) {
    request.groups.push_back({message, {}});
    group = request.groups.end() - 1;
  }
  group->ranks.push_back(message.rank());
  if (request.count < size_) return absl::OkStatus();
  // A rank's numbers have no gaps: so requests are complete in order.
  Send(std::nullopt, Decide(message.number(), request, busy));
  asked_.erase(message.number());
  return absl::OkStatus();
}

absl::Status ProcessSets::OnMembersRequest(Time now, size_t node,
                                           const proto::SetRequest& message) {
  const std::vector<uint32_t> ranks = RanksOf(message);
  const auto left = std::ranges::find_if(
      ranks, [this](uint32_t rank) { return departures_.Has(rank); });
  if (left != ranks.end()) {
    Send(node, LeftReply(ranks, *left));
    return absl::OkStatus();
  }
  if (const auto same = ids_.find(ranks); same != ids_.end()) {
    Send(node, MembersReply(ranks, absl::OkStatus(), same->second));
    return absl::OkStatus();
  }
  const auto [it, first] = by_members_.try_emplace(ranks);
  if (first && by_members_.size() > kMaxProcessSets) {
    by_members_.erase(it);
    return InvalidArgument(
        "more than ", kMaxProcessSets,
        " process sets were requested by some of their members");
  }
  if (first) it->second.since = now;
  it->second.asked.insert(message.rank());
  if (it->second.asked.size() < ranks.size()) return absl::OkStatus();
  uint32_t id = 0;
  const absl::Status made = Make(ranks, &id);
  Send(std::nullopt, MembersReply(ranks, made, id));
  by_members_.erase(ranks);
  return absl::OkStatus();
}

proto::SetReply ProcessSets::Decide(uint32_t number, const Request& request,
                                    const Busy& busy) {
  const proto::SetRequest& first = request.groups.front().request;
  uint32_t id = first.process_set();
  absl::Status status;
  if (request.groups.size() > 1) {
    status = absl::FailedPreconditionError(DescribeDifference(request));
  } else {
    status = first.remove() ? Remove(first, busy) : Make(RanksOf(first), &id);
  }
  proto::SetReply reply;
  reply.set_number(number);
  reply.set_remove(first.remove());
  reply.set_code(static_cast<int>(status.code()));
  if (!status.ok()) {
    reply.set_message(Cut(
        absl::StrCat("process set request ", number, ": ", status.message()),
        kMaxErrorBytes));
    return reply;
  }
  reply.set_process_set(id);
  const std::vector<uint32_t>& ranks = sets_[id].ranks;
  reply.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return reply;
}

absl::Status ProcessSets::CheckRanks(const std::vector<uint32_t>& ranks) const {
  if (ranks.empty()) {
    return InvalidArgument(
        "a process set needs at least one rank, this one has none");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= size_) {
      return InvalidArgument("rank ", ranks[i], " is not in the job of ", size_,
                             " ranks (0 to ", size_ - 1, ")");
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return InvalidArgument("the ranks ", MembersText(ranks),
                             " are not each there once, in ascending order");
    }
  }
  return absl::OkStatus();
}

absl::Status ProcessSets::Make(std::vector<uint32_t> ranks, uint32_t* id) {
  if (absl::Status s = CheckRanks(ranks); !s.ok()) return s;
  if (auto same = ids_.find(ranks); same != ids_.end()) {
    return InvalidArgument("the ranks ", MembersText(ranks),
                           " are process set ", same->second,
                           " already; use that one");
  }
  if (sets_.size() > kMaxProcessSets) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job has made ", kMaxProcessSets,
        " process sets since init, no more are allowed; use the same sets "
        "again"));
  }
  *id = static_cast<uint32_t>(sets_.size());
  Add(*id, std::move(ranks));
  return absl::OkStatus();
}

absl::Status ProcessSets::Remove(const proto::SetRequest& request,
                                 const Busy& busy) {
  const uint32_t id = request.process_set();
  if (id == 0) {
    return InvalidArgument(
        "process set 0 has all ranks of the job and cannot be removed");
  }
  if (Find(id) == nullptr) {
    return InvalidArgument(
        "there is no process set ", id, " to remove",
        FindEver(id) != nullptr ? "; it was removed before" : "");
  }
  if (busy(id)) {
    return absl::FailedPreconditionError(
        absl::StrCat(sets_[id].Text(),
                     " has an operation that is not complete; wait for it "
                     "before you remove the set"));
  }
  sets_[id].removed = true;
  ids_.erase(sets_[id].ranks);
  return absl::OkStatus();
}

std::string ProcessSets::DescribeDifference(const Request& request) {
  std::vector<Group> groups = request.groups;
  for (Group& g : groups) std::ranges::sort(g.ranks);
  std::ranges::sort(groups, {}, [](const Group& g) { return g.ranks.front(); });
  const auto text = [](const Group& g) {
    return absl::StrCat(RanksText(g.ranks), " ",
                        AskText(g.request, g.ranks.size() == 1));
  };
  const auto more = [](size_t n) {
    return absl::StrCat(" (and ", n, " other requests)");
  };
  return absl::StrCat(
      ListText(groups, 4, ", ", text, more),
      "; every rank must ask for the same sets in the same order");
}

proto::SetReply ProcessSets::LeftReply(uint32_t number) const {
  proto::SetReply reply;
  reply.set_number(number);
  reply.set_code(static_cast<int>(absl::StatusCode::kAborted));
  reply.set_message(
      Cut(absl::StrCat("process set request ", number, ": ",
                       nodes_.RankText(departures_.ranks().front()),
                       " has shut down; every rank of the job "
                       "must ask for a process set"),
          kMaxErrorBytes));
  return reply;
}

proto::SetReply ProcessSets::LeftReply(const std::vector<uint32_t>& ranks,
                                       uint32_t left) const {
  return MembersReply(
      ranks,
      absl::AbortedError(absl::StrCat(nodes_.RankText(left), " has shut down")),
      0);
}

void ProcessSets::Send(std::optional<size_t> node, proto::SetReply reply) {
  if (reply.code() == 0) {
    nodes_.Info(
        reply.remove() ? "process_set_removed" : "process_set_made",
        " process_set=", reply.process_set(), " ranks=",
        LogValue(MembersText({reply.ranks().begin(), reply.ranks().end()})));
  }
  nodes_.SendReply(node, std::move(reply),
                   &proto::CoordinatorMessage::mutable_set_reply);
}

void ProcessSets::OnRankLeft(uint32_t rank) {
  for (const auto& [number, request] : asked_) {
    Send(std::nullopt, LeftReply(number));
  }
  asked_.clear();
  std::erase_if(by_members_, [&](const auto& waiting) {
    const std::vector<uint32_t>& ranks = waiting.first;
    if (!std::ranges::binary_search(ranks, rank)) return false;
    Send(std::nullopt, LeftReply(ranks, rank));
    return true;
  });
}

void ProcessSets::Restore(const proto::NodeState& state) {
  for (const proto::KnownSet& known : state.sets()) {
    Add(known.process_set(), {known.ranks().begin(), known.ranks().end()});
    RankSet& set = sets_.back();
    set.removed = known.removed();
    if (set.removed) ids_.erase(set.ranks);
  }
  std::ranges::fill(numbers_, state.sets_answered());
}

std::vector<ProcessSets::Incomplete> ProcessSets::Waiting() const {
  std::vector<Incomplete> out;
  for (const auto& [number, request] : asked_) {
    Incomplete& i = out.emplace_back();
    i.text = absl::StrCat("process set request ", number);
    i.since = request.since;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      (numbers_[rank] >= number ? i.asked : i.missing).push_back(rank);
    }
  }
  for (const auto& [ranks, members] : by_members_) {
    Incomplete& i = out.emplace_back();
    i.text = absl::StrCat("process set of ranks ", MembersText(ranks));
    i.since = members.since;
    for (const uint32_t rank : ranks) {
      (members.asked.contains(rank) ? i.asked : i.missing).push_back(rank);
    }
  }
  return out;
}

std::optional<ProcessSets::Incomplete> ProcessSets::WaitOf(
    uint32_t rank) const {
  for (Incomplete& request : Waiting()) {
    if (std::ranges::binary_search(request.asked, rank)) {
      return std::move(request);
    }
  }
  return std::nullopt;
}

}  // namespace maypole::coordinator
