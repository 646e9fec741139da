#include "coordinator/core/core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

Core::Core(const Config& config, std::string incarnation)
    : config_(config), incarnation_(std::move(incarnation)) {}

void Core::Received(Time now, StreamId stream,
                    const proto::ExecutorMessage& message, Actions* actions) {
  now_ = now;
  auto it = streams_.find(stream);
  if (it == streams_.end()) return Hello(now, stream, message, actions);
  Session* session = &sessions_.at(it->second);
  if (message.has_hello()) {
    return BreakOff(session,
                    absl::InvalidArgumentError("a second hello on a stream"),
                    actions);
  }
  switch (
      session->link.OnReceived(message.sequence(), message.acknowledged())) {
    case Receipt::kNew:
      return Payload(now, session, message, actions);
    case Receipt::kUnnumbered:
      if (message.payload_case() == proto::ExecutorMessage::PAYLOAD_NOT_SET) {
        return;
      }
      return BreakOff(session,
                      absl::InvalidArgumentError("a payload without a number"),
                      actions);
    case Receipt::kDuplicate:
      return;
    case Receipt::kGap:
      return BreakOff(session,
                      absl::InvalidArgumentError(absl::StrCat(
                          "message ", message.sequence(), " after message ",
                          session->link.received())),
                      actions);
    case Receipt::kBadAck:
      return BreakOff(session,
                      absl::InvalidArgumentError(absl::StrCat(
                          "acknowledges message ", message.acknowledged(),
                          ", the last one sent is ", session->link.sent())),
                      actions);
  }
}

void Core::Payload(Time now, Session* session,
                   const proto::ExecutorMessage& message, Actions* actions) {
  const SessionId id = session->id;
  JobOutput output;
  const absl::Status status = session->job->Handle(now, id, message, &output);
  Deliver(std::move(output), actions);
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return;  // lost by what it caused
  session = &it->second;
  if (!status.ok()) return BreakOff(session, status, actions);
  if (session->link.AckDue() && session->stream != 0) {
    actions->emplace_back(Send{session->stream, session->link.Bare({})});
  }
}

void Core::Hello(Time now, StreamId stream,
                 const proto::ExecutorMessage& message, Actions* actions) {
  absl::Status status;
  std::string who;
  if (!message.has_hello() || message.sequence() != 0) {
    status = absl::InvalidArgumentError(
        "the first message of a stream must be a hello");
  } else {
    status = CheckHello(message.hello());
  }
  if (status.ok()) {
    who = absl::StrCat(" job=", message.hello().job(),
                       " node=", message.hello().node());
    status = message.hello().session().empty()
                 ? Open(stream, message.hello(), actions)
                 : Resume(stream, message, actions);
  }
  if (status.ok()) return;
  if (absl::IsInvalidArgument(status)) {
    actions->emplace_back(ErrorCounted{ErrorKind::kBadMessage});
  }
  Refuse(stream, status, who, actions);
}

absl::Status Core::CheckHello(const proto::ExecutorHello& hello) const {
  // First of all: nothing else can be trusted to mean what it says.
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the executor of node '", Cut(hello.node(), kMaxHostBytes),
                     "' speaks protocol version ", hello.protocol_version(),
                     ", this coordinator speaks ", kProtocolVersion,
                     "; run the same version of Maypole on all nodes"));
  }
  struct Field {
    const char* what;
    const std::string& value;
    size_t limit;
    bool required;
  };
  const Field fields[] = {{"job id", hello.job(), kMaxJobBytes, true},
                          {"node", hello.node(), kMaxHostBytes, true},
                          {"host", hello.host(), kMaxHostBytes, false}};
  for (const Field& f : fields) {
    if (f.value.size() <= f.limit && IsPlainName(f.value) &&
        !(f.required && f.value.empty())) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("hello with a bad ", f.what, " ",
                     LogValue(Cut(f.value, f.limit)), ": up to ", f.limit,
                     " printable ASCII characters without spaces or "
                     "quotes are allowed"));
  }
  if (hello.token().size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello with a token of ", hello.token().size(), " bytes; ",
                     kMaxTokenBytes, " are allowed"));
  }
  return absl::OkStatus();
}

Job* Core::FindJob(const std::string& id) {
  auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : it->second.get();
}

