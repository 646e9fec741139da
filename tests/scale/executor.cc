#include "tests/scale/executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/board/urgent.h"
#include "common/limits.h"
#include "common/types.h"
#include "worker/core/limits.h"

namespace maypole::scale {
namespace {

constexpr uint32_t kChunkBytes = 512 * 1024;
constexpr size_t kUnknown = SIZE_MAX;

// FNV-1a, by words.
uint64_t Mix(uint64_t digest, uint64_t word) {
  return (digest ^ word) * 0x100000001b3;
}

}  // namespace

Job::Job(std::string job, size_t node_count, size_t ranks,
         std::vector<bench::Parameter> parameters, size_t bytes)
    : name(std::move(job)),
      nodes(node_count),
      ranks_per_node(ranks),
      tensors(std::move(parameters)),
      address_bytes(bytes),
      ids(tensors.size()) {
  for (size_t i = 0; i < tensors.size(); ++i) index[tensors[i].name] = i;
}

Executor::Executor(Job* job, size_t node, proto::Coordinator::Stub* stub)
    : job_(job),
      node_(node),
      name_(absl::StrCat("n", node)),
      stub_(stub),
      reported_(job->tensors.size()),
      executed_(job->tensors.size()) {}

void Executor::Open() {
  stub_->async()->Session(&context_, this);
  auto hello = std::make_shared<Out>();
  hello->mutable_hello()->set_protocol_version(kProtocolVersion);
  hello->mutable_hello()->set_newest_version(kProtocolVersion);
  hello->mutable_hello()->set_job(job_->name);
  hello->mutable_hello()->set_node(name_);
  std::lock_guard lock(mutex_);
  Queue(link_.Bare({std::move(hello)}));
  StartRead(&incoming_);
  StartCall();
}

void Executor::Prepare(uint32_t step) {
  std::lock_guard lock(mutex_);
  step_ = step;
  submitted_ = taken_ = executed_count_ = 0;
  urgent_said_ = all_acknowledged_ = false;
  executed_.assign(executed_.size(), {});
  reports_.clear();
  reports_.resize(job_->tensors.size());
  for (size_t i = 0; i < reports_.size(); ++i) {
    proto::PresentOperation& report = reports_[i];
    if (const uint32_t id = job_->ids[i]; id != 0) {
      report.set_id(id);
    } else {
      report.mutable_identity()->set_kind(
          static_cast<uint32_t>(Kind::kAllreduce));
      report.mutable_identity()->set_name(job_->tensors[i].name);
    }
    report.set_generation(step);
    if (report.id() != 0) {
      report.set_as_before(true);
      continue;
    }
    proto::LocalSignature* s = report.add_signatures();
    for (size_t r = 0; r < job_->ranks_per_node; ++r) {
      s->add_ranks(static_cast<uint32_t>(node_ * job_->ranks_per_node + r));
    }
    s->set_kind(static_cast<uint32_t>(Kind::kAllreduce));
    s->set_dtype(static_cast<uint32_t>(DType::kFloat32));
    s->set_prescale(1);
    s->set_postscale(1);
    for (const int64_t d : job_->tensors[i].shape) s->add_shape(d);
  }
}

void Executor::Submit(size_t tensors) {
  std::lock_guard lock(mutex_);
  // The real executor adds one after the other: the first goes alone.
  if (unacknowledged_ == 0 && submitted_ < tensors) {
    submitted_ = taken_ + 1;
    Report();
  }
  submitted_ = tensors;
}

void Executor::Report() {
  if (unacknowledged_ != 0 || taken_ == submitted_) return;
  auto message = std::make_shared<Out>();
  proto::Presence* presence = message->mutable_presence();
  message->set_epoch(epoch_);
  for (; taken_ < submitted_; ++taken_) {
    *presence->add_operations() = std::move(reports_[taken_]);
  }
  // All is submitted: the ranks wait for the first tensor.
  if (taken_ == reports_.size() && !urgent_said_ &&
      presence->operations_size() < static_cast<int>(taken_) &&
      executed_[0] == Clock::time_point()) {
    urgent_said_ = true;
    proto::UrgentOperation* urgent = presence->add_urgent();
    if (const uint32_t id = job_->ids[0]; id != 0) {
      urgent->set_id(id);
    } else {
      urgent->mutable_identity()->set_kind(
          static_cast<uint32_t>(Kind::kAllreduce));
      urgent->mutable_identity()->set_name(job_->tensors[0].name);
    }
    urgent->set_generation(step_);
  }
  Send(std::move(message));
  unacknowledged_ = link_.sent();
  const Clock::time_point now = Clock::now();
  const size_t first = taken_ - presence->operations_size();
  for (size_t i = first; i < taken_; ++i) reported_[i] = now;
}

void Executor::SayRelaysReady() {
  std::lock_guard lock(mutex_);
  if (relay_fan_out_ == 0) return;
  auto message = std::make_shared<Out>();
  message->set_epoch(epoch_);
  message->mutable_relays_ready();
  Send(std::move(message));
}

void Executor::LoseRank() {
  auto message = std::make_shared<Out>();
  std::lock_guard lock(mutex_);
  message->set_epoch(epoch_);
  message->mutable_rank_gone()->set_rank(
      static_cast<uint32_t>(node_ * job_->ranks_per_node));
  message->mutable_rank_gone()->set_how("was killed by the load program");
  Send(std::move(message));
}

void Executor::Leave() {
  std::lock_guard lock(mutex_);
  leaving_ = true;
  for (size_t i = 0; i < job_->ranks_per_node; ++i) {
    auto message = std::make_shared<Out>();
    message->set_epoch(epoch_);
    message->mutable_rank_gone()->set_rank(
        static_cast<uint32_t>(node_ * job_->ranks_per_node + i));
    message->mutable_rank_gone()->set_clean(true);
    Send(std::move(message));
  }
}

void Executor::Cut() {
  {
    std::lock_guard lock(mutex_);
    cut_ = true;
  }
  context_.TryCancel();
}

void Executor::AwaitDone() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_; });
}

