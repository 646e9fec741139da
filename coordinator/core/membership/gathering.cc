#include "coordinator/core/membership/gathering.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

std::string Says(const NodeMember& m) {
  std::string out = absl::StrCat(m.Text(), " with ", RanksText(m.ranks));
  if (m.local_size > m.ranks.size()) {
    absl::StrAppend(&out, " (", m.ranks.size(), " of its ", m.local_size,
                    " ranks)");
  }
  return out;
}

const NodeMember* FindIn(const std::vector<NodeMember>& nodes,
                         SessionId session) {
  const auto it = std::ranges::find(nodes, session, &NodeMember::session);
  return it == nodes.end() ? nullptr : &*it;
}

absl::Status CheckStallTimes(const proto::RanksReady& ready) {
  for (const int64_t ms : {ready.stall_check_ms(), ready.stall_shutdown_ms()}) {
    if (ms >= -1 && ms <= kMaxStallMs) continue;
    return InvalidArgument("a stall time of ", ms, " ms; 0 to ", kMaxStallMs,
                           " are allowed");
  }
  return absl::OkStatus();
}

absl::Status CheckStartTimeout(int64_t ms) {
  if (ms >= 0 && ms <= kMaxStartTimeoutMs) return absl::OkStatus();
  return InvalidArgument("a start timeout of ", ms, " ms; 0 (none) to ",
                         kMaxStartTimeoutMs, " are allowed");
}

absl::Status CheckChecksums(uint32_t mode) {
  if (mode <= kMostChecksumMode) return absl::OkStatus();
  return InvalidArgument("checksums in mode ", mode, "; 0 to ",
                         kMostChecksumMode, " are allowed");
}

absl::Status CheckThresholds(const proto::RanksReady& ready, int ranks) {
  if (ready.fusion_thresholds_size() != 0 &&
      ready.fusion_thresholds_size() != ranks) {
    return InvalidArgument(ready.fusion_thresholds_size(),
                           " fusion thresholds for ", ranks, " ranks");
  }
  for (const int64_t bytes : ready.fusion_thresholds()) {
    if (bytes >= -1 && bytes <= static_cast<int64_t>(kMaxTensorBytes)) continue;
    return InvalidArgument("a fusion threshold of ", bytes,
                           " bytes; 0 to 2^44 are allowed");
  }
  return absl::OkStatus();
}

absl::Status CheckLocalRanks(int ranks) {
  if (ranks > 0 && ranks <= kMaxLocalRanks) return absl::OkStatus();
  return InvalidArgument(ranks, " ranks on one node; 1 to ", kMaxLocalRanks,
                         " are allowed");
}

// Checks the values from the environment of `ranks` ranks.
absl::Status CheckRankFacts(const proto::RanksReady& ready, int ranks) {
  absl::Status status = CheckStallTimes(ready);
  if (status.ok()) status = CheckStartTimeout(ready.start_timeout_ms());
  if (status.ok()) status = CheckChecksums(ready.checksums());
  if (status.ok() && ready.chunk_bytes() == 0) {
    status = InvalidArgument("chunks of 0 bytes; at least 4096 are allowed");
  }
  return status.ok() ? CheckThresholds(ready, ranks) : status;
}

absl::Status CheckElasticReady(const proto::RanksReady& ready) {
  const uint32_t limit = kMaxRanks;
  if (ready.members().empty()) return absl::OkStatus();
  if (ready.min_size() < 1 || ready.max_size() < ready.min_size() ||
      ready.max_size() > limit) {
    return InvalidArgument("an elastic job of ", ready.min_size(), " to ",
                           ready.max_size(), " ranks; 1 to ", limit,
                           " are allowed");
  }
  absl::Status status = CheckLocalRanks(ready.members_size());
  if (!status.ok()) return status;
  std::set<uint64_t> clients;
  for (const proto::ElasticMember& m : ready.members()) {
    if (m.rank() < limit && clients.insert(m.client()).second) continue;
    return InvalidArgument("client ", m.client(),
                           " waits twice, or its last rank (", m.rank(),
                           ") is not below ", limit);
  }
  return CheckRankFacts(ready, ready.members_size());
}

}  // namespace

