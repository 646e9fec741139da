#include "worker/core/membership.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace maypole::worker {
namespace {

// Bounds that hold for any Hello.
absl::Status CheckAlone(const session::Hello& h) {
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, ": ", what...));
  };
  if (h.size < 1 || h.size > kMaxRanks) {
    return bad("a job has 1 to ", kMaxRanks, " ranks, MAYPOLE_SIZE says ",
               h.size);
  }
  if (h.local_size < 1 || h.local_size > kMaxLocalRanks ||
      h.local_size > h.size) {
    return bad("a node has 1 to ", kMaxLocalRanks,
               " of the job's ranks, MAYPOLE_LOCAL_SIZE says ", h.local_size);
  }
  if (h.rank < 0 || h.rank >= h.size) {
    return bad("MAYPOLE_RANK must be from 0 to ", h.size - 1);
  }
  if (h.local_rank < 0 || h.local_rank >= h.local_size) {
    return bad("MAYPOLE_LOCAL_RANK must be from 0 to ", h.local_size - 1,
               ", it is ", h.local_rank);
  }
  if (h.fusion_threshold < -1 ||
      h.fusion_threshold > static_cast<int64_t>(kMaxTensorBytes)) {
    return bad("a fusion threshold of ", h.fusion_threshold,
               " bytes; 0 to 2^44 are allowed");
  }
  if (h.stall_check_ms < -1 || h.stall_shutdown_ms < -1) {
    return bad("a stall check after ", h.stall_check_ms,
               " ms and a shutdown after ", h.stall_shutdown_ms,
               " ms; they must not be negative");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Membership::CheckAgainstFirst(const session::Hello& h) const {
  const Member& first = members_.begin()->second;
  if (h.size != size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " says that the job has ", h.size,
                     " ranks, rank ", first.rank, " has said ", size_,
                     "; give all ranks the same MAYPOLE_SIZE"));
  }
  if (h.local_size != local_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " says that the node has ", h.local_size,
                     " ranks, rank ", first.rank, " has said ", local_size_,
                     "; give all ranks of a node the same MAYPOLE_LOCAL_SIZE"));
  }
  if (const Member* m = FindRank(h.rank)) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", h.rank, " is connected already (pid ", m->pid,
                     "); is the job started twice with one MAYPOLE_JOB?"));
  }
  if (const auto it = members_.find(h.local_rank); it != members_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", h.rank, " has local rank ", h.local_rank,
                     ", and so has rank ", it->second.rank,
                     "; each rank of a node needs its own MAYPOLE_LOCAL_RANK"));
  }
  return absl::OkStatus();
}

absl::Status Membership::Add(ClientId client, const session::Hello& h,
                             int visible_pid) {
  if (absl::Status s = CheckAlone(h); !s.ok()) return s;
  if (members_.empty()) {
    size_ = h.size;
    local_size_ = h.local_size;
  } else if (absl::Status s = CheckAgainstFirst(h); !s.ok()) {
    return s;
  }
  members_[h.local_rank] = {client,
                            h.rank,
                            h.local_rank,
                            h.pid,
                            visible_pid,
                            h.host,
                            h.fusion_threshold,
                            h.stall_check_ms,
                            h.stall_shutdown_ms};
  return absl::OkStatus();
}

const Member* Membership::Find(ClientId client) const {
  for (const auto& [local, m] : members_) {
    if (m.client == client) return &m;
  }
  return nullptr;
}

const Member* Membership::FindRank(int rank) const {
  for (const auto& [local, m] : members_) {
    if (m.rank == rank) return &m;
  }
  return nullptr;
}

void Membership::Remove(ClientId client) {
  if (const Member* m = Find(client)) members_.erase(m->local_rank);
}

bool Membership::complete() const {
  return !members_.empty() &&
         members_.size() == static_cast<size_t>(local_size_);
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