// --- What comes from the coordinator -----------------------------------------

void Executor::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone() follows
  if (incoming_.has_relayed()) job_->pass_on(incoming_.relayed());
  std::lock_guard lock(mutex_);
  Handle(incoming_);
  StartRead(&incoming_);
}

void Executor::OnWriteDone(bool ok) {
  if (!ok) return;
  std::lock_guard lock(mutex_);
  outgoing_.pop_front();
  if (!outgoing_.empty()) Write();
}

void Executor::OnDone(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  if (!cut_) Fail("the stream has ended: " + status.error_message());
  done_ = true;
  ended_.notify_all();
}

void Executor::Handle(const In& message) {
  job_->received_messages.fetch_add(1, std::memory_order_relaxed);
  job_->received_bytes.fetch_add(message.ByteSizeLong(),
                                 std::memory_order_relaxed);
  Take(message, message.sequence(), message.acknowledged(), Clock::now());
}

void Executor::TakeRelayed(const proto::Relayed& relayed, const In& message,
                           Clock::time_point received) {
  const int node = static_cast<int>(node_);
  const uint64_t sequence = relayed.sequences(node);
  std::lock_guard lock(mutex_);
  if (sequence == 0) return;
  Take(message, sequence, relayed.acknowledged(node), received);
}

void Executor::Take(const In& message, uint64_t sequence, uint64_t acknowledged,
                    Clock::time_point received) {
  switch (link_.OnReceived(sequence, acknowledged)) {
    case Receipt::kBadAck:
      return Fail("acknowledges what was not sent");
    case Receipt::kDuplicate:
      return;
    case Receipt::kGap:
      early_.emplace(sequence, std::pair(message, received));
      return;
    case Receipt::kUnnumbered:
    case Receipt::kNew:
      break;
  }
  OnNumbers(acknowledged);
  OnPayload(message, received);
  while (!early_.empty() && early_.begin()->first <= link_.received() + 1) {
    const auto next = early_.extract(early_.begin());
    if (link_.OnReceived(next.key(), 0) == Receipt::kNew) {
      OnPayload(next.mapped().first, next.mapped().second);
    }
  }
}

void Executor::OnNumbers(uint64_t acknowledged) {
  // As worker/network/session.h, but without the ack after a pause.
  if (link_.untold() >= worker::kAckEvery && outgoing_.size() <= 1) {
    Queue(link_.Bare({std::make_shared<Out>()}));
  }
  if (leaving_ && link_.unacknowledged() == 0) {
    leaving_ = false;
    job_->progress.Add(kEnded);
  }
  if (unacknowledged_ != 0 && acknowledged >= unacknowledged_) {
    unacknowledged_ = 0;
    Report();
    if (unacknowledged_ == 0 && taken_ == reports_.size() &&
        !std::exchange(all_acknowledged_, true)) {
      job_->progress.Add(kReported);
    }
  }
}