bool NodeMember::HasRank(uint32_t rank) const {
  return std::ranges::find(ranks, rank) != ranks.end();
}

uint32_t NodeMember::SmallestRank() const { return std::ranges::min(ranks); }

std::string NodeMember::Text() const { return NodeText(node, host); }

std::string NodeMember::ExecutorText() const {
  return absl::StrCat("the executor of ", Text(), " with ", RanksText(ranks));
}

std::string NodeMember::RankText(uint32_t rank) const {
  std::string out = absl::StrCat("rank ", rank, " (node ", node);
  if (host != node && !host.empty()) absl::StrAppend(&out, ", host ", host);
  const int64_t pid = PidOf(std::ranges::find(ranks, rank) - ranks.begin());
  if (pid > 0) absl::StrAppend(&out, ", pid ", pid);
  return out + ")";
}

void NodeMember::Read(const proto::RanksReady& ready) {
  chunk_bytes = ready.chunk_bytes();
  stall_check_ms = ready.stall_check_ms();
  stall_shutdown_ms = ready.stall_shutdown_ms();
  start_timeout_ms = ready.start_timeout_ms();
  checksums = ready.checksums();
}

absl::Status CheckRanksReady(const proto::RanksReady& ready) {
  if (ready.elastic()) return CheckElasticReady(ready);
  if (ready.size() == 0 || ready.size() > kMaxRanks) {
    return InvalidArgument("a job of ", ready.size(), " ranks; 1 to ",
                           kMaxRanks, " are allowed");
  }
  absl::Status status = CheckLocalRanks(ready.ranks_size());
  if (!status.ok()) return status;
  if (ready.pids_size() != 0 && ready.pids_size() != ready.ranks_size()) {
    return InvalidArgument(ready.pids_size(), " pids for ", ready.ranks_size(),
                           " ranks");
  }
  return CheckRankFacts(ready, ready.ranks_size());
}

absl::Status CheckRanksWaiting(const proto::RanksWaiting& waiting) {
  if (waiting.size() <= kMaxRanks && waiting.ranks_size() <= kMaxLocalRanks &&
      waiting.local_size() <= kMaxLocalRanks) {
    return CheckStartTimeout(waiting.start_timeout_ms());
  }
  return InvalidArgument(waiting.ranks_size(), " of ", waiting.local_size(),
                         " ranks wait on one node for a job of ",
                         waiting.size(), "; ", kMaxLocalRanks, " and ",
                         kMaxRanks, " are allowed");
}

absl::Status CheckVersions(const std::vector<const NodeMember*>& nodes) {
  VersionRange common = nodes.front()->versions;
  for (const NodeMember* m : nodes) {
    common.oldest = std::max(common.oldest, m->versions.oldest);
    common.newest = std::min(common.newest, m->versions.newest);
  }
  if (common.oldest <= common.newest) return absl::OkStatus();
  std::vector<Speaker> speakers;
  for (const NodeMember* m : nodes) {
    speakers.push_back(
        {absl::StrCat("maypole-worker on ", m->Text()), m->versions});
  }
  uint32_t version = 0;
  return ToAbsl(ChooseVersion(speakers, &version));
}

absl::Status Gathering::Add(NodeMember member, uint32_t size) {
  absl::Status status = CheckAgainstOthers(member, size);
  if (members_.empty()) size_ = size;
  lost_.erase(member.node);
  taken_.insert(member.ranks.begin(), member.ranks.end());
  members_.push_back(std::move(member));
  return status;
}

