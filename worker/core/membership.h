// Membership: the ranks of one node that gather for an epoch.
//
// Purpose: checks each Hello on its own and against the earlier ones. A wrong
// Hello is refused with a message and does not affect other ranks.
//
// Elastic ranks have no rank numbers until an epoch assigns them: while they
// gather, they are kept in order of arrival, with rank -1.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_MEMBERSHIP_H_
#define MAYPOLE_WORKER_CORE_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/session_messages.h"
#include "worker/core/actions.h"

namespace maypole::worker {

struct LocalMember {
  ClientId client = 0;
  int rank = 0;
  int local_rank = 0;
  int pid = 0;          // as the client sees itself; for messages
  int visible_pid = 0;  // in our PID namespace, 0 if it is outside
  std::string host;
  // In these four fields, -1 means that the rank's environment does not set it.
  int64_t fusion_threshold = -1;
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  int64_t start_timeout_ms = -1;
  uint32_t checksums = 0;  // ChecksumMode that the rank wants
  bool elastic = false;
  uint64_t last_epoch = 0;   // elastic; 0 if the rank is new
  int last_rank = -1;        // its rank in last_epoch
  VersionRange versions;     // that its libmaypole speaks
  bool finished = false;     // elastic: the rank says it has trained to the end
  std::string leave_reason;  // the error that makes it leave; empty: none
};

class Membership {
 public:
  // Returns an error, meant for this client, and changes nothing if the Hello
  // is wrong.
  absl::Status Add(ClientId client, const session::Hello& hello,
                   int visible_pid);
  // These return null if there is no such member.
  const LocalMember* Find(ClientId client) const;
  const LocalMember* FindRank(int rank) const;
  void Remove(ClientId client);
  // Does nothing if there is no such member.
  void SetFinished(ClientId client, bool finished);
  void SetLeaveReason(ClientId client, const std::string& why);

  bool empty() const { return members_.empty(); }
  // True if all local ranks are there; always true for elastic ranks.
  bool complete() const;
  bool elastic() const {
    return !members_.empty() && members_.begin()->second.elastic;
  }
  int min_size() const { return min_size_; }  // elastic
  int max_size() const { return max_size_; }
  // Elastic: removes `clients`, which must all be members, and returns them as
  // the members of an epoch of `size` ranks: clients[i] gets ranks[i] and local
  // rank i.
  Membership TakeOut(const std::vector<ClientId>& clients,
                     const std::vector<int>& ranks, int size);
  // Elastic: adds members again that TakeOut() has removed.
  void TakeBack(Membership members);
  int size() const { return size_; }
  int local_size() const { return local_size_; }
  // By local rank.
  const std::map<int, LocalMember>& members() const { return members_; }
  // The shortest start timeout of the members, or `otherwise` if none sets it.
  int64_t StartTimeoutMs(int64_t otherwise) const;
  // The version of their board: the smallest of the members', at most `newest`.
  uint32_t BoardVersion(uint32_t newest) const;
  // "local ranks 1,3 of 4 have not called init()"
  std::string MissingText() const;

 private:
  absl::Status CheckAgainstFirst(const session::Hello& hello) const;
  absl::Status CheckElastic(const session::Hello& hello) const;
  // The ranks of a node have one board, so they need a version in common.
  absl::Status CheckVersions(const session::Hello& hello) const;

  int size_ = 0;
  int local_size_ = 0;
  int min_size_ = 0;
  int max_size_ = 0;
  int arrivals_ = 0;  // of elastic ranks
  std::map<int, LocalMember> members_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_MEMBERSHIP_H_
