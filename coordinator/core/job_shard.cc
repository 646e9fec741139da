#include "coordinator/core/job_shard.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/limits.h"
#include "common/program/secret.h"
#include "common/wire/versions.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

void Refuse(StreamId stream, const absl::Status& status, absl::string_view who,
            Actions* actions) {
  proto::CoordinatorMessage message;
  message.mutable_refused()->set_code(static_cast<int>(status.code()));
  message.mutable_refused()->set_message(Cut(status.message(), kMaxErrorBytes));
  actions->emplace_back(Send{stream, std::move(message)});
  actions->emplace_back(Close{stream, status});
  actions->emplace_back(Log{
      Level::kWarning, absl::StrCat("event=session_refused", who,
                                    " reason=", LogValue(status.message()))});
}

absl::StatusOr<uint32_t> SessionVersion(const proto::ExecutorHello& hello,
                                        const Config& config) {
  const std::string executor = absl::StrCat(
      "maypole-worker on node '", Cut(hello.node(), kMaxHostBytes), "'");
  uint32_t version = 0;
  const maypole::Status s = ChooseVersion(
      {{executor, {hello.protocol_version(), hello.newest_version()}},
       {"this coordinator", config.versions}},
      &version);
  if (!s.ok()) return ToAbsl(s);
  return version;
}

absl::Status SessionIsOver(const std::string& node, const Config& config) {
  return absl::NotFoundError(absl::StrCat(
      "this session is over: the executor of node '", node,
      "' did not come back within ", SecondsText(config.resume_timeout)));
}

namespace {

// While executors must come back, the shard checks the clock this often. If
// still no event has come for longer than kStopped, the process did not run. A
// shorter stop makes no call fail: an executor gives a coordinator a second to
// answer (grpc_transport.cc).
constexpr Time kLookPause = std::chrono::milliseconds(250);
constexpr Time kStopped = std::chrono::seconds(1);

std::string BeforeOf(const proto::ExecutorHello& hello) {
  if (hello.session().empty()) return "";
  return absl::StrCat(hello.session(), "@", hello.incarnation());
}

}  // namespace

JobShard::JobShard(std::string id, std::string token, const Config& config,
                   std::string incarnation)
    : id_(std::move(id)),
      token_(std::move(token)),
      config_(config),
      incarnation_(std::move(incarnation)),
      job_(std::make_unique<Job>(id_, config_, &output_)) {}

// --- Executors come and go ---------------------------------------------------

absl::Status JobShard::Open(Time now, StreamId stream, SessionId id,
                            const proto::ExecutorHello& hello,
                            Actions* actions) {
  SetNow(now);
  if (OpensAgain(stream, hello, actions)) {
    freed_.push_back(hello.node());  // it has a place
    return absl::OkStatus();
  }
  if (absl::Status able = CheckOpen(hello); !able.ok()) {
    freed_.push_back(hello.node());
    return able;
  }
  if (const auto same = job_->SessionOf(hello.node())) Replace(*same, actions);
  ExecutorSession& session = *sessions_.Add(id);
  session.node = hello.node();
  session.host = hello.host().empty() ? hello.node() : hello.host();
  session.version = *SessionVersion(hello, config_);  // it has been checked
  session.before = BeforeOf(hello);
  job_->Join(now_,
             {.session = id,
              .node = session.node,
              .host = session.host,
              .address = hello.seen_address(),
              .versions = {hello.protocol_version(), hello.newest_version()},
              .version = session.version});
  if (!session.before.empty()) job_->Await(now_, id, session.node);
  Note(Level::kInfo, session,
       session.before.empty() ? "session_opened" : "session_taken_over",
       absl::StrCat("protocol=", session.version), actions);
  Welcome(&session, stream, actions);
  return absl::OkStatus();
}

bool JobShard::OpensAgain(StreamId stream, const proto::ExecutorHello& hello,
                          Actions* actions) {
  const auto same = job_->SessionOf(hello.node());
  if (!same || !EqualSecrets(token_, hello.token())) return false;
  ExecutorSession& session = sessions_.at(*same);
  if (session.before.empty() || session.before != BeforeOf(hello) ||
      session.link.received() > 0) {
    return false;
  }
  CloseOldStream(session, actions);
  session.link.Reset();
  session.decisions.clear();
  session.state.clear();
  Welcome(&session, stream, actions);
  return true;
}