absl::Status Gathering::CheckAgainstOthers(const NodeMember& member,
                                           uint32_t size) const {
  if (!members_.empty() && size != size_) {
    return InvalidArgument("the job cannot start: ", Says(members_.front()),
                           " says that it has ", size_, " ranks, ",
                           Says(member), " says ", size,
                           "; start all ranks with the same MAYPOLE_SIZE");
  }
  std::vector<const NodeMember*> nodes = {&member};
  for (const NodeMember& m : members_) nodes.push_back(&m);
  absl::Status s = CheckVersions(nodes);
  if (!s.ok()) {
    return absl::Status(s.code(),
                        absl::StrCat("the job cannot start: ", s.message()));
  }
  std::set<uint32_t> own;
  for (uint32_t rank : member.ranks) {
    if (rank >= size) {
      return InvalidArgument("the job cannot start: rank ", rank, " of ",
                             member.Text(), " is not in a job of ", size,
                             " ranks (0 to ", size - 1,
                             "); check MAYPOLE_RANK and MAYPOLE_SIZE");
    }
    if (!own.insert(rank).second) {
      return InvalidArgument("the job cannot start: rank ", rank,
                             " is there twice on ", member.Text(),
                             "; every rank needs its own MAYPOLE_RANK");
    }
    if (!taken_.contains(rank)) continue;
    for (const NodeMember& other : members_) {
      if (!other.HasRank(rank)) continue;
      return InvalidArgument("the job cannot start: rank ", rank,
                             " is there twice, on ", other.Text(), " and on ",
                             member.Text(),
                             "; every rank needs its own MAYPOLE_RANK");
    }
  }
  return absl::OkStatus();
}

void Gathering::SetWaiting(NodeMember member, uint32_t size) {
  Remove(member.session);
  waiting_size_ = size;
  lost_.erase(member.node);
  waiting_.push_back(std::move(member));
}

void Gathering::TakeWaitingIn() {
  if (members_.empty()) size_ = waiting_size_;
  for (NodeMember& m : waiting_) {
    taken_.insert(m.ranks.begin(), m.ranks.end());
    members_.push_back(std::move(m));
  }
  waiting_.clear();
}

void Gathering::Remove(SessionId session) {
  std::erase_if(waiting_,
                [&](const NodeMember& m) { return m.session == session; });
  const auto it = std::ranges::find(members_, session, &NodeMember::session);
  if (it == members_.end()) return;
  for (const uint32_t rank : it->ranks) taken_.erase(taken_.find(rank));
  members_.erase(it);
}

void Gathering::Lose(SessionId session, const std::string& how) {
  if (const NodeMember* m = FindWaiting(session)) {
    lost_[m->node] = absl::StrCat(Says(*m), ", whose executor ", how);
  }
  Remove(session);
}

void Gathering::Clear() {
  lost_.clear();
  members_.clear();
  taken_.clear();
  size_ = 0;
}

const NodeMember* Gathering::Find(SessionId session) const {
  return FindIn(members_, session);
}

const NodeMember* Gathering::FindWaiting(SessionId session) const {
  return FindIn(waiting_, session);
}

size_t Gathering::ranks() const {
  size_t n = taken_.size();
  for (const NodeMember& m : waiting_) n += m.ranks.size();
  return n;
}

Time Gathering::StartTimeout(Time otherwise) const {
  int64_t least = 0;
  for (const std::vector<NodeMember>* all : {&members_, &waiting_}) {
    for (const NodeMember& m : *all) {
      if (m.start_timeout_ms == 0) continue;
      if (least == 0 || m.start_timeout_ms < least) least = m.start_timeout_ms;
    }
  }
  return least == 0 ? otherwise : Time(std::chrono::milliseconds(least));
}

std::string Gathering::MissingText() const {
  std::vector<NodeMember> arrived = members_;
  arrived.insert(arrived.end(), waiting_.begin(), waiting_.end());
  std::set<uint32_t> here;
  for (const NodeMember& m : arrived)
    here.insert(m.ranks.begin(), m.ranks.end());
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (!here.contains(rank)) missing.push_back(rank);
  }
  std::string out = absl::StrCat(RanksText(missing), " of ", size(),
                                 missing.size() == 1 ? " has" : " have",
                                 " not called init(); arrived: ");
  constexpr size_t kShown = 8;
  const auto more = [](size_t n) {
    return absl::StrCat(" and ", n, " more nodes");
  };
  out += ListText(arrived, kShown, ", ", Says, more);
  size_t shown = 0;
  for (const auto& [node, text] : lost_) {
    if (shown++ == kShown) break;
    absl::StrAppend(&out, "; lost again: ", text);
  }
  return out;
}

std::vector<NodeMember> Gathering::Take() {
  std::vector<NodeMember> out = std::move(members_);
  Clear();
  std::ranges::sort(out, {}, &NodeMember::SmallestRank);
  return out;
}

}  // namespace maypole::coordinator