absl::Status Core::Open(StreamId stream, const proto::ExecutorHello& hello,
                        Actions* actions) {
  if (absl::Status able = CheckDrained(hello); !able.ok()) return able;
  if (sessions_.size() >= kMaxSessions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator serves ", kMaxSessions,
        " executors already, which is its limit; try again later"));
  }
  if (Job* job = FindJob(hello.job())) {
    if (!EqualSecrets(job->token(), hello.token())) {
      return absl::PermissionDeniedError(absl::StrCat(
          "job '", hello.job(),
          "' is there with another token; use another job id, or the same "
          "MAYPOLE_TOKEN on all nodes of the job"));
    }
    if (const auto same = job->SessionOf(hello.node())) {
      if (sessions_.at(*same).stream != 0) {
        return absl::AlreadyExistsError(
            absl::StrCat("node '", hello.node(), "' is in job '", hello.job(),
                         "' already (from host ", sessions_.at(*same).host,
                         "); give every worker its own --node"));
      }
      // A new executor in its place: the detached one will not come back.
      Lose(*same, "was replaced by a new one", absl::OkStatus(), actions);
    }
  }
  Job* job = FindJob(hello.job());
  if (job == nullptr && jobs_.size() >= kMaxJobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the coordinator serves ", kMaxJobs,
                     " jobs already, which is its limit; try again later"));
  }
  if (job != nullptr && job->nodes() >= kMaxNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job '", hello.job(), "' has ", kMaxNodes,
                     " nodes already, which is the limit"));
  }
  if (job == nullptr) {
    auto made = std::make_unique<Job>(hello.job(), hello.token(), config_);
    job = made.get();
    jobs_.emplace(hello.job(), std::move(made));
  }
  const SessionId id = ++last_session_;
  Session& session = sessions_.emplace(id, Session(id)).first->second;
  session.job = job;
  session.node = hello.node();
  session.host = hello.host().empty() ? hello.node() : hello.host();
  job->Join(now_, session.id,
            {session.node, session.host, hello.seen_address()});
  Note(Level::kInfo, session, "session_opened", "", actions);
  Welcome(&session, stream, actions);
  return absl::OkStatus();
}

absl::Status Core::Resume(StreamId stream,
                          const proto::ExecutorMessage& message,
                          Actions* actions) {
  const proto::ExecutorHello& hello = message.hello();
  if (hello.incarnation() != incarnation_) {
    return absl::NotFoundError(
        "the coordinator has been restarted since and does not know this "
        "session");
  }
  SessionId id = 0;
  auto it = absl::SimpleAtoi(hello.session(), &id) ? sessions_.find(id)
                                                   : sessions_.end();
  if (it == sessions_.end() || it->second.node != hello.node() ||
      it->second.job->id() != hello.job() ||
      !EqualSecrets(it->second.job->token(), hello.token())) {
    return absl::NotFoundError(absl::StrCat(
        "this session is over: the executor of node '", hello.node(),
        "' did not come back within ", SecondsText(config_.resume_timeout)));
  }
  Session& session = it->second;
  if (session.link.OnReceived(0, message.acknowledged()) == Receipt::kBadAck) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a resume that acknowledges message ", message.acknowledged(),
        ", the last one sent is ", session.link.sent()));
  }
  if (session.stream != 0) {  // the old stream's end has not been seen yet
    streams_.erase(session.stream);
    actions->emplace_back(Close{
        session.stream, absl::AbortedError("a newer stream has taken over")});
  }
  actions->emplace_back(Reconnected{});
  Note(Level::kInfo, session, "session_resumed",
       absl::StrCat("resent=", session.link.unacknowledged()), actions);
  Welcome(&session, stream, actions);
  session.link.Resend([&](const proto::CoordinatorMessage& m) {
    actions->emplace_back(Send{stream, m});
  });
  return absl::OkStatus();
}

void Core::Welcome(Session* session, StreamId stream, Actions* actions) {
  session->stream = stream;
  session->deadline.reset();
  streams_[stream] = session->id;
  proto::CoordinatorMessage message;
  message.mutable_welcome()->set_session(absl::StrCat(session->id));
  message.mutable_welcome()->set_incarnation(incarnation_);
  actions->emplace_back(Send{stream, session->link.Bare(std::move(message))});
}

void Core::Refuse(StreamId stream, const absl::Status& status,
                  absl::string_view who, Actions* actions) {
  proto::CoordinatorMessage message;
  message.mutable_refused()->set_code(static_cast<int>(status.code()));
  message.mutable_refused()->set_message(Cut(status.message(), kMaxErrorBytes));
  actions->emplace_back(Send{stream, std::move(message)});
  actions->emplace_back(Close{stream, status});
  actions->emplace_back(Log{
      Level::kWarning, absl::StrCat("event=session_refused", who,
                                    " reason=", LogValue(status.message()))});
}

void Core::Ended(Time now, StreamId stream, StreamEnd end, Actions* actions) {
  now_ = now;
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  Session& session = sessions_.at(it->second);
  if (end == StreamEnd::kFinished && !session.job->Needs(session.id)) {
    return Lose(session.id, "has ended its connection", absl::OkStatus(),
                actions);
  }
  streams_.erase(it);
  session.stream = 0;
  session.deadline = now + config_.resume_timeout;
  Note(Level::kWarning, session, "stream_broken", "", actions);
}

