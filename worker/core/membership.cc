#include "worker/core/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/absl_status.h"
#include "common/checksum/checksum_mode.h"

namespace maypole::worker {
namespace {

absl::Status CheckTimes(const session::Hello& h) {
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, ": ", what...));
  };
  if (h.fusion_threshold < -1 ||
      h.fusion_threshold > static_cast<int64_t>(kMaxTensorBytes)) {
    return bad("the fusion threshold is ", h.fusion_threshold,
               " bytes; it must be from 0 to 2^44");
  }
  if (h.stall_check_ms < -1 || h.stall_shutdown_ms < -1) {
    return bad("the stall check is after ", h.stall_check_ms,
               " ms and the stall shutdown after ", h.stall_shutdown_ms,
               " ms; both must not be negative");
  }
  if (h.checksums > kMostChecksumMode) {
    return bad("it asks for checksums in mode ", h.checksums,
               ", which there is not");
  }
  if (h.start_timeout_ms < -1 || h.start_timeout_ms == 0 ||
      h.start_timeout_ms > kMaxStartTimeoutMs) {
    return bad("the start timeout is ", h.start_timeout_ms,
               " ms; it must be from 1 ms to one day");
  }
  return absl::OkStatus();
}

// Checks the bounds that hold for every Hello of a job that is not elastic.
absl::Status CheckAlone(const session::Hello& h) {
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, ": ", what...));
  };
  if (h.size < 1 || h.size > kMaxRanks) {
    return bad("MAYPOLE_SIZE must be from 1 to ", kMaxRanks, ", it is ",
               h.size);
  }
  if (h.local_size < 1 || h.local_size > kMaxLocalRanks ||
      h.local_size > h.size) {
    return bad("MAYPOLE_LOCAL_SIZE must be from 1 to ", kMaxLocalRanks,
               " and at most MAYPOLE_SIZE, it is ", h.local_size);
  }
  if (h.rank < 0 || h.rank >= h.size) {
    return bad("MAYPOLE_RANK must be from 0 to ", h.size - 1);
  }
  if (h.local_rank < 0 || h.local_rank >= h.local_size) {
    return bad("MAYPOLE_LOCAL_RANK must be from 0 to ", h.local_size - 1,
               ", it is ", h.local_rank);
  }
  return CheckTimes(h);
}

absl::Status CheckElasticAlone(const session::Hello& h) {
  if (h.min_size < 1 || h.max_size < h.min_size || h.max_size > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an elastic job has 1 to ", kMaxRanks, " ranks; a range from ",
        h.min_size, " to ", h.max_size, " is not possible"));
  }
  if (h.last_epoch > 0 && (h.rank < 0 || h.rank >= kMaxRanks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " of epoch ", h.last_epoch,
                     " cannot return: ranks must be 0 to ", kMaxRanks - 1));
  }
  return CheckTimes(h);
}

std::string SizesText(int min_size, int max_size) {
  return absl::StrCat(min_size, " to ", max_size, " ranks");
}

}  // namespace

absl::Status Membership::CheckAgainstFirst(const session::Hello& h) const {
  const LocalMember& first = members_.begin()->second;
  if (h.size != size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " says that the job has ", h.size,
                     " ranks, but rank ", first.rank, " says ", size_,
                     "; give all ranks of the job the same MAYPOLE_SIZE"));
  }
  if (h.local_size != local_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " says that the node has ", h.local_size,
                     " ranks, but rank ", first.rank, " says ", local_size_,
                     "; give all ranks of a node the same MAYPOLE_LOCAL_SIZE"));
  }
  if (const LocalMember* m = FindRank(h.rank)) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", h.rank, " is connected already (pid ", m->pid,
                     "); was the job started twice with one MAYPOLE_JOB?"));
  }
  if (const auto it = members_.find(h.local_rank); it != members_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " has local rank ", h.local_rank,
                     ", which is also that of rank ", it->second.rank,
                     "; each rank of a node needs its own MAYPOLE_LOCAL_RANK"));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckElastic(const session::Hello& h) const {
  if (h.min_size != min_size_ || h.max_size != max_size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the process (pid ", h.pid, ") says that the job has ",
        SizesText(h.min_size, h.max_size), ", but others on this node say ",
        SizesText(min_size_, max_size_),
        "; start all ranks with the same smallest and greatest number"));
  }
  if (members_.size() >= kMaxLocalRanks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxLocalRanks,
                     " processes of the job are already waiting on this node, "
                     "which is the limit"));
  }
  for (const auto& [local, m] : members_) {
    if (h.last_epoch == 0 || m.last_epoch != h.last_epoch ||
        m.last_rank != h.rank || m.pid != h.pid) {
      continue;
    }
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", h.rank, " of epoch ", h.last_epoch,
                     " has already returned (pid ", m.pid, ")"));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckVersions(const session::Hello& h) const {
  const auto name = [](int rank, int pid) {
    return rank < 0 ? absl::StrCat("libmaypole of the process with pid ", pid)
                    : absl::StrCat("libmaypole of rank ", rank);
  };
  std::vector<Speaker> all = {
      {name(h.elastic != 0 ? -1 : h.rank, h.pid), session::VersionsOf(h)}};
  for (const auto& [local, m] : members_) {
    all.push_back({name(m.rank, m.pid), m.versions});
  }
  uint32_t version = 0;
  const maypole::Status s = ChooseVersion(all, &version);
  if (s.ok()) return absl::OkStatus();
  return ToAbsl(maypole::Status(
      s.code(),
      "the ranks of a node must have a version in common: " + s.message()));
}

