#include "client/launcher/service/service_core.h"

#include <utility>

#include "client/bootstrap/launcher_info.h"
#include "common/address.h"

namespace maypole::launcher {
namespace {

// Ports of coordinators whose address cannot be exchanged (Slurm), so that each
// node derives the port from the job.
constexpr unsigned kFirstPort = 20000, kPorts = 10000;

std::string DerivedPort(const std::string& job) {
  const std::string hash = HashHex(job).substr(8);
  return std::to_string(kFirstPort + std::stoul(hash, nullptr, 16) % kPorts);
}

}  // namespace

ServiceCore::Actions ServiceCore::Connected(int connection) {
  if (!stopped_) ranks_[connection];
  return Take();
}

ServiceCore::Actions ServiceCore::Said(int connection,
                                       const std::string& message) {
  const auto it = ranks_.find(connection);
  if (it == ranks_.end()) return Take();
  const std::string verb = message.substr(0, message.find('\n'));
  const std::string rest =
      verb.size() < message.size() ? message.substr(verb.size() + 1) : "";
  if (verb == kSayBye) {
    Leave(connection, true);
  } else if (!it->second.place) {
    Place(connection, message);
  } else if (verb == kSayGot && asked_ == connection && !own_info_) {
    BootstrapInfo info;
    Status s = Decode(rest, &info);
    if (s.ok()) s = Complete(&info);
    if (s.ok()) {
      Use(info);
    } else {
      Fail(s);
    }
  } else if (verb == kSayFailed && asked_ == connection &&
             (own_info_ || !used_)) {
    Fail(Status(Code::kUnavailable, rest));
  } else if (verb == kSayPublished && asked_ == connection && own_info_) {
    Use(info_);
  }
  return Take();
}

ServiceCore::Actions ServiceCore::Closed(int connection) {
  Leave(connection, false);
  return Take();
}

ServiceCore::Actions ServiceCore::Idle() {
  if (ranks_.empty() && !stopped_) {
    stopped_ = true;
    actions_.push_back({.kind = ServiceAction::kStop});
  }
  return Take();
}

void ServiceCore::Leave(int connection, bool politely) {
  if (ranks_.erase(connection) == 0) return;
  if (ranks_.empty()) {
    Actions left = Idle();  // the connection stays open until the service ends
    actions_ = std::move(left);
    return;
  }
  if (politely) {
    actions_.push_back(
        {.kind = ServiceAction::kClose, .connection = connection});
  }
  if (asked_ == connection) {
    asked_ = -1;
    if (carried_ && !used_ && !failure_) Carry();
  }
}

void ServiceCore::Place(int connection, const std::string& message) {
  RankMessage place;
  Status s = Decode(message, &place);
  if (s.ok() && first_) s = CheckSameJob(place);
  Rank& rank = ranks_[connection];
  rank.place = place;
  if (!s.ok()) {
    rank.answered = true;
    Send(connection, Say(kSayError, {std::to_string(static_cast<int>(s.code())),
                                     s.message()}));
    return;
  }
  if (!first_) {
    first_ = place;
    Begin();
  } else if (carried_ && !used_ && !failure_) {
    Carry();
  }
  AnswerRank(connection, &rank);
}

Status ServiceCore::CheckSameJob(const RankMessage& p) const {
  if (p.job == first_->job && p.size == first_->size &&
      p.local_size == first_->local_size) {
    return Status();
  }
  auto text = [](const RankMessage& of) {
    return "rank " + std::to_string(of.rank) + " of job " + of.job + " with " +
           std::to_string(of.size) + " ranks, " +
           std::to_string(of.local_size) + " on this node";
  };
  return Status(Code::kInvalidArgument,
                "this process is " + text(p) + ", but the first one here is " +
                    text(*first_) +
                    ": start all ranks of a job with the same launcher");
}

void ServiceCore::Begin() {
  const bool own = facts_.running_agent.empty() && facts_.coordinator.empty();
  const Status s = own ? MakeOwnInfo() : MakeInfoOfCoordinator();
  if (!s.ok()) Fail(s);
}

// The job starts its own coordinator.
Status ServiceCore::MakeOwnInfo() {
  if (first_->one_node()) {
    info_.secret = facts_.random_secret;
    info_.token = facts_.token.empty() ? facts_.random_token : facts_.token;
    StartCoordinator("127.0.0.1:0");
    return Status();
  }
  switch (first_->exchange) {
    case ExchangeKind::kCarried:
      carried_ = true;
      Carry();
      return Status();
    case ExchangeKind::kDerived:
      return DeriveInfo();
    case ExchangeKind::kNone:
      break;
  }
  return Status(
      Code::kInvalidArgument,
      std::to_string(first_->local_size) + " of the job's " +
          std::to_string(first_->size) +
          " ranks are on this node, and no way to reach the others is known: " +
          (first_->why_none.empty() ? "" : first_->why_none + "; ") +
          "start maypole-coordinator and set MAYPOLE_COORDINATOR=HOST:PORT and "
          "MAYPOLE_SECRET_FILE for all ranks, or start them with maypolerun");
}

Status ServiceCore::DeriveInfo() {
  std::string key = facts_.token;
  if (key.empty()) {
    if (Status s = facts_.user_secret(&key); !s.ok()) return s;
  }
  Derive(key, &info_);
  const std::string port = facts_.coordinator_port.empty()
                               ? DerivedPort(first_->job)
                               : facts_.coordinator_port;
  if (first_->at_head) {
    StartCoordinator(facts_.any_address + ":" + port);
  } else {
    info_.coordinators = {first_->head + ":" + port};
    Use(info_);
  }
  return Status();
}

void ServiceCore::Derive(const std::string& key, BootstrapInfo* info) const {
  info->secret = facts_.derive(key, "secret of " + first_->job);
  info->token = facts_.derive(key, "token of " + first_->job);
}

// A node that has a token does not use a published one: anyone who can write to
// the launcher's exchange could have put it there.
Status ServiceCore::Complete(BootstrapInfo* info) const {
  const bool here = !facts_.token.empty();
  if (here != info->token.empty()) {
    return Status(Code::kInvalidArgument,
                  std::string("MAYPOLE_TOKEN is set ") +
                      (here ? "on this node, but not on rank 0's"
                            : "on rank 0's node, but not on this one") +
                      ": set it to the same random text on all ranks, or on "
                      "none");
  }
  if (here) Derive(facts_.token, info);
  return Status();
}

// The job uses an agent or a coordinator that already runs.
Status ServiceCore::MakeInfoOfCoordinator() {
  if (facts_.running_agent.empty()) {
    info_.coordinators = {facts_.coordinator};
  }
  bool known = true;
  if (Status s = FindToken(&known); !s.ok()) return s;
  if (known) {
    Use(info_);
  } else {
    carried_ = true;
    Carry();
  }
  return Status();
}

Status ServiceCore::FindToken(bool* known) {
  info_.token = facts_.token;
  std::string key;
  if (!facts_.token.empty()) return Status();
  if (first_->one_node()) {
    info_.token = facts_.random_token;
    return Status();
  }
  if (!facts_.secret_file.empty()) {
    if (Status s = facts_.cluster_secret(&key); !s.ok()) return s;
  } else if (first_->exchange == ExchangeKind::kCarried) {
    *known = false;
    return Status();
  } else if (first_->exchange == ExchangeKind::kDerived) {
    if (Status s = facts_.user_secret(&key); !s.ok()) return s;
  } else {
    return Status(Code::kInvalidArgument,
                  "this job has ranks on several nodes, which need a token "
                  "that only they know: set MAYPOLE_TOKEN to the same random "
                  "text on all ranks");
  }
  info_.token = facts_.derive(key, "token of " + first_->job);
  return Status();
}

// Exchanges the bootstrap info through the launcher: rank 0's node creates and
// publishes it, the other nodes get it.
void ServiceCore::Carry() {
  int head = -1;
  for (const auto& [connection, rank] : ranks_) {
    if (rank.place && rank.place->rank == 0) head = connection;
  }
  if (head < 0) {
    for (const auto& [connection, rank] : ranks_) {
      if (asked_ >= 0 || !rank.place || rank.answered) continue;
      asked_ = connection;
      Send(connection, Say(kSayGet));
    }
    return;
  }
  if (own_info_) {
    if (asked_ == head) return;
    asked_ = head;
    // Anyone who can reach torchrun's store, for example, can read it.
    BootstrapInfo published = info_;
    if (!facts_.token.empty()) published.secret = published.token = "";
    Send(head, std::string(kSayPublish) + "\n" + Encode(published));
    return;
  }
  if (!facts_.running_agent.empty() || !facts_.coordinator.empty()) {
    info_.token = facts_.random_token;
    own_info_ = true;
    return Carry();
  }
  if (!info_.secret.empty()) return;  // the coordinator is being started
  if (facts_.token.empty()) {
    info_.secret = facts_.random_secret;
    info_.token = facts_.random_token;
  } else {
    Derive(facts_.token, &info_);
  }
  StartCoordinator(facts_.any_address + ":0");
}

void ServiceCore::StartCoordinator(const std::string& listen) {
  actions_.push_back(
      {.kind = ServiceAction::kWriteSecret, .text = info_.secret});
  actions_.push_back({.kind = ServiceAction::kStart,
                      .name = kCoordinatorName,
                      .arguments = CoordinatorArguments(
                          {.listen = listen,
                           .secret_file = secret_path(),
                           .start_timeout_s = first_->start_timeout_seconds,
                           .fusion_threshold = facts_.fusion_threshold})});
}

ServiceCore::Actions ServiceCore::Ready(const std::string& name,
                                        const Announcement& announcement) {
  if (failure_ || stopped_) return Take();
  if (name == kAgentName) {
    Answer(announcement.socket);
    return Take();
  }
  HostPort at;
  if (!SplitHostPort(announcement.listen, &at)) {
    return Failed("maypole-coordinator listens at '" + announcement.listen +
                  "', which is not HOST:PORT");
  }
  for (const std::string& address : facts_.addresses) {
    info_.coordinators.push_back(JoinHostPort(address, at.port));
  }
  own_info_ = true;
  if (carried_) Carry();
  // This node need not wait until other nodes have the bootstrap info.
  used_ = true;
  StartWorker(JoinHostPort("127.0.0.1", at.port), secret_path());
  return Take();
}

void ServiceCore::Use(const BootstrapInfo& info) {
  if (used_) return;
  used_ = true;
  info_ = info;
  if (info_.coordinators.empty()) {
    if (!facts_.running_agent.empty()) return Answer(facts_.running_agent);
    return Fail(Status(
        Code::kUnavailable,
        "the node of rank 0 uses an agent that runs there, but none runs on "
        "this node: start maypole-worker on all nodes, or on none"));
  }
  if (!facts_.coordinator.empty()) {
    return StartWorker(facts_.coordinator, facts_.secret_file);
  }
  if (!info_.secret.empty()) {
    actions_.push_back(
        {.kind = ServiceAction::kWriteSecret, .text = info_.secret});
  }
  actions_.push_back(
      {.kind = ServiceAction::kDial, .arguments = info_.coordinators});
}

ServiceCore::Actions ServiceCore::Dialed(const std::string& address) {
  if (!failure_ && !stopped_) {
    StartWorker(address,
                info_.secret.empty() ? facts_.secret_file : secret_path());
  }
  return Take();
}

void ServiceCore::StartWorker(const std::string& coordinator,
                              const std::string& secret_file) {
  actions_.push_back({.kind = ServiceAction::kStart,
                      .name = kAgentName,
                      .arguments = WorkerArguments(
                          {.node = first_->node,
                           .socket = facts_.directory + "/agent.sock",
                           .coordinator = coordinator,
                           .secret_file = secret_file,
                           .start_timeout_s = first_->start_timeout_seconds})});
}

void ServiceCore::Answer(const std::string& agent) {
  agent_ = agent;
  for (auto& [connection, rank] : ranks_) AnswerRank(connection, &rank);
}

void ServiceCore::AnswerRank(int connection, Rank* rank) {
  if (!rank->place || rank->answered) return;
  if (failure_) {
    rank->answered = true;
    Send(connection,
         Say(kSayError, {std::to_string(static_cast<int>(failure_->code())),
                         failure_->message()}));
  } else if (!agent_.empty()) {
    rank->answered = true;
    Send(connection, Say(kSayAgent, {agent_, info_.token}));
  }
}

ServiceCore::Actions ServiceCore::Failed(const std::string& what) {
  const bool port_was_derived = first_ && first_->at_head && !own_info_ &&
                                first_->exchange == ExchangeKind::kDerived;
  Fail(Status(Code::kUnavailable,
              what + (port_was_derived ? " (if the port is in use: set "
                                         "MAYPOLE_COORDINATOR_PORT to another "
                                         "one on all ranks)"
                                       : "")));
  return Take();
}

// Answers ranks that have no answer yet. Other ranks learn of a failure from
// their agent.
void ServiceCore::Fail(const Status& status) {
  if (failure_ || stopped_) return;
  failure_ = status;
  for (auto& [connection, rank] : ranks_) AnswerRank(connection, &rank);
}

void ServiceCore::Send(int connection, std::string text) {
  actions_.push_back({.kind = ServiceAction::kSend,
                      .connection = connection,
                      .text = std::move(text)});
}

ServiceCore::Actions ServiceCore::Take() { return std::exchange(actions_, {}); }

}  // namespace maypole::launcher