void Core::Passed(Time now, Actions* actions) {
  now_ = now;
  std::vector<SessionId> lost;
  for (const auto& [id, session] : sessions_) {
    if (session.deadline && *session.deadline <= now) lost.push_back(id);
  }
  const std::string how = absl::StrCat(
      "was lost: its connection broke and did not come back "
      "within ",
      SecondsText(config_.resume_timeout));
  for (SessionId id : lost) {
    if (sessions_.contains(id)) Lose(id, how, absl::OkStatus(), actions);
  }
  JobOutput output;
  for (auto& [id, job] : jobs_) job->OnTime(now, &output);
  Deliver(std::move(output), actions);
}

std::optional<Time> Core::Deadline() const {
  std::optional<Time> next;
  auto consider = [&next](const std::optional<Time>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  for (const auto& [id, session] : sessions_) consider(session.deadline);
  for (const auto& [id, job] : jobs_) consider(job->Deadline());
  return next;
}

void Core::BreakOff(Session* session, const absl::Status& status,
                    Actions* actions) {
  actions->emplace_back(ErrorCounted{ErrorKind::kBadMessage});
  const absl::Status told(
      status.code(),
      absl::StrCat("the executor of ", NodeText(session->node, session->host),
                   " broke the protocol: ", status.message()));
  Lose(session->id, absl::StrCat("broke the protocol: ", status.message()),
       told, actions);
}

void Core::Lose(SessionId id, const std::string& how,
                const absl::Status& status, Actions* actions) {
  Session session = std::move(sessions_.extract(id).mapped());
  if (session.stream != 0) {
    streams_.erase(session.stream);
    if (status.ok()) {
      actions->emplace_back(Close{session.stream, status});
    } else {
      Refuse(session.stream, status,
             absl::StrCat(" job=", session.job->id(), " node=", session.node),
             actions);
    }
  }
  Note(Level::kInfo, session, "session_ended",
       absl::StrCat("reason=", LogValue(how)), actions);
  const std::string job_id = session.job->id();
  JobOutput output;
  session.job->Lost(now_, id, how, &output);
  Deliver(std::move(output), actions);
  // Delivering may have lost the other sessions and the job with them.
  const Job* job = FindJob(job_id);
  if (job != nullptr && job->empty()) Forget(job_id, actions);
}

void Core::Forget(const std::string& job, Actions* actions) {
  actions->emplace_back(
      Log{Level::kInfo, absl::StrCat("event=job_forgotten job=", job)});
  for (auto& [node, kept] : drained_) kept.erase(job);
  jobs_.erase(job);
}

void Core::Deliver(JobOutput output, Actions* actions) {
  std::vector<SessionId> behind;
  for (auto& [id, message] : output.messages) {
    auto it = sessions_.find(id);
    if (it == sessions_.end()) continue;
    Session& session = it->second;
    const proto::CoordinatorMessage* m = session.link.Push(std::move(message));
    if (m == nullptr) {
      behind.push_back(id);
    } else if (session.stream != 0) {
      actions->emplace_back(Send{session.stream, *m});
    }
  }
  std::move(output.facts.begin(), output.facts.end(),
            std::back_inserter(*actions));
  for (SessionId id : behind) {
    if (!sessions_.contains(id)) continue;
    Lose(id, "was lost: it does not receive its messages",
         absl::ResourceExhaustedError(
             absl::StrCat("the executor has ", kMaxUnacknowledged,
                          " messages that it does not acknowledge")),
         actions);
  }
}

void Core::Stop(Actions* actions) {
  JobOutput output;
  for (auto& [id, job] : jobs_) {
    job->Stop("the coordinator was stopped by its operator", &output);
  }
  Deliver(std::move(output), actions);
  const absl::Status status =
      absl::UnavailableError("the coordinator was stopped by its operator");
  for (const auto& [stream, session] : streams_) {
    actions->emplace_back(Close{stream, status});
  }
  streams_.clear();
  sessions_.clear();
  jobs_.clear();
}

std::vector<NodeLate> Core::TakeLateness(Time now) {
  std::vector<NodeLate> all;
  for (const auto& [id, session] : sessions_) {
    all.push_back(
        {session.job->id(), session.node, session.job->TakeLateness(now, id)});
  }
  return all;
}

Totals Core::totals() const {
  Totals t;
  t.jobs = jobs_.size();
  t.nodes = sessions_.size();
  for (const auto& [id, job] : jobs_) {
    t.ranks += job->live_ranks();
    t.pending_operations += job->pending();
    t.late_ranks += job->late_ranks();
    t.late_operations += job->late_operations();
  }
  return t;
}

void Core::Note(Level level, const Session& session, absl::string_view event,
                absl::string_view more, Actions* actions) const {
  std::string line = absl::StrCat(
      "event=", event, " job=", session.job->id(), " node=", session.node,
      " host=", session.host, " session=", session.id);
  if (!more.empty()) absl::StrAppend(&line, " ", more);
  actions->emplace_back(Log{level, std::move(line)});
}

}  // namespace maypole::coordinator
