// SessionTable: the sessions of a job's executors, by id, by stream, and by the
// time at which those without a stream are lost.
//
// Thread contract: not synchronized; pure.
//
// Invariants: a stream belongs to at most one session. A session has either a
// stream or a deadline.
#ifndef MAYPOLE_COORDINATOR_CORE_SESSION_TABLE_H_
#define MAYPOLE_COORDINATOR_CORE_SESSION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/wire/link.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outgoing.h"

namespace maypole::coordinator {

struct ExecutorSession {
  explicit ExecutorSession(SessionId i) : id(i), link(kMaxUnacknowledged) {}
  SessionId id;
  std::string node;
  std::string host;
  uint32_t version = 0;
  Link<Outgoing> link;
  StreamId stream = 0;           // 0: detached
  std::optional<Time> deadline;  // when detached
  // Its session with another coordinator, "SESSION@INCARNATION"; empty: none.
  std::string before;
  // Messages with decisions that are not acknowledged: their numbers, and the
  // first decision of each.
  std::deque<std::pair<uint64_t, uint64_t>> decisions;
  std::string state;  // the parts of its NodeState, until the last has come
};

class SessionTable {
 public:
  bool empty() const { return sessions_.empty(); }
  size_t size() const { return sessions_.size(); }
  const std::map<SessionId, ExecutorSession>& all() const { return sessions_; }

  // Without a stream until Attach(). A pointer is valid until Remove().
  ExecutorSession* Add(SessionId id);
  ExecutorSession* Find(SessionId id);  // null: there is none
  ExecutorSession& at(SessionId id) { return sessions_.at(id); }
  const ExecutorSession& at(SessionId id) const { return sessions_.at(id); }
  // The session of a stream; null: none, or it has another stream by now.
  ExecutorSession* OfStream(StreamId stream);
  ExecutorSession Remove(SessionId id);
  void Clear();

  void Attach(ExecutorSession* session, StreamId stream);
  void Detach(ExecutorSession* session, Time deadline);

  bool any_detached() const { return !detached_.empty(); }
  // The detached session with the earliest deadline; call it only if there is
  // one.
  std::pair<Time, SessionId> FirstDetached() const {
    return *detached_.begin();
  }
  void Postpone(Time deadline);  // of all that are detached

  // The number up to which all nodes have received all decisions. `last`: the
  // last decision's number.
  uint64_t AcknowledgedDecisions(uint64_t last) const;

 private:
  std::map<SessionId, ExecutorSession> sessions_;
  std::unordered_map<StreamId, SessionId> streams_;
  std::set<std::pair<Time, SessionId>> detached_;  // by deadline
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_SESSION_TABLE_H_
