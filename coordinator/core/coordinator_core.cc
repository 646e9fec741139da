#include "coordinator/core/coordinator_core.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/limits.h"
#include "common/name.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

CoordinatorCore::CoordinatorCore(const Config& config, std::string incarnation)
    : config_(config), directory_(config, std::move(incarnation)) {}

void CoordinatorCore::Do(const Entry& job, Carry carry,
                         absl::FunctionRef<void(JobShard*, Actions*)> event) {
  jobs_visited_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(job->mutex);
  Actions actions;
  event(&job->shard, &actions);
  Settle(job, &actions);
  carry(&actions);
}

void CoordinatorCore::Settle(const Entry& job, Actions* actions) {
  for (const Action& action : *actions) {
    if (const Close* close = std::get_if<Close>(&action)) {
      directory_.Close(close->stream);
    }
  }
  for (const std::string& node : job->shard.TakeFreed()) {
    if (!directory_.Release(job->shard.id(), node)) continue;
    actions->emplace_back(
        Log{Level::kInfo,
            absl::StrCat("event=job_forgotten job=", job->shard.id())});
  }
  deadlines_.Move(job, job->shard.Deadline());
}

// --- Streams -----------------------------------------------------------------

void CoordinatorCore::Received(Time now, StreamId stream,
                               const proto::ExecutorMessage& message,
                               Carry carry) {
  const Directory::Stream known = directory_.Find(stream);
  if (known.is_new) return Hello(now, stream, message, carry);
  if (known.job == nullptr) return;  // closed
  Do(known.job, carry, [&](JobShard* job, Actions* actions) {
    job->Received(now, stream, message, actions);
  });
}

void CoordinatorCore::Ended(Time now, StreamId stream, StreamEnd end,
                            Carry carry) {
  const Directory::Stream known = directory_.Find(stream);
  if (known.job != nullptr) {
    Do(known.job, carry, [&](JobShard* job, Actions* actions) {
      job->Ended(now, stream, end, actions);
    });
  }
  directory_.Forget(stream);
}

void CoordinatorCore::Hello(Time now, StreamId stream,
                            const proto::ExecutorMessage& message,
                            Carry carry) {
  absl::Status status;
  std::string who;
  if (!message.has_hello() || message.sequence() != 0) {
    status = InvalidArgument("the first message of a stream must be a hello");
  } else {
    status = CheckHello(message.hello());
  }
  if (status.ok()) {
    who = absl::StrCat(" job=", message.hello().job(),
                       " node=", message.hello().node());
    status = message.hello().session().empty()
                 ? Open(now, stream, message.hello(), carry)
                 : Resume(now, stream, message, carry);
  }
  if (status.ok()) return;
  Actions actions;
  if (absl::IsInvalidArgument(status)) {
    actions.emplace_back(ErrorCounted{ErrorKind::kBadMessage});
  }
  Refuse(stream, status, who, &actions);
  directory_.Close(stream);
  carry(&actions);
}

absl::Status CoordinatorCore::CheckHello(
    const proto::ExecutorHello& hello) const {
  // The version comes first: another version may use other fields.
  const auto version = SessionVersion(hello, config_);
  if (!version.ok()) return version.status();
  struct Field {
    const char* what;
    const std::string& value;
    size_t limit;
  };
  const Field fields[] = {{"the job id", hello.job(), kMaxJobBytes},
                          {"the node's name", hello.node(), kMaxHostBytes},
                          {"the host's name", hello.host(), kMaxHostBytes}};
  for (const Field& f : fields) {
    // The host may be empty.
    if (&f.value == &hello.host() && f.value.empty()) continue;
    const maypole::Status s = CheckName(f.what, f.value, f.limit);
    if (!s.ok()) return ToAbsl(s);
  }
  const Field others[] = {
      {"a token", hello.token(), kMaxTokenBytes},
      {"a session", hello.session(), kMaxSessionBytes},
      {"an incarnation", hello.incarnation(), kMaxSessionBytes}};
  for (const Field& f : others) {
    if (f.value.size() <= f.limit) continue;
    return InvalidArgument("hello with ", f.what, " of ", f.value.size(),
                           " bytes; ", f.limit, " are allowed");
  }
  return absl::OkStatus();
}

absl::Status CoordinatorCore::Open(Time now, StreamId stream,
                                   const proto::ExecutorHello& hello,
                                   Carry carry) {
  const absl::StatusOr<Entry> entry = directory_.Admit(hello);
  if (!entry.ok()) return entry.status();
  absl::Status status;
  Do(*entry, carry, [&](JobShard* job, Actions* actions) {
    status = job->Open(now, stream, ++last_session_, hello, actions);
    if (status.ok()) directory_.Bind(stream, *entry);
  });
  return status;
}

absl::Status CoordinatorCore::Resume(Time now, StreamId stream,
                                     const proto::ExecutorMessage& message,
                                     Carry carry) {
  const proto::ExecutorHello& hello = message.hello();
  // Its session was with a coordinator before this one (core/recovery).
  if (hello.incarnation() != directory_.incarnation()) {
    return Open(now, stream, hello, carry);
  }
  const Entry entry = directory_.Find(hello.job());
  if (entry == nullptr) return SessionIsOver(hello.node(), config_);
  absl::Status status;
  Do(entry, carry, [&](JobShard* job, Actions* actions) {
    status = job->Resume(now, stream, message, actions);
    if (status.ok()) directory_.Bind(stream, entry);
  });
  return status;
}

// --- All jobs ----------------------------------------------------------------

void CoordinatorCore::Passed(Time now, Carry carry) {
  for (const Entry& entry : deadlines_.Due(now)) {
    Do(entry, carry, [now](JobShard* job, Actions* actions) {
      // Another event may have changed the deadline meanwhile.
      const std::optional<Time> deadline = job->Deadline();
      if (deadline && *deadline <= now) job->OnTime(now, actions);
    });
  }
}

void CoordinatorCore::Stop(Carry carry) {
  for (const Entry& entry : directory_.Stop()) {
    Do(entry, carry,
       [](JobShard* job, Actions* actions) { job->Stop(actions); });
  }
}

std::vector<StragglerNode> CoordinatorCore::TakeStragglerTime(Time now) {
  std::vector<StragglerNode> all;
  for (const Entry& entry : directory_.All()) {
    std::lock_guard lock(entry->mutex);
    entry->shard.TakeStragglerTime(now, &all);
  }
  return all;
}

Totals CoordinatorCore::totals() const {
  Totals totals;
  for (const Entry& entry : directory_.All()) {
    std::lock_guard lock(entry->mutex);
    entry->shard.AddTo(&totals);
  }
  return totals;
}

}  // namespace maypole::coordinator
