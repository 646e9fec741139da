#include "tests/fuzz/executors.h"

#include <algorithm>
#include <memory>
#include <variant>

#include "common/limits.h"
#include "coordinator/core/limits.h"

namespace maypole::fuzz {

using coordinator::StreamId;

namespace {

constexpr uint32_t kNodes = 3;

coordinator::Config MakeConfig() {
  coordinator::Config config;
  config.frozen_nodes = 2;  // three nodes follow a schedule in a tree
  config.start_timeout = std::chrono::seconds(10);
  config.stall_check = std::chrono::seconds(1);
  config.fusion_threshold = 4096;
  return config;
}

std::string KeyOf(const proto::Identity& i) {
  return IdentityKey(i.process_set(), i.kind(), i.name());
}

}  // namespace

std::vector<uint32_t> Player::OwnRanks() const {
  if (start.node_index() >= static_cast<uint32_t>(start.nodes_size())) {
    return {};
  }
  const auto& ranks = start.nodes(static_cast<int>(start.node_index())).ranks();
  return {ranks.begin(), ranks.end()};
}

Coordinated::Coordinated(Feed* feed)
    : feed_(*feed), core_(MakeConfig(), "incarnation") {
  Player& other = players_.emplace_back();
  other.job = "undisturbed";
  other.node = "n0";
  other.token = "own";
  other.undisturbed = true;
  undisturbed_ = &other;
  Open(&other, false);
  proto::ExecutorMessage ready;
  ready.mutable_ranks_ready()->set_size(2);
  ready.mutable_ranks_ready()->set_chunk_bytes(4096);
  ready.mutable_ranks_ready()->add_ranks(0);
  ready.mutable_ranks_ready()->add_ranks(1);
  Say(&other, ready, true);
  Expect(other.epoch == 1, "the undisturbed job starts");
  undisturbed_heard_ = other.link.received();

  const uint8_t kind = feed_.Byte();
  const uint32_t nodes = 1 + kind % kNodes;
  checksums_ = kind < 192 ? 0 : kind < 208 ? 1 : kind < 224 ? 2 : 0;
  gpus_ = kind >= 224;
  const bool elastic = feed_.OnceIn(4);
  for (uint32_t i = 0; i < nodes; ++i) {
    Player& p = players_.emplace_back();
    p.job = "job";
    p.token = "secret";
    p.index = i;
    p.node = "n" + std::to_string(i);
    p.elastic = elastic;
    Open(&p, false);
  }
  if (feed_.OnceIn(8)) {
    if (feed_.OnceIn(2)) Recover();
    return;
  }
  // Straight into a running epoch.
  for (Player& p : players_) {
    if (p.undisturbed || p.session.empty()) continue;
    Say(&p, p.elastic ? ElasticReady(&p) : Ready(&p), true);
  }
  if (elastic) Pass();
  for (Player& p : players_) {
    if (!p.undisturbed && p.epoch != 0 && p.start.nodes_size() > 1) {
      Say(&p, Endpoint(&p), true);
    }
  }
  // Later, other operations are pending, and there is rarely a schedule.
  if (kind >= 128) Freeze();
}

Player& Coordinated::Any() {
  return players_[1 + feed_.Byte() % (players_.size() - 1)];
}

void Coordinated::Event() {
  Player& p = Any();
  switch (feed_.Below(16)) {
    case 0:
      return Pass();
    case 1:
      return Break(&p);
    case 4:
    case 5:
      return Together();
    case 2:
      if (p.stream == 0) return Open(&p, !p.session.empty());
      if (feed_.OnceIn(8)) Open(&p, true);  // before the old stream's end
      return;
    case 3:
      if (players_.size() < 8 && feed_.OnceIn(8)) {
        Player& q = players_.emplace_back(Player());
        q.job = feed_.OnceIn(2) ? "undisturbed" : "job";
        q.token = feed_.OnceIn(4) ? "other" : "secret";
        q.index = feed_.Below(kNodes);
        q.node = "n" + std::to_string(q.index);
        q.elastic = feed_.OnceIn(4);
        return Open(&q, false);
      }
      return Operator();
    default:
      if (p.stream == 0) return Open(&p, !p.session.empty());
      Say(&p, Make(&p));
  }
}

void Coordinated::Operator() {
  switch (feed_.Below(4)) {
    case 0:
      return core_.Watch(now_, "job", carry_);
    case 1: {
      proto::RecordTimelineRequest request;
      request.set_job("job");
      request.set_stop(feed_.OnceIn(2));
      request.set_who(std::string(feed_.Take(4)));
      (void)core_.RecordTimeline(now_, request, carry_);
      return;
    }
    case 2: {
      proto::StatusRequest request;
      request.set_job(feed_.OnceIn(2) ? "job" : "");
      request.set_stats(true);
      proto::StatusReply arrived;
      const auto reply = core_.Status(now_, request);
      if (reply.ok()) Expect(Transmit(*reply, &arrived), "a status arrives");
      return;
    }
    default:
      (void)core_.totals();
  }
}

void Coordinated::Finish() {
  Expect(undisturbed_->link.received() == undisturbed_heard_ &&
             undisturbed_->stream != 0,
         "the undisturbed job has heard of nothing");
  proto::ExecutorMessage gone;
  gone.set_epoch(1);
  gone.mutable_rank_gone()->set_clean(true);
  Say(undisturbed_, gone, true);
  Expect(undisturbed_->link.received() == undisturbed_heard_ + 1,
         "the undisturbed job goes on");
  const coordinator::Totals totals = core_.totals();
  // A session of a dishonest hello may outlive its stream; its player has
  // another one by then.
  Expect(totals.jobs <= totals.nodes && totals.nodes <= opened_,
         "jobs and executors are counted");
  core_.Stop(carry_);
  Expect(streams_.empty(), "a stop closes all streams");
}

// --- Streams -----------------------------------------------------------------

void Coordinated::Open(Player* p, bool resume) {
  if (p->stream != 0) streams_.erase(p->stream);
  p->stream = ++last_stream_;
  streams_[p->stream] = p;
  proto::ExecutorMessage m;
  proto::ExecutorHello* hello = m.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_newest_version(kProtocolVersion);
  hello->set_job(p->job);
  hello->set_node(p->node);
  hello->set_token(p->token);
  if (resume) {
    hello->set_session(p->session);
    hello->set_incarnation(p->incarnation);
  } else {
    ++opened_;
    Renew(p);
  }
  if (!p->undisturbed && feed_.OnceIn(32)) {
    const uint64_t value = feed_.Number();
    switch (feed_.Below(5)) {
      case 0:
        hello->set_protocol_version(static_cast<uint32_t>(value));
        break;
      case 1:
        hello->set_job(std::string(feed_.Take(70)));
        break;
      case 2:
        hello->set_session(std::to_string(value));
        break;
      case 3:
        hello->set_host(std::string(feed_.Take(80)));
        break;
      default:
        p->lied = true;
        m.set_acknowledged(value);
        return Deliver(p, m);
    }
  }
  const StreamId stream = p->stream;
  Deliver(p, resume ? p->link.Bare(m) : m);
  if (p->stream != stream || !resume) return;
  std::vector<proto::ExecutorMessage> again;
  p->link.Resend([&](const proto::ExecutorMessage& r) { again.push_back(r); });
  for (const proto::ExecutorMessage& r : again) {
    if (p->stream == stream) Deliver(p, r);
  }
}

void Coordinated::Renew(Player* p) {
  Player fresh;
  fresh.job = p->job;
  fresh.node = p->node;
  fresh.token = p->token;
  fresh.index = p->index;
  fresh.undisturbed = p->undisturbed;
  fresh.elastic = p->elastic;
  fresh.stream = p->stream;
  std::destroy_at(p);
  std::construct_at(p, std::move(fresh));
}

void Coordinated::Break(Player* p) {
  if (p->stream == 0 || p->undisturbed) return;
  const StreamId stream = std::exchange(p->stream, 0);
  streams_.erase(stream);
  core_.Ended(now_, stream,
              feed_.OnceIn(4) ? coordinator::StreamEnd::kFinished
                              : coordinator::StreamEnd::kBroken,
              carry_);
}

void Coordinated::Say(Player* p, proto::ExecutorMessage message, bool honest) {
  if (p->stream == 0 || p->session.empty()) return;
  if (!honest && feed_.OnceIn(64)) {
    p->lied = true;
    message.set_sequence(feed_.Number());
    message.set_acknowledged(feed_.Number());
    return Deliver(p, message);
  }
  const proto::ExecutorMessage* m = p->link.Push(std::move(message));
  if (m != nullptr) Deliver(p, proto::ExecutorMessage(*m));
}

void Coordinated::Deliver(Player* p, const proto::ExecutorMessage& message) {
  proto::ExecutorMessage arrived;
  if (!Transmit(message, &arrived)) return Break(p);
  const StreamId stream = p->stream;
  const bool in_epoch = p->epoch != 0 && !p->over;
  core_.Received(now_, stream, arrived, carry_);
  if (p->stream != stream) return;
  // Messages of an epoch that is over are dropped unread.
  if (in_epoch || arrived.has_hello() || arrived.has_ranks_ready() ||
      arrived.has_ranks_waiting() || arrived.has_node_state() ||
      arrived.has_node_state_part()) {
    NoteReached(arrived, OneofOf<proto::ExecutorMessage>("payload"));
  }
  for (const proto::Decision& d : arrived.node_state().decisions()) {
    NoteReached(d, OneofOf<proto::Decision>("what"));
  }
}

void Coordinated::Pass() {
  // To the next deadline, or some time.
  const auto deadline = core_.Deadline();
  if (deadline && feed_.OnceIn(2)) {
    now_ = std::max(now_, *deadline);
  } else {
    now_ += std::chrono::milliseconds(uint64_t{1} << feed_.Below(15));
  }
  for (int i = 0; i == 0 || (core_.Deadline() && *core_.Deadline() <= now_);
       ++i) {
    Expect(i < 16, "what is due is done, and not due again at once");
    core_.Passed(now_, carry_);
  }
}

// --- Answers ----------------------------------------------------------------

void Coordinated::Carry(const coordinator::Actions& actions) {
  for (const coordinator::Action& action : actions) {
    if (const auto* send = std::get_if<coordinator::Send>(&action)) {
      Expect(send->message.ByteSize() <= coordinator::kMaxSentBytes,
             "a message has a bound");
      proto::CoordinatorMessage arrived;
      Expect(Transmit(send->message.ToMessage(), &arrived),
             "what is sent arrives");
      const auto it = streams_.find(send->stream);
      if (it != streams_.end()) Receive(it->second, arrived);
    } else if (const auto* close = std::get_if<coordinator::Close>(&action)) {
      const auto it = streams_.find(close->stream);
      if (it == streams_.end()) continue;
      Player* p = it->second;
      streams_.erase(it);
      p->stream = 0;
      // Its session is over, or a message about its end is on its way.
      p->session.clear();
    } else if (const auto* log = std::get_if<coordinator::Log>(&action)) {
      Expect(log->line.find('\n') == std::string::npos,
             "a log line is one line");
      Expect(log->line.size() < 20000, "a log line has a bound");
    }
  }
}

void Coordinated::Receive(Player* p, const proto::CoordinatorMessage& m) {
  if (m.has_welcome()) {
    p->session = m.welcome().session();
    p->incarnation = m.welcome().incarnation();
  }
  if (m.has_refused()) {
    p->session.clear();
    return;
  }
  const Receipt receipt = p->link.OnReceived(m.sequence(), m.acknowledged());
  Expect(p->lied || (receipt != Receipt::kGap && receipt != Receipt::kBadAck),
         "the coordinator's numbers have no gaps");
  if (receipt == Receipt::kNew) Payload(p, m);
}

void Coordinated::Answered(Player* p, const std::string& key,
                           uint32_t generation) {
  if (p->unanswered.erase({key, generation}) == 1 || p->lied) return;
  Expect(false, "what runs has been reported, and is answered once: '" + key +
                    "', generation " + std::to_string(generation));
}

void Coordinated::ReceiveRuns(Player* p, const proto::Execute& execute) {
  for (const proto::Run& run : execute.runs()) {
    Expect(run.run() == ++p->last_run || p->lied, "runs come without gaps");
    Expect(run.operations_size() > 0 &&
               run.operations_size() <= static_cast<int>(kMaxRunOperations),
           "a run has operations");
    for (const proto::RunOperation& op : run.operations()) {
      std::string key;
      if (op.has_identity()) {
        key = KeyOf(op.identity());
        p->ids[key] = op.id();
      } else {
        for (const auto& [k, id] : p->ids) {
          if (id == op.id()) key = k;
        }
      }
      Answered(p, key, op.generation());
      if (const auto it = p->identities.find(key); it != p->identities.end()) {
        p->executed.emplace_back(it->second, op.id(), op.generation());
      }
    }
  }
}

void Coordinated::Payload(Player* p, const proto::CoordinatorMessage& m) {
  switch (m.payload_case()) {
    case proto::CoordinatorMessage::kEpochStart: {
      Expect(m.epoch_start().epoch() > p->epoch || p->lied, "epochs grow");
      p->start = m.epoch_start();
      p->epoch = p->start.epoch();
      Expect(!p->OwnRanks().empty(), "a node that starts has ranks");
      ++p->round;
      p->handled = 1;
      p->last_run = 0;
      p->over = false;
      p->schedule = 0;
      p->timeline = p->communicator = 0;
      p->executed.clear();
      p->ids.clear();
      p->generations.clear();
      p->identities.clear();
      p->unanswered.clear();
      p->sets.clear();
      p->set_requests.clear();
      p->joins.clear();
      p->waiting.clear();
      return;
    }
    case proto::CoordinatorMessage::kEpochEnd:
      Expect(m.epoch_end().message().size() <= kMaxErrorBytes,
             "an end has a bounded reason");
      Expect(m.epoch_end().code() != 0, "an end has a code");
      if (m.epoch() == 0) {
        ++p->round;
        p->waiting.clear();
      } else {
        p->unanswered.clear();
        p->over = p->over || m.epoch() == p->epoch;
      }
      return;
    case proto::CoordinatorMessage::kSchedule: {
      ++p->handled;
      const proto::Schedule& schedule = m.schedule();
      Expect(schedule.length() > 0 || p->lied, "a schedule has runs");
      int64_t last = -1;
      for (const proto::ScheduledRun& run : schedule.runs()) {
        Expect(run.index() > last && run.index() < schedule.length(),
               "a schedule's runs ascend");
        Expect(run.operations_size() > 0, "a scheduled run has operations");
        last = run.index();
      }
      p->schedule = schedule.number();
      // What it has reported is dropped, and reported again later.
      for (const auto& [key, generation] : p->unanswered) {
        p->generations[key] = generation - 1;
      }
      p->unanswered.clear();
      return;
    }
    case proto::CoordinatorMessage::kCommunicator: {
      ++p->handled;
      const proto::Communicator& c = m.communicator();
      Expect((c.number() >= 1 && c.number() <= kMaxCommunicators) || p->lied,
             "communicators are numbered");
      if (c.parts_size() > 0 && c.parts(0).node() == p->start.node_index()) {
        p->communicator = c.number();
      }
      return;
    }
    case proto::CoordinatorMessage::kTimeline:
      Expect(m.timeline().path().size() <= kMaxShownPathBytes || p->lied,
             "a shown path has a bound");
      Expect(m.timeline().error().size() <= coordinator::kMaxForeignText ||
                 p->lied,
             "an error of a timeline has a bound");
      p->timeline = m.timeline().number();
      return;
    case proto::CoordinatorMessage::kTimelineRecords:
    case proto::CoordinatorMessage::kTimelineTaken:
    case proto::CoordinatorMessage::kClockReply:
    case proto::CoordinatorMessage::kWatchStats:
      return;  // not counted
    case proto::CoordinatorMessage::kExecute:
      ++p->handled;
      Expect(m.epoch() == p->epoch || p->lied, "runs are of the epoch");
      return ReceiveRuns(p, m.execute());
    case proto::CoordinatorMessage::kOperationFailed: {
      ++p->handled;
      const proto::OperationFailed& failed = m.operation_failed();
      Expect(failed.message().size() <= 4 * kMaxErrorBytes,
             "a failure has a bounded reason");
      Expect(failed.code() != 0, "a failure has a code");
      std::string key = KeyOf(failed.identity());
      if (failed.id() != 0 && failed.has_identity()) {
        p->ids[key] = failed.id();
      } else if (!failed.has_identity()) {
        for (const auto& [k, id] : p->ids) {
          if (id == failed.id()) key = k;
        }
      }
      p->unanswered.erase({key, failed.generation()});
      return;
    }
    case proto::CoordinatorMessage::kSetReply: {
      ++p->handled;
      const proto::SetReply& r = m.set_reply();
      if (r.code() != 0) return;
      if (r.remove()) {
        p->sets.erase(r.process_set());
      } else {
        p->sets[r.process_set()] = {r.ranks().begin(), r.ranks().end()};
      }
      return;
    }
    case proto::CoordinatorMessage::kConfirmBlocked:
      ++p->handled;
      p->confirm = m.confirm_blocked().round();
      return;
    case proto::CoordinatorMessage::kEndpoints:
      Expect(m.endpoints().addresses_size() == p->start.nodes_size() || p->lied,
             "endpoints are of all nodes");
      ++p->handled;
      return;
    case proto::CoordinatorMessage::kMembershipWanted:
      return;
    case proto::CoordinatorMessage::kNamesRetired:
      ++p->handled;
      for (const uint32_t id : m.names_retired().ids()) {
        Expect(id != 0, "a name that is forgotten had an id");
        for (auto it = p->ids.begin(); it != p->ids.end();) {
          if (it->second != id) {
            ++it;
            continue;
          }
          // Operations reported by this id must be reported again.
          const std::string key = it->first;
          p->generations[key] = 0;
          std::erase_if(p->unanswered,
                        [&](const auto& u) { return u.first == key; });
          it = p->ids.erase(it);
        }
      }
      return;
    case proto::CoordinatorMessage::kStandIn:
      ++p->handled;
      if (m.stand_in().has_identity()) {
        p->ids[KeyOf(m.stand_in().identity())] = m.stand_in().id();
      }
      return;
    default:
      ++p->handled;
  }
}

}  // namespace maypole::fuzz
