#include "tests/simulation/election/node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/wire/versions.h"

namespace maypole::simulation {
namespace {

// GrpcTransport gives each of three coordinators this part of 3 s.
constexpr int64_t kNoAnswer = kSecond;

proto::ExecutorHello HelloOf(int node) {
  proto::ExecutorHello hello;
  hello.set_protocol_version(kProtocolVersions.oldest);
  hello.set_newest_version(kProtocolVersions.newest);
  hello.set_job("job");
  hello.set_token("token");
  hello.set_node(absl::StrCat("n", node));
  hello.set_host(absl::StrCat("h", node));
  return hello;
}

std::vector<std::string> Addresses(
    const std::vector<std::unique_ptr<Candidate>>& candidates) {
  std::vector<std::string> out;
  for (const auto& c : candidates) out.push_back(c->address());
  return out;
}

}  // namespace

class ElectionNode::Stream : public ElectionStream {
 public:
  explicit Stream(ElectionNode* node) : node_(node) {}
  void OnMessage(const proto::CoordinatorMessage& message) override {
    if (node_->stream_.get() == this) node_->OnStreamMessage(message);
  }
  void OnEnded(const absl::Status& status) override {
    if (node_->stream_.get() == this) node_->OnStreamEnded(status);
  }

 private:
  ElectionNode* const node_;
};

ElectionNode::ElectionNode(ElectionStage* stage, ElectionLedger* ledger,
                           std::vector<std::unique_ptr<Candidate>>* candidates,
                           int number, int nodes, int steps)
    : stage_(stage),
      ledger_(ledger),
      candidates_(candidates),
      number_(number),
      nodes_(nodes),
      steps_(steps),
      core_({.job = "job",
             .node = absl::StrCat("n", number),
             .host = absl::StrCat("h", number),
             .slots = 64,
             .resume_timeout_ms = 20000}),
      choice_(Addresses(*candidates)) {
  Tick();
  Enter();
}

ElectionNode::~ElectionNode() = default;

std::string ElectionNode::Text() const {
  return absl::StrCat("n", number_, ": step ", step_, ", epoch ", epoch_,
                      ", pending ", absl::StrJoin(pending_, ","),
                      finished_ ? ", finished" : "", up_ ? ", up" : ", away");
}

void ElectionNode::Event(const std::function<void()>& event) {
  core_.OnTime(stage_->scheduler.now() / kMillisecond);
  event();
  Act();
}

void ElectionNode::Tick() {
  Event([] {});
  stage_->scheduler.After(stage_->random.Between(20, 60) * kMillisecond, life_,
                          [this] { Tick(); });
}

// --- The executor's shell ----------------------------------------------------

void ElectionNode::Act() {
  for (;;) {
    const std::vector<worker::Action> actions = core_.TakeActions();
    if (actions.empty()) return;
    for (const worker::Action& action : actions) {
      if (std::get_if<worker::OpenLink>(&action) != nullptr) {
        link_open_ = true;
        session_.emplace(HelloOf(number_));
        presence_ = 0;
        pause_ = worker::kReconnectFirstMs * kMillisecond;
        Open();
      } else if (std::get_if<worker::CloseLink>(&action) != nullptr) {
        link_open_ = up_ = false;
        if (stream_ != nullptr) called()->Leave(stream_);
        stream_.reset();
      } else if (const auto* send =
                     std::get_if<worker::SendToCoordinator>(&action)) {
        SendOn(send->message);
      } else if (const auto* prepare =
                     std::get_if<worker::PrepareBackend>(&action)) {
        core_.OnBackendPrepared(std::vector<std::string>(
            prepare->node_names.size(), absl::StrCat("n", number_)));
      } else if (std::get_if<worker::ConnectBackend>(&action) != nullptr) {
        core_.OnBackendConnected(absl::OkStatus());
      } else if (const auto* create =
                     std::get_if<worker::CreateBoard>(&action)) {
        epoch_ = create->config.epoch;
        executed_ = 0;
        step_ = 0;
        slots_.clear();
        generations_.clear();
        pending_.clear();
        if (core_.OnBoardCreated(absl::OkStatus())) {
          stage_->scheduler.After(stage_->Delay(), life_,
                                  [this, epoch = epoch_] {
                                    if (epoch == epoch_) StartStep();
                                  });
        }
      } else if (const auto* reply =
                     std::get_if<worker::ReplyClient>(&action)) {
        const auto* slot = std::get_if<session::SlotReply>(&reply->reply);
        if (slot == nullptr) continue;
        for (int i = 0; i < kElectionNames; ++i) {
          if (slot->request != static_cast<uint32_t>(i)) continue;
          slots_[absl::StrCat("x", i)] = slot->slot;
        }
      } else if (const auto* run = std::get_if<worker::IssueRun>(&action)) {
        OnRun(run->run);
      } else if (const auto* abort = std::get_if<worker::AbortBoard>(&action)) {
        LeaveEpoch(abort->text);
      } else if (const auto* refuse =
                     std::get_if<worker::RefuseClient>(&action)) {
        LeaveEpoch(refuse->text);
      } else if (const auto* fail = std::get_if<worker::FailSlot>(&action)) {
        LeaveEpoch(fail->text);
      }
    }
  }
}

// --- The rank ----------------------------------------------------------------

void ElectionNode::Enter() {
  client_ += 1 + static_cast<worker::ClientId>(number_) * 1000;
  auto hello = session::Make<session::Hello>();
  hello.rank = number_;
  hello.size = nodes_;
  hello.local_rank = 0;
  hello.local_size = 1;
  hello.pid = 100 + number_;
  session::SetText(hello.job, "job");
  session::SetText(hello.host, absl::StrCat("h", number_));
  Event([&] { core_.OnClient(client_, hello, 1000 + number_); });
}

void ElectionNode::StartStep() {
  if (finished_) return;
  if (step_ == steps_) {
    finished_ = true;
    return Event([this] { core_.OnGoodbye(client_, 0); });
  }
  ++step_;
  std::vector<std::string> names;
  for (int i = 0; i < kElectionNames; ++i)
    names.push_back(absl::StrCat("x", i));
  stage_->random.Shuffle(&names);
  for (const std::string& name : names) {
    pending_.insert(name);
    stage_->scheduler.After(stage_->random.Magnitude(kMillisecond, kSecond / 2),
                            life_,
                            [this, name, epoch = epoch_, client = client_] {
                              if (epoch == epoch_ && client == client_)
                                Submit(name);
                            });
  }
}

void ElectionNode::Submit(const std::string& name) {
  Event([&] {
    if (!slots_.contains(name)) {
      auto request = session::Make<session::SlotRequest>();
      request.request = static_cast<uint32_t>(name[1] - '0');
      request.kind = static_cast<uint32_t>(Kind::kAllreduce);
      session::SetText(request.name, name);
      core_.OnSlotRequest(client_, request);
      Act();
    }
    if (!slots_.contains(name)) return;
    Signature s;
    s.kind = Kind::kAllreduce;
    s.dtype = DType::kFloat32;
    s.op = Op::kSum;
    s.dims = 1;
    s.shape[0] = 8;
    core_.OnReadySlot({slots_[name], ++generations_[name], {s}});
  });
}

void ElectionNode::OnRun(const worker::RunSpec& run) {
  std::vector<std::string>& runs = ledger_->runs[epoch_];
  for (const PlanOperation& op : run.operations) {
    const auto slot =
        std::find_if(slots_.begin(), slots_.end(),
                     [&](const auto& s) { return s.second == op.slot; });
    const std::string name = absl::StrCat(
        slot == slots_.end() ? "?" : slot->first, " ", op.generation);
    if (slot == slots_.end() || op.generation != generations_[slot->first] ||
        !pending_.contains(slot->first)) {
      stage_->found.push_back(
          absl::StrCat("n", number_, " executes ", name, " in epoch ", epoch_,
                       ", which it has not submitted, or for the second time"));
      return;
    }
    if (executed_ == runs.size()) runs.push_back(name);
    if (runs[executed_] != name) {
      stage_->found.push_back(absl::StrCat(
          "n", number_, " executes ", name, " in epoch ", epoch_, " as number ",
          executed_, ", where another node has executed ", runs[executed_]));
    }
    ++executed_;
    ++ledger_->executed;
    pending_.erase(slot->first);
  }
  core_.OnRunFree(run.record);
  if (!pending_.empty()) return;
  stage_->scheduler.After(stage_->random.Magnitude(kMillisecond, kSecond),
                          life_, [this, epoch = epoch_, client = client_] {
                            if (epoch == epoch_ && client == client_) {
                              StartStep();
                            }
                          });
}

void ElectionNode::LeaveEpoch(const std::string& why) {
  if (finished_) return;
  ledger_->ended.insert(epoch_);
  ledger_->errors.push_back(absl::StrCat("n", number_, ": ", why));
  const worker::ClientId gone = client_++;
  epoch_ = 0;
  pending_.clear();
  stage_->scheduler.After(stage_->random.Magnitude(kMillisecond, kSecond / 2),
                          life_, [this, gone] {
                            Event([&] { core_.OnGoodbye(gone, 0); });
                            Enter();
                          });
}

// --- The transport (worker/network/grpc_transport.cc) ------------------------

void ElectionNode::CutFrom(size_t candidate, int64_t time) {
  cut_until_[candidate] = stage_->scheduler.now() + time;
  if (index_ == candidate && stream_ != nullptr) called()->Break(stream_);
}

void ElectionNode::Open() {
  if (!link_open_) return;
  stream_ = std::make_shared<Stream>(this);
  const auto stream = stream_;
  if (stage_->scheduler.now() < cut_until_[index_]) {
    stage_->scheduler.After(kNoAnswer, stream, [this, s = stream.get()] {
      if (stream_.get() == s) {
        OnStreamEnded(absl::UnavailableError("it does not answer"));
      }
    });
    return;
  }
  called()->Write(stream_, session_->Hello());
  stage_->scheduler.After(kNoAnswer, life_, [this, stream] {
    if (stream_ != stream || up_) return;
    called()->Leave(stream_);
    OnStreamEnded(absl::UnavailableError("it does not answer"));
  });
}

void ElectionNode::SendOn(proto::ExecutorMessage message) {
  const bool presence = message.has_presence();
  for (proto::ExecutorMessage& part : session_->PartsOf(std::move(message))) {
    const proto::ExecutorMessage* numbered = session_->Push(std::move(part));
    if (numbered == nullptr) return;
    if (presence) presence_ = numbered->sequence();
    if (up_) called()->Write(stream_, *numbered);
  }
}

void ElectionNode::OnStreamMessage(const proto::CoordinatorMessage& message) {
  if (!up_) return OnWelcome(message);
  worker::CoordinatorSession::Messages ready;
  if (!session_->OnReceived(message, &ready)) {
    stage_->found.push_back(absl::StrCat("n", number_, ": messages of ",
                                         choice_.address(),
                                         " are out of order"));
    return;
  }
  if (message.has_refused()) {
    return Lose(absl::UnavailableError(message.refused().message()));
  }
  if (session_->AckDue() && !std::exchange(ack_planned_, true)) {
    stage_->scheduler.After(50 * kMillisecond, life_, [this] {
      ack_planned_ = false;
      if (up_ && session_->AckDue()) called()->Write(stream_, session_->Ack());
    });
  }
  OnAcknowledged();
  for (const auto& m : ready) {
    Event([&] { core_.OnCoordinator(m); });
  }
}

void ElectionNode::OnAcknowledged() {
  if (presence_ == 0 || session_->acknowledged() < presence_) return;
  presence_ = 0;
  Event([this] { core_.OnPresenceAcknowledged(); });
}

void ElectionNode::OnWelcome(const proto::CoordinatorMessage& message) {
  const uint64_t term = message.welcome().term();
  if (message.has_welcome()) {
    const absl::Status may = choice_.Join(term);
    if (!may.ok()) {
      ++ledger_->refused_terms;
      const std::string named =
          absl::StrCat("coordinator ", called()->address(),
                       " has been replaced: it leads in term ", term,
                       ", and this node has joined term ", joined_term_);
      if (!absl::StrContains(may.message(), named)) {
        stage_->found.push_back(std::string(may.message()));
      }
    }
    if (!may.ok() && !stage_->accept_older) {
      called()->Leave(stream_);
      return OnStreamEnded(may);
    }
    if (term < joined_term_) {
      stage_->found.push_back(absl::StrCat("n", number_, " joins term ", term,
                                           " after term ", joined_term_));
    }
    joined_term_ = term;
  }
  using Welcome = worker::CoordinatorSession::Welcome;
  const auto welcome = session_->OnWelcome(message, choice_.address());
  if (!welcome.ok()) return Lose(welcome.status());
  up_ = true;
  session_->Resend(
      [this](const proto::ExecutorMessage& m) { called()->Write(stream_, m); });
  if (*welcome == Welcome::kReplaced) {
    presence_ = 0;
    ++ledger_->taken_over;
    return Event([this] { core_.OnCoordinatorReplaced(); });
  }
  if (*welcome == Welcome::kResumed) {
    Event([this] { core_.OnCoordinatorBack(); });
  }
  OnAcknowledged();
}

void ElectionNode::OnStreamEnded(const absl::Status& status) {
  stream_.reset();
  session_->OnStreamEnded();
  const bool welcomed = std::exchange(up_, false);
  if (!link_open_) return;
  if (worker::IsRefusal(status.code())) return Lose(status);
  if (welcomed) Event([&] { core_.OnCoordinatorAway(status); });
  Again(welcomed);
}

void ElectionNode::Lose(const absl::Status& status) {
  ledger_->errors.push_back(absl::StrCat("n", number_, ": ", status.message()));
  link_open_ = up_ = false;
  if (stream_ != nullptr) called()->Leave(stream_);
  stream_.reset();
  Event([&] { core_.OnLinkLost(status); });
}

void ElectionNode::Again(bool welcomed) {
  if (welcomed) {
    pause_ = worker::kReconnectFirstMs * kMillisecond;
  } else {
    choice_.Next();
    index_ = (index_ + 1) % candidates_->size();
  }
  stage_->scheduler.After(stage_->random.Between(pause_ / 2, pause_), life_,
                          [this] {
                            if (stream_ == nullptr) Open();
                          });
  pause_ = std::min(pause_ * 2, worker::kReconnectMostMs * kMillisecond);
}

}  // namespace maypole::simulation