absl::Status JobShard::CheckOpen(const proto::ExecutorHello& hello) const {
  if (!EqualSecrets(token_, hello.token())) {
    return absl::PermissionDeniedError(absl::StrCat(
        "job '", id_,
        "' is there with another token; use another job id, or the same "
        "MAYPOLE_TOKEN on all nodes of the job"));
  }
  if (const auto same = job_->SessionOf(hello.node())) {
    const ExecutorSession& session = sessions_.at(*same);
    if (session.stream == 0) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(
        "node '", hello.node(), "' is in job '", id_, "' already (from host ",
        session.host, "); ",
        session.host == hello.host()
            ? "if its agent was restarted, call init() again when the ranks "
              "that run there have left the job or ended, else "
            : "",
        "give every worker its own --node"));
  }
  if (sessions_.size() >= kMaxNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job '", id_, "' has ", kMaxNodes,
                     " nodes already, which is the limit"));
  }
  return absl::OkStatus();
}

void JobShard::Replace(SessionId id, Actions* actions) {
  Lose(id, "was replaced by a new one", absl::OkStatus(), actions);
  if (!empty()) return;
  // It was the last session: the job starts over.
  actions->emplace_back(
      Log{Level::kInfo, absl::StrCat("event=job_forgotten job=", id_)});
  job_ = std::make_unique<Job>(id_, config_, &output_);
}

absl::Status JobShard::Resume(Time now, StreamId stream,
                              const proto::ExecutorMessage& message,
                              Actions* actions) {
  SetNow(now);
  const proto::ExecutorHello& hello = message.hello();
  SessionId id = 0;
  ExecutorSession* const found =
      absl::SimpleAtoi(hello.session(), &id) ? sessions_.Find(id) : nullptr;
  if (found == nullptr || found->node != hello.node() ||
      !EqualSecrets(token_, hello.token())) {
    return SessionIsOver(hello.node(), config_);
  }
  ExecutorSession& session = *found;
  if (session.link.OnReceived(0, message.acknowledged()) == Receipt::kBadAck) {
    return InvalidArgument("a resume that acknowledges message ",
                           message.acknowledged(), ", the last one sent is ",
                           session.link.sent());
  }
  if (session.stream != 0) {  // the old stream's end has not been seen yet
    PauseRelays(absl::StrCat("stream of node ", session.node), actions);
  }
  CloseOldStream(session, actions);
  actions->emplace_back(Reconnected{});
  Note(Level::kInfo, session, "session_resumed",
       absl::StrCat("resent=", session.link.unacknowledged()), actions);
  Welcome(&session, stream, actions);
  session.link.Resend([&](const Outgoing& m) {
    actions->emplace_back(Send{stream, m});
  });
  return absl::OkStatus();
}

void JobShard::CloseOldStream(const ExecutorSession& session,
                              Actions* actions) const {
  if (session.stream == 0) return;
  actions->emplace_back(Close{
      session.stream, absl::AbortedError("a newer stream has taken over")});
}

void JobShard::Welcome(ExecutorSession* session, StreamId stream,
                       Actions* actions) {
  sessions_.Attach(session, stream);
  proto::CoordinatorMessage message;
  message.mutable_welcome()->set_session(absl::StrCat(session->id));
  message.mutable_welcome()->set_incarnation(incarnation_);
  message.mutable_welcome()->set_protocol_version(session->version);
  actions->emplace_back(Send{stream, session->link.Bare(message)});
}

void JobShard::Ended(Time now, StreamId stream, StreamEnd end,
                     Actions* actions) {
  SetNow(now);
  ExecutorSession* session = sessions_.OfStream(stream);
  if (session == nullptr) return;
  if (end == StreamEnd::kFinished && !job_->Needs(session->id)) {
    return Lose(session->id, "has ended its connection", absl::OkStatus(),
                actions);
  }
  PauseRelays(absl::StrCat("stream of node ", session->node), actions);
  sessions_.Detach(session, now_ + config_.resume_timeout);
  Note(Level::kWarning, *session, "stream_broken", "", actions);
}

// --- Messages ----------------------------------------------------------------