void Executor::OnPayload(const In& message, Clock::time_point received) {
  if (message.has_welcome()) {
    job_->progress.Add(kWelcomed);
    auto ready = std::make_shared<Out>();
    proto::RanksReady* r = ready->mutable_ranks_ready();
    r->set_size(static_cast<uint32_t>(job_->nodes * job_->ranks_per_node));
    for (size_t i = 0; i < job_->ranks_per_node; ++i) {
      r->add_ranks(static_cast<uint32_t>(node_ * job_->ranks_per_node + i));
      r->add_pids(static_cast<int64_t>(1000 + i));
    }
    r->set_chunk_bytes(kChunkBytes);
    Send(std::move(ready));
  } else if (message.has_epoch_start()) {
    OnStart(message.epoch_start());
  } else if (message.has_endpoints()) {
    if (message.endpoints().addresses_size() != static_cast<int>(job_->nodes)) {
      return Fail("Endpoints without an address for each node");
    }
    job_->progress.Add(kConnected);
  } else if (message.has_execute()) {
    for (const proto::Run& run : message.execute().runs()) {
      TakeRun(run, received);
    }
  } else if (message.has_epoch_end()) {
    job_->progress.Add(kEnded);
  } else if (message.has_refused()) {
    Fail("refused: " + message.refused().message());
  } else if (message.has_operation_failed()) {
    Fail("an operation failed: " + message.operation_failed().message());
  }
}

void Executor::OnStart(const proto::EpochStart& start) {
  if (start.nodes_size() != static_cast<int>(job_->nodes) ||
      start.nodes(static_cast<int>(start.node_index())).node() != name_) {
    return Fail("an EpochStart with other nodes");
  }
  epoch_ = start.epoch();
  relay_fan_out_ = start.relay_fan_out();
  job_->progress.Add(kStarted);
  auto endpoint = std::make_shared<Out>();
  endpoint->set_epoch(epoch_);
  const std::string address(job_->address_bytes, 'a');
  for (size_t i = 0; i < job_->nodes; ++i) {
    endpoint->mutable_endpoint()->add_addresses(
        i == start.node_index() || job_->nodes == 1 ? "" : address);
  }
  Send(std::move(endpoint));
}

void Executor::TakeRun(const proto::Run& run, Clock::time_point now) {
  if (run.run() != ++last_run_) return Fail("a gap in the numbers of runs");
  for (const proto::RunOperation& o : run.operations()) {
    digest_ = Mix(Mix(Mix(digest_, run.run()), o.id()), o.generation());
    size_t i = 0;
    if (o.has_identity()) {
      const auto it = job_->index.find(o.identity().name());
      if (it == job_->index.end()) return Fail("a run of an unknown name");
      i = it->second;
      if (o.id() >= by_id_.size()) by_id_.resize(o.id() + 1, kUnknown);
      by_id_[o.id()] = i;
      job_->ids[i] = o.id();
    } else if (o.id() < by_id_.size() && by_id_[o.id()] != kUnknown) {
      i = by_id_[o.id()];
    } else {
      return Fail("a run of an unknown id");
    }
    if (o.generation() != step_ || executed_[i] != Clock::time_point()) {
      return Fail("an operation of another step, or twice");
    }
    executed_[i] = now;
    ++executed_count_;
  }
  if (executed_count_ == executed_.size()) job_->progress.Add(kExecuted);
}

void Executor::Fail(const std::string& what) {
  job_->progress.Fail(absl::StrCat("node ", name_, ": ", what));
}

// --- What goes to the coordinator --------------------------------------------

void Executor::Send(std::shared_ptr<Out> message) {
  const Numbered* numbered = link_.Push({std::move(message)});
  if (numbered == nullptr) return Fail("the coordinator does not acknowledge");
  Queue(*numbered);
}

void Executor::Queue(Numbered numbered) {
  job_->sent_messages.fetch_add(1, std::memory_order_relaxed);
  job_->sent_bytes.fetch_add(numbered.message->ByteSizeLong(),
                             std::memory_order_relaxed);
  outgoing_.push_back(std::move(numbered));
  if (outgoing_.size() == 1) Write();
}

void Executor::Write() { StartWrite(outgoing_.front().message.get()); }

}  // namespace maypole::scale
