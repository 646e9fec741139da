#include "worker/core/timeline/executor_timeline.h"

#include <algorithm>
#include <utility>

namespace maypole::worker {

// --- Epochs, time ------------------------------------------------------------

void ExecutorTimeline::OnEpochStarted(Epoch epoch) {
  OnEpochOver();
  epoch_ = std::move(epoch);
  clock_ = ClockOffset();  // the coordinator may be another one
  state_.Clear();
  for (const auto& m : std::exchange(early_, {})) {
    if (m.epoch() == epoch_.number) OnState(m.timeline());
  }
}

// Unanswered requests are dropped: no rank of the epoch is left.
void ExecutorTimeline::OnEpochOver() {
  if (current_ && current_->writes && current_->file == File::kOpen) {
    TakeHeld();
    current_->trace->Finish();
    Write();
    shell_->CloseFile();
  }
  recording_.store(false);
  current_.reset();
  requests_.clear();
  ready_.clear();
  runs_.clear();
  epoch_ = Epoch();
  granted_ = 0;
}

void ExecutorTimeline::OnTime(int64_t now_ns) {
  now_ = now_ns;
  if (!current_) return;
  if (epoch_.nodes.size() > 1 && clock_.Due(now_)) {
    proto::ExecutorMessage m;
    m.mutable_clock_query()->set_sent_ns(clock_.Query(now_));
    Send(std::move(m));
  }
  Pump();
}

// --- Clients -----------------------------------------------------------------

void ExecutorTimeline::OnRequest(ClientId client,
                                 const session::TimelineRequest& request) {
  if (!epoch_.ranks.contains(client)) return;  // its epoch is over
  // A rank waits for one answer at a time.
  std::erase_if(requests_,
                [&](const Request& r) { return r.client == client; });
  requests_.push_back({client, request.stop != 0, request});
  Ask(requests_.back());
}

void ExecutorTimeline::Ask(const Request& request) {
  proto::ExecutorMessage m;
  proto::TimelineRequest* r = m.mutable_timeline_request();
  r->set_rank(static_cast<uint32_t>(epoch_.ranks.at(request.client)));
  r->set_stop(request.stop);
  r->set_number(request.message.number);
  r->set_path(request.message.path);
  r->set_mark_cycles(request.message.mark_cycles != 0);
  Send(std::move(m));
}

void ExecutorTimeline::Send(proto::ExecutorMessage message) {
  message.set_epoch(epoch_.number);
  shell_->ToCoordinator(std::move(message));
}

bool ExecutorTimeline::AwaitsFile(ClientId client, uint32_t number) const {
  return current_ && current_->writes && current_->info.number() == number &&
         current_->file == File::kAwaited && epoch_.ranks.contains(client);
}

void ExecutorTimeline::OnFile(ClientId client, uint32_t number, bool opened) {
  if (!AwaitsFile(client, number)) return;
  if (!opened) {
    return Finish(Code::kInvalidArgument, "its file could not be opened");
  }
  current_->file = File::kOpen;
  Write();
}

void ExecutorTimeline::OnRecords(ClientId client,
                                 const session::TimelineRecords& records) {
  if (!current_ || records.number != current_->info.number()) return;
  Take({reinterpret_cast<const char*>(records.data), records.bytes},
       records.dropped);
  if (records.last == 0) return;
  current_->ranks.erase(client);
  Pump();
}

void ExecutorTimeline::OnClientGone(ClientId client) {
  epoch_.ranks.erase(client);
  std::erase_if(requests_,
                [&](const Request& r) { return r.client == client; });
  if (!current_) return;
  current_->ranks.erase(client);
  const bool writer_gone = current_->writes && current_->file == File::kAwaited;
  if (writer_gone && epoch_.ranks.empty()) {
    return Finish(Code::kAborted, "the rank that has started it has left");
  }
  if (epoch_.ranks.empty() && !current_->writes && !current_->drained) {
    SendRest();
  }
}

// The coordinator passes these on before it announces that the last rank has
// left. Only a few messages may be sent, because the writing node has not taken
// any of them.
void ExecutorTimeline::SendRest() {
  for (int i = 0; i < kLastMessages && !current_->waiting.empty(); ++i) {
    SendRecords(WholeRecords(current_->waiting, kMaxMessageBytes),
                /*last=*/false);
  }
  ForRecords(current_->waiting,
             [this](const TimelineRecord&) { ++current_->dropped; });
  current_->waiting.clear();
  SendRecords(0, /*last=*/true);
}

// --- Coordinator -------------------------------------------------------------

bool ExecutorTimeline::OnCoordinator(const proto::CoordinatorMessage& m) {
  switch (m.payload_case()) {
    case proto::CoordinatorMessage::kTimeline:
      if (m.epoch() > epoch_.number) {
        KeepEarly(m);
      } else if (m.epoch() == epoch_.number) {
        OnState(m.timeline());
      }
      return true;
    case proto::CoordinatorMessage::kTimelineRecords:
      OnRecords(m.timeline_records());
      return true;
    case proto::CoordinatorMessage::kTimelineTaken:
      if (current_ && m.timeline_taken().number() == current_->info.number()) {
        current_->in_flight = false;
        Pump();
      }
      return true;
    case proto::CoordinatorMessage::kClockReply:
      clock_.OnReply(m.clock_reply().sent_ns(),
                     m.clock_reply().coordinator_ns(), now_);
      OnTime(now_);  // asks again, or sends
      return true;
    default:
      return false;
  }
}

// A timeline that was begun and stopped before the epoch's ranks are there also
// has a file, and all nodes close it.
void ExecutorTimeline::KeepEarly(const proto::CoordinatorMessage& message) {
  if (message.timeline().on() ||
      (!early_.empty() && early_.front().epoch() != message.epoch())) {
    early_.clear();
  }
  if (early_.size() == 2) early_.pop_back();
  early_.push_back(message);
}

void ExecutorTimeline::OnState(const proto::Timeline& timeline) {
  if (epoch_.number == 0) return;
  const bool closed = !timeline.on() && !timeline.closing();
  const bool newly_closed = closed && (state_.on() || state_.closing());
  state_ = timeline;
  const bool known = current_ && current_->info.number() == timeline.number();
  if (timeline.on() && !known) Begin(timeline);
  if (!timeline.on() && known && current_->off_since == 0) Stop(timeline);
  if (closed && known) current_.reset();
  AnswerRequests();
  if (!newly_closed) return;
  for (const Request& r : requests_) Ask(r);
}

void ExecutorTimeline::Begin(const proto::Timeline& timeline) {
  current_.emplace();
  current_->info = timeline;
  current_->writes = timeline.node() == epoch_.node;
  for (const auto& [client, rank] : epoch_.ranks) {
    current_->ranks.insert(client);
  }
  if (current_->writes) {
    current_->trace.emplace(epoch_.nodes);
    for (uint32_t i = 0; i < epoch_.nodes.size(); ++i) {
      if (i != epoch_.node) current_->nodes.insert(i);
    }
  }
  shell_->SetTimeline(timeline.number() * 2 + 1);
  recording_.store(true);
  if (current_->writes && timeline.by_operator()) MakeFile();
  OnTime(now_);
}

// If that rank starts a timeline itself, it joins this one.
void ExecutorTimeline::MakeFile() {
  granted_ = current_->info.number();
  for (const auto& [client, rank] : epoch_.ranks) {
    if (rank != static_cast<int>(current_->info.rank())) continue;
    current_->file = File::kOpen;
    return shell_->MakeFile(client, current_->info.path());
  }
  Finish(Code::kAborted, "the rank in whose directory it was to be has left");
}

void ExecutorTimeline::Stop(const proto::Timeline& timeline) {
  current_->off_since = now_;
  shell_->SetTimeline(timeline.number() * 2);
  recording_.store(false);
  ready_.clear();
  runs_.clear();
  Pump();
}

// A start waits until a timeline is on. If it came while the last file was
// being closed, OnState() requests it again afterwards. A stop waits until the
// file of its timeline is closed.
void ExecutorTimeline::AnswerRequests() {
  if (state_.closing()) return;
  for (const Request& r : std::exchange(requests_, {})) {
    const bool same = r.message.number == state_.number();
    if (r.stop ? state_.on() && same : !state_.on()) {
      requests_.push_back(r);
      continue;
    }
    auto reply = session::Make<session::TimelineReply>();
    reply.stop = r.stop ? 1 : 0;
    reply.number = state_.number();
    reply.rank = state_.rank();
    session::SetText(reply.path, state_.path());
    if (r.stop && same) {
      reply.code = static_cast<uint32_t>(state_.code());
      session::SetText(reply.text, state_.error());
    }
    const int rank = epoch_.ranks.at(r.client);
    if (!r.stop && granted_ < state_.number() && state_.node() == epoch_.node &&
        rank == static_cast<int>(state_.rank())) {
      reply.writer = 1;
      granted_ = state_.number();
    }
    shell_->Reply(r.client, reply);
  }
}

// --- Records -----------------------------------------------------------------

void ExecutorTimeline::Take(std::string_view records, uint64_t dropped) {
  // A rank may have sent anything: take whole records only.
  records = records.substr(0, WholeRecords(records, records.size()));
  if (current_->writes) {
    AddToTrace(records, epoch_.node, 0, dropped);
    return Write();
  }
  current_->dropped += dropped;
  if (current_->waiting.size() + records.size() > kMaxWaitingBytes) {
    ForRecords(records, [&](const TimelineRecord&) { ++current_->dropped; });
  } else {
    current_->waiting += records;
  }
}

// Sends what can be sent, and ends a timeline that is off.
void ExecutorTimeline::Pump() {
  const bool off = current_->off_since != 0;
  const int64_t since = now_ - current_->off_since;
  const bool ranks_done = off && (current_->ranks.empty() || since > kRanksNs);
  if (current_->writes) {
    if (clock_.ready()) TakeHeld();
    const bool done =
        ranks_done && (current_->nodes.empty() || since > kNodesNs);
    if (done && current_->file != File::kClosing) Finish(Code::kOk, "");
    return;
  }
  if (current_->in_flight || current_->drained || !clock_.ready()) return;
  const size_t bytes = WholeRecords(current_->waiting, kMaxMessageBytes);
  if (bytes > 0 || current_->dropped > 0) return SendRecords(bytes, false);
  if (ranks_done) SendRecords(0, /*last=*/true);
}

void ExecutorTimeline::SendRecords(size_t bytes, bool last) {
  proto::ExecutorMessage m;
  proto::TimelineRecords* r = m.mutable_timeline_records();
  r->set_number(current_->info.number());
  // Without any reply of the coordinator the times mean nothing.
  if (clock_.known()) {
    r->set_records(current_->waiting.substr(0, bytes));
  } else {
    ForRecords(std::string_view(current_->waiting).substr(0, bytes),
               [&](const TimelineRecord&) { ++current_->dropped; });
  }
  r->set_dropped(std::exchange(current_->dropped, 0));
  r->set_clock_offset_ns(clock_.ns());
  r->set_last(last);
  current_->waiting.erase(0, bytes);
  current_->in_flight = true;
  current_->drained = last;
  Send(std::move(m));
}

// Records of another node.
void ExecutorTimeline::OnRecords(const proto::TimelineRecords& records) {
  if (!current_ || !current_->writes ||
      records.number() != current_->info.number() ||
      current_->file == File::kClosing) {
    return;
  }
  current_->held.push_back(records);
  Pump();
}

void ExecutorTimeline::TakeHeld() {
  if (current_->held.empty()) return;
  for (const proto::TimelineRecords& r : std::exchange(current_->held, {})) {
    const int64_t shift = r.clock_offset_ns() - clock_.ns();
    uint64_t dropped = r.dropped();
    if (clock_.known()) {
      AddToTrace(r.records(), r.node(), shift, dropped);
    } else {
      ForRecords(r.records(), [&](const TimelineRecord&) { ++dropped; });
      AddToTrace({}, r.node(), 0, dropped);
    }
    if (r.last()) current_->nodes.erase(r.node());
    proto::ExecutorMessage m;
    m.mutable_timeline_taken()->set_number(r.number());
    m.mutable_timeline_taken()->set_node(r.node());
    Send(std::move(m));
  }
  Write();
}

// --- The file ----------------------------------------------------------------

// The rank may be stopped and never send its file, so the text is bounded.
void ExecutorTimeline::AddToTrace(std::string_view records, uint32_t node,
                                  int64_t shift_ns, uint64_t dropped) {
  if (current_->file == File::kOpen ||
      current_->trace->text_bytes() < kMaxWaitingBytes) {
    return current_->trace->Add(records, node, shift_ns, dropped);
  }
  ForRecords(records, [&](const TimelineRecord&) { ++dropped; });
  current_->not_traced[node] += dropped;
}

void ExecutorTimeline::Write() {
  if (current_->file != File::kOpen) return;
  for (const auto& [node, dropped] : std::exchange(current_->not_traced, {})) {
    current_->trace->Add({}, node, 0, dropped);
  }
  std::string text = current_->trace->TakeText();
  if (!text.empty()) shell_->WriteFile(std::move(text));
}

// Ends the timeline. Without an open file it has failed.
void ExecutorTimeline::Finish(Code code, const std::string& text) {
  const bool opened = current_->file == File::kOpen;
  if (opened) {
    TakeHeld();
    current_->trace->Finish();
    Write();
  }
  current_->file = File::kClosing;
  if (opened) return shell_->CloseFile();
  const bool none = code == Code::kOk;
  OnFileClosed(
      Status(none ? Code::kAborted : code,
             none ? "the rank that has started it sent no file" : text));
}

void ExecutorTimeline::OnFileClosed(const Status& status) {
  if (!current_ || !current_->writes) return;
  current_->file = File::kClosing;
  proto::ExecutorMessage m;
  proto::TimelineClosed* closed = m.mutable_timeline_closed();
  closed->set_number(current_->info.number());
  closed->set_code(static_cast<int>(status.code()));
  closed->set_message(status.message());
  current_->closed = m;
  Send(std::move(m));
}

void ExecutorTimeline::WriteState(proto::NodeState* state) const {
  const uint64_t epoch = state->start().epoch();
  if (state_.number() > 0 && epoch == epoch_.number) {
    *state->mutable_timeline() = state_;
  } else if (!early_.empty() && epoch == early_.back().epoch()) {
    *state->mutable_timeline() = early_.back().timeline();
  }
}

void ExecutorTimeline::OnCoordinatorReplaced() {
  clock_ = ClockOffset();
  for (const Request& r : requests_) Ask(r);
  if (!current_) return;
  current_->in_flight = false;
  if (current_->closed) Send(*current_->closed);
}

// --- What the executor does itself -------------------------------------------

void ExecutorTimeline::Add(const TimelineRecord& record) {
  std::string packed;
  Append(record, &packed);
  Take(packed, 0);
}

void ExecutorTimeline::OnReady(uint32_t slot, uint32_t generation,
                               int64_t now_ns) {
  Ready& ready = ready_[slot];
  // An operation is reported again when a rank begins to wait for it.
  if (ready.generation != generation) ready = {generation, now_ns};
}

void ExecutorTimeline::OnIssued(const RunSpec& run,
                                const std::vector<std::string>& names) {
  for (size_t i = 0; i < run.operations.size(); ++i) {
    const auto it = ready_.find(run.operations[i].slot);
    if (it == ready_.end() ||
        it->second.generation != run.operations[i].generation) {
      continue;
    }
    TimelineRecord r;
    r.what = TimelineRecord::What::kOrder;
    r.kind = run.kind;
    r.submitted = it->second.ns;
    r.ended = run.issued_ns;
    r.name = names[i];
    ready_.erase(it);
    Add(r);
  }
  if (names.empty()) return;
  runs_[run.record] = {run.kind, names.front(),
                       static_cast<uint32_t>(names.size()), run.tensor_bytes,
                       run.issued_ns};
}

void ExecutorTimeline::OnRunDone(uint32_t record, int64_t now_ns) {
  const auto it = runs_.find(record);
  if (it == runs_.end() || !current_) return;
  TimelineRecord r;
  r.what = TimelineRecord::What::kNetwork;
  r.kind = it->second.kind;
  r.count = it->second.operations;
  r.bytes = it->second.bytes;
  r.submitted = it->second.issued_ns;
  r.ended = now_ns;
  r.name = it->second.name;
  Add(r);
  runs_.erase(it);
}

void ExecutorTimeline::OnPresence(uint32_t operations, int64_t now_ns) {
  if (!current_->info.mark_cycles()) return;
  TimelineRecord r;
  r.what = TimelineRecord::What::kPresence;
  r.count = operations;
  r.submitted = r.ended = now_ns;
  Add(r);
}

}  // namespace maypole::worker