void JobShard::Received(Time now, StreamId stream,
                        const proto::ExecutorMessage& message,
                        Actions* actions) {
  SetNow(now);
  ExecutorSession* session = sessions_.OfStream(stream);
  if (session == nullptr) return;
  if (message.has_hello()) {
    return BreakOff(session, InvalidArgument("a second hello on a stream"),
                    actions);
  }
  const Receipt receipt =
      session->link.OnReceived(message.sequence(), message.acknowledged());
  while (!session->decisions.empty() &&
         session->decisions.front().first <= session->link.acknowledged()) {
    session->decisions.pop_front();
  }
  absl::Status status;
  switch (receipt) {
    case Receipt::kNew:
      Payload(session, message, actions);
      return HandleHeld(actions);
    case Receipt::kUnnumbered:
      if (message.payload_case() == proto::ExecutorMessage::PAYLOAD_NOT_SET) {
        return;
      }
      status = InvalidArgument("a payload without a number");
      break;
    case Receipt::kDuplicate:
      return;
    case Receipt::kGap:
      status = InvalidArgument("message ", message.sequence(),
                               " after message ", session->link.received());
      break;
    case Receipt::kBadAck:
      status = InvalidArgument("acknowledges message ", message.acknowledged(),
                               ", the last one sent is ", session->link.sent());
      break;
  }
  BreakOff(session, status, actions);
}

void JobShard::Payload(ExecutorSession* session,
                       const proto::ExecutorMessage& message,
                       Actions* actions) {
  const SessionId id = session->id;
  absl::Status status;
  if (message.has_rank_gone() || message.has_failed()) {
    EndRelays(absl::StrCat("node ", session->node, " leaves"), actions);
  }
  if (!session->state.empty() && !message.has_node_state_part()) {
    status =
        InvalidArgument("another message between the parts of a node's state");
  } else if (message.has_node_state_part()) {
    status = TakeStatePart(session, message.node_state_part(), actions);
  } else if (message.has_relays_ready()) {
    status = BeginRelays(*session, message.epoch(), actions);
  } else if (job_->recovering() && !message.has_node_state()) {
    // Bounded: an executor that has sent its state waits for Recovered, and a
    // new one only reports which of its ranks wait.
    if (held_bytes_ + message.SpaceUsedLong() > kMaxHeldBytes) {
      status = absl::ResourceExhaustedError(
          "too many messages while the job recovers");
    } else {
      held_.emplace_back(id, message);
      held_bytes_ += held_.back().second.SpaceUsedLong();
    }
  } else {
    status = job_->Handle(now_, id, message);
    Deliver(actions);
  }
  session = sessions_.Find(id);
  if (session == nullptr) return;  // Deliver() has ended it
  if (!status.ok()) return BreakOff(session, status, actions);
  if (session->link.AckDue() && session->stream != 0) {
    actions->emplace_back(Send{session->stream, session->link.Bare({})});
  }
}

absl::Status JobShard::TakeStatePart(ExecutorSession* session,
                                     const proto::NodeStatePart& part,
                                     Actions* actions) {
  std::string& state = session->state;
  if (part.piece().empty() ||
      part.piece().size() > kMaxNodeStateBytes - state.size()) {
    return InvalidArgument(
        "a part of ", part.piece().size(), " bytes of a node's state, after ",
        state.size(), "; 1 to ", kMaxNodeStateBytes, " in all are allowed");
  }
  state += part.piece();
  if (!part.last()) return absl::OkStatus();
  proto::ExecutorMessage message;
  if (!message.mutable_node_state()->ParseFromString(
          std::exchange(state, {}))) {
    return InvalidArgument(
        "parts of a node's state that are no NodeState together");
  }
  absl::Status status = job_->Handle(now_, session->id, message);
  Deliver(actions);
  return status;
}

void JobShard::HandleHeld(Actions* actions) {
  while (!job_->recovering() && !held_.empty()) {
    const auto [id, message] = std::move(held_.front());
    held_.pop_front();
    held_bytes_ -= message.SpaceUsedLong();
    if (ExecutorSession* const session = sessions_.Find(id)) {
      Payload(session, message, actions);
    }
  }
}

void JobShard::BreakOff(ExecutorSession* session, const absl::Status& status,
                        Actions* actions) {
  actions->emplace_back(ErrorCounted{ErrorKind::kBadMessage});
  const absl::Status told(
      status.code(),
      absl::StrCat("the executor of ", NodeText(session->node, session->host),
                   " broke the protocol: ", status.message()));
  Lose(session->id, absl::StrCat("broke the protocol: ", status.message()),
       told, actions);
}

