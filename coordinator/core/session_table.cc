#include "coordinator/core/session_table.h"

#include <algorithm>

namespace maypole::coordinator {

ExecutorSession* SessionTable::Add(SessionId id) {
  return &sessions_.emplace(id, ExecutorSession(id)).first->second;
}

ExecutorSession* SessionTable::Find(SessionId id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

ExecutorSession* SessionTable::OfStream(StreamId stream) {
  const auto it = streams_.find(stream);
  return it == streams_.end() ? nullptr : &sessions_.at(it->second);
}

ExecutorSession SessionTable::Remove(SessionId id) {
  ExecutorSession session = std::move(sessions_.extract(id).mapped());
  if (session.deadline) detached_.erase({*session.deadline, id});
  if (session.stream != 0) streams_.erase(session.stream);
  return session;
}

void SessionTable::Clear() {
  streams_.clear();
  sessions_.clear();
  detached_.clear();
}

void SessionTable::Attach(ExecutorSession* session, StreamId stream) {
  if (session->deadline) {
    detached_.erase({*session->deadline, session->id});
    session->deadline.reset();
  }
  if (session->stream != 0) streams_.erase(session->stream);
  session->stream = stream;
  streams_[stream] = session->id;
}

void SessionTable::Detach(ExecutorSession* session, Time deadline) {
  streams_.erase(session->stream);
  session->stream = 0;
  session->deadline = deadline;
  detached_.emplace(deadline, session->id);
}

void SessionTable::Postpone(Time deadline) {
  for (const auto& [old, id] : std::exchange(detached_, {})) {
    sessions_.at(id).deadline = deadline;
    detached_.emplace(deadline, id);
  }
}

uint64_t SessionTable::AcknowledgedDecisions(uint64_t last) const {
  uint64_t acknowledged = last;
  for (const auto& [id, session] : sessions_) {
    if (session.decisions.empty()) continue;
    acknowledged = std::min(acknowledged, session.decisions.front().second - 1);
  }
  return acknowledged;
}

}  // namespace maypole::coordinator