absl::Status Membership::Add(ClientId client, const session::Hello& h,
                             int visible_pid) {
  const bool is_elastic = h.elastic != 0;
  absl::Status s = is_elastic ? CheckElasticAlone(h) : CheckAlone(h);
  if (!s.ok()) return s;
  if (members_.empty()) {
    size_ = h.size;
    local_size_ = h.local_size;
    min_size_ = h.min_size;
    max_size_ = h.max_size;
  } else if (is_elastic != elastic()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the process (pid ", h.pid, ") is ", is_elastic ? "" : "not ",
        "elastic, but others on this node are", is_elastic ? " not" : "",
        "; start all ranks of a job alike"));
  } else {
    s = is_elastic ? CheckElastic(h) : CheckAgainstFirst(h);
    if (s.ok()) s = CheckVersions(h);
    if (!s.ok()) return s;
  }
  LocalMember m{client,
                h.rank,
                h.local_rank,
                h.pid,
                visible_pid,
                h.host,
                h.fusion_threshold,
                h.stall_check_ms,
                h.stall_shutdown_ms,
                h.start_timeout_ms,
                h.checksums};
  m.versions = session::VersionsOf(h);
  if (is_elastic) {
    m.elastic = true;
    m.last_epoch = h.last_epoch;
    m.last_rank = std::exchange(m.rank, -1);
    m.local_rank = arrivals_++;
  }
  members_[m.local_rank] = std::move(m);
  return absl::OkStatus();
}

Membership Membership::TakeOut(const std::vector<ClientId>& clients,
                               const std::vector<int>& ranks, int size) {
  Membership out;
  out.size_ = size;
  out.local_size_ = static_cast<int>(clients.size());
  out.min_size_ = min_size_;
  out.max_size_ = max_size_;
  for (size_t i = 0; i < clients.size(); ++i) {
    LocalMember m = *Find(clients[i]);
    Remove(clients[i]);
    m.rank = ranks[i];
    m.local_rank = static_cast<int>(i);
    out.members_[m.local_rank] = std::move(m);
  }
  return out;
}

void Membership::TakeBack(Membership members) {
  if (members_.empty()) {
    min_size_ = members.min_size_;
    max_size_ = members.max_size_;
  }
  for (auto& [local, m] : members.members_) {
    m.rank = -1;
    m.local_rank = arrivals_++;
    members_[m.local_rank] = std::move(m);
  }
}

const LocalMember* Membership::Find(ClientId client) const {
  for (const auto& [local, m] : members_) {
    if (m.client == client) return &m;
  }
  return nullptr;
}

const LocalMember* Membership::FindRank(int rank) const {
  for (const auto& [local, m] : members_) {
    if (m.rank == rank) return &m;
  }
  return nullptr;
}

void Membership::SetFinished(ClientId client, bool finished) {
  for (auto& [local, m] : members_) {
    if (m.client == client) m.finished = finished;
  }
}

void Membership::SetLeaveReason(ClientId client, const std::string& why) {
  for (auto& [local, m] : members_) {
    if (m.client == client) m.leave_reason = why;
  }
}

void Membership::Remove(ClientId client) {
  if (const LocalMember* m = Find(client)) members_.erase(m->local_rank);
}

bool Membership::complete() const {
  return elastic() || (!members_.empty() &&
                       members_.size() == static_cast<size_t>(local_size_));
}

int64_t Membership::StartTimeoutMs(int64_t otherwise) const {
  int64_t least = -1;
  for (const auto& [local, m] : members_) {
    if (m.start_timeout_ms < 0) continue;
    if (least < 0 || m.start_timeout_ms < least) least = m.start_timeout_ms;
  }
  return least < 0 ? otherwise : least;
}

uint32_t Membership::BoardVersion(uint32_t newest) const {
  for (const auto& [local, m] : members_) {
    newest = std::min(newest, m.versions.newest);
  }
  return newest;
}

std::string Membership::MissingText() const {
  std::vector<int> missing;
  for (int i = 0; i < local_size_; ++i) {
    if (!members_.contains(i)) missing.push_back(i);
  }
  return absl::StrCat(missing.size() == 1 ? "local rank " : "local ranks ",
                      absl::StrJoin(missing, ","), " of ", local_size_,
                      missing.size() == 1 ? " has" : " have",
                      " not called init()");
}

}  // namespace maypole::worker