void JobShard::Lose(SessionId id, const std::string& how,
                    const absl::Status& status, Actions* actions) {
  EndRelays("lost session", actions);
  const ExecutorSession session = sessions_.Remove(id);
  std::erase_if(held_, [&](const auto& held) {
    if (held.first != id) return false;
    held_bytes_ -= held.second.SpaceUsedLong();
    return true;
  });
  if (session.stream != 0 && status.ok()) {
    actions->emplace_back(Close{session.stream, status});
  } else if (session.stream != 0) {
    Refuse(session.stream, status,
           absl::StrCat(" job=", id_, " node=", session.node), actions);
  }
  Note(Level::kInfo, session, "session_ended",
       absl::StrCat("reason=", LogValue(how)), actions);
  freed_.push_back(session.node);
  job_->Lost(now_, id, how);
  Deliver(actions);
  if (!empty()) HandleHeld(actions);
}

void JobShard::Deliver(Actions* actions) {
  JobOutput output = std::exchange(output_, {});
  if (relays_ && (job_->epoch() == nullptr ||
                  job_->epoch()->number() != relays_->epoch())) {
    EndRelays("epoch over", actions);
  }
  std::vector<SessionId> behind;
  std::optional<uint64_t> settled;
  for (auto& [id, message] : output.messages) {
    ExecutorSession* const found = sessions_.Find(id);
    if (found == nullptr) continue;
    ExecutorSession& session = *found;
    const uint64_t first = message.first_decision();
    const uint64_t last = message.last_decision();
    if (first != 0) {
      if (!settled) settled = sessions_.AcknowledgedDecisions(last_decision_);
      message.set_settled(*settled);
    }
    const Outgoing* m = session.link.Push(std::move(message));
    if (m == nullptr) {
      behind.push_back(id);
      continue;
    }
    if (first != 0) session.decisions.emplace_back(m->sequence(), first);
    last_decision_ = std::max(last_decision_, last);
    if (session.stream == 0 || (relays_ && relays_->Take(id, *m))) continue;
    actions->emplace_back(Send{session.stream, *m});
  }
  if (relays_) {
    for (auto& [id, message] : relays_->TakeMessages(now_)) {
      if (message.sequence() == 0) actions->emplace_back(MessageRelayed{});
      actions->emplace_back(Send{sessions_.at(id).stream, std::move(message)});
    }
  }
  std::move(output.facts.begin(), output.facts.end(),
            std::back_inserter(*actions));
  for (const SessionId id : behind) {
    if (sessions_.Find(id) == nullptr) continue;
    Lose(id, "was lost: it does not receive its messages",
         absl::ResourceExhaustedError(
             absl::StrCat("the executor has ", kMaxUnacknowledged,
                          " messages that it does not acknowledge")),
         actions);
  }
}

void JobShard::Note(Level level, const ExecutorSession& session,
                    absl::string_view event, absl::string_view more,
                    Actions* actions) const {
  std::string line =
      absl::StrCat("event=", event, " job=", id_, " node=", session.node,
                   " host=", session.host, " session=", session.id);
  if (!more.empty()) absl::StrAppend(&line, " ", more);
  actions->emplace_back(Log{level, std::move(line)});
}

// --- Relayed messages (docs/relays.md) ---------------------------------------

absl::Status JobShard::BeginRelays(const ExecutorSession& session,
                                   uint64_t number, Actions* actions) {
  const CoordinatorEpoch* const epoch = job_->epoch();
  // The message may have crossed the epoch's end.
  if (epoch == nullptr || epoch->number() != number) {
    return absl::OkStatus();
  }
  if (epoch->nodes().members().front().session != session.id) {
    return InvalidArgument("only the first node says that relays are ready");
  }
  // All nodes must have all their ranks.
  if (epoch->RelayFanOut() == 0 || !epoch->departures().ranks().empty() ||
      !epoch->nodes().AllConnected()) {
    return absl::OkStatus();
  }
  std::vector<SessionId> nodes;
  for (const NodeMember& m : epoch->nodes().members())
    nodes.push_back(m.session);
  relays_.emplace(epoch->number(), std::move(nodes), epoch->RelayFanOut(),
                  incarnation_);
  Note(Level::kInfo, session, "relays_begun",
       absl::StrCat("epoch=", epoch->number()), actions);
  if (sessions_.any_detached()) PauseRelays("not all nodes connected", actions);
  return absl::OkStatus();
}

void JobShard::PauseRelays(absl::string_view why, Actions* actions) {
  if (!relays_ || !relays_->active()) return;
  relays_->Pause(now_);
  actions->emplace_back(Log{
      Level::kInfo, absl::StrCat("event=relays_paused job=", id_, " epoch=",
                                 relays_->epoch(), " reason=", LogValue(why))});
  for (const SessionId id : relays_->nodes()) {
    ExecutorSession* const session = sessions_.Find(id);
    if (session == nullptr || session->stream == 0) continue;
    session->link.Resend([&](const Outgoing& m) {
      actions->emplace_back(Send{session->stream, m});
    });
  }
}

void JobShard::EndRelays(absl::string_view why, Actions* actions) {
  PauseRelays(why, actions);
  relays_.reset();
}

void JobShard::CheckRelays(Actions* actions) {
  if (!relays_ || !relays_->Deadline() || now_ < *relays_->Deadline()) return;
  const auto late = relays_->Late(
      [this](SessionId id) { return sessions_.at(id).link.acknowledged(); });
  if (!relays_->active()) {
    if (late || sessions_.any_detached()) return relays_->Pause(now_);
    return relays_->Resume();
  }
  if (!late) return relays_->Checked();
  const ExecutorSession& node = sessions_.at(relays_->nodes()[*late]);
  PauseRelays(absl::StrCat("node ", node.node, " does not acknowledge"),
              actions);
}

// --- Time --------------------------------------------------------------------

void JobShard::SetNow(Time now) {
  const Time before = now_;
  now_ = std::max(now_, now);
  if (!Waits() || now_ - before <= kStopped) return;
  const Time deadline = now_ + config_.resume_timeout;
  sessions_.Postpone(deadline);
  job_->PostponeRecovery(deadline);
}

std::optional<Time> JobShard::Deadline() const {
  if (empty()) return std::nullopt;
  std::optional<Time> next = job_->Deadline();
  if (sessions_.any_detached()) {
    next = Earlier(next, sessions_.FirstDetached().first);
  }
  if (Waits()) next = Earlier(next, now_ + kLookPause);
  if (relays_) next = Earlier(next, relays_->Deadline());
  return next;
}

void JobShard::OnTime(Time now, Actions* actions) {
  SetNow(now);
  const std::string how = absl::StrCat(
      "was lost: its connection broke and did not come back "
      "within ",
      SecondsText(config_.resume_timeout));
  while (sessions_.any_detached() && sessions_.FirstDetached().first <= now_) {
    Lose(sessions_.FirstDetached().second, how, absl::OkStatus(), actions);
  }
  if (empty()) return;
  CheckRelays(actions);
  job_->OnTime(now_);
  Deliver(actions);
  if (!empty()) HandleHeld(actions);
}

// --- The operator ------------------------------------------------------------

void JobShard::Stop(Actions* actions) {
  constexpr char kStopped[] = "the coordinator was stopped by its operator";
  job_->Stop(kStopped);
  Deliver(actions);
  for (const auto& [id, session] : sessions_.all()) {
    if (session.stream == 0) continue;
    actions->emplace_back(
        Close{session.stream, absl::UnavailableError(kStopped)});
  }
  sessions_.Clear();
  held_.clear();
  held_bytes_ = 0;
}

void JobShard::Change(Time now, absl::FunctionRef<void(Job*, Time)> change,
                      Actions* actions) {
  SetNow(now);
  change(job_.get(), now_);
  Deliver(actions);
}

std::vector<std::string> JobShard::TakeFreed() {
  return std::exchange(freed_, {});
}

void JobShard::AddTo(Totals* totals) const {
  if (empty()) return;
  ++totals->jobs;
  totals->nodes += sessions_.size();
  const CoordinatorEpoch* const epoch = job_->epoch();
  if (epoch == nullptr) return;
  totals->ranks += epoch->departures().live();
  totals->pending_operations += epoch->pending();
  totals->late_ranks += epoch->stragglers().ranks();
  totals->late_operations += epoch->stragglers().operations();
  totals->frozen_jobs += epoch->frozen() ? 1 : 0;
}

void JobShard::TakeStragglerTime(Time now, std::vector<StragglerNode>* all) {
  SetNow(now);
  CoordinatorEpoch* const epoch = job_->epoch();
  for (const auto& [id, session] : sessions_.all()) {
    Time late{};
    if (epoch != nullptr) {
      if (const auto node = epoch->nodes().IndexOf(id)) {
        late = epoch->straggler_time().Take(now_, *node);
      }
    }
    all->push_back({id_, session.node, late});
  }
}

void JobShard::FillStatus(Time now, proto::JobStatus* status) const {
  job_->FillStatus(std::max(now_, now), status);
  for (proto::NodeStatus& node : *status->mutable_nodes()) {
    const std::optional<SessionId> session = job_->SessionOf(node.node());
    node.set_connected(session && sessions_.at(*session).stream != 0);
  }
}

}  // namespace maypole::coordinator
