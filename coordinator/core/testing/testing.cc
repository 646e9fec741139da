#include "coordinator/core/testing/testing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "common/limits.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

proto::PresentOperation Make(Kind kind, const std::string& name,
                             const std::vector<uint32_t>& ranks,
                             const std::vector<int64_t>& shape) {
  proto::PresentOperation op;
  op.mutable_identity()->set_kind(static_cast<uint32_t>(kind));
  op.mutable_identity()->set_name(name);
  op.set_generation(1);
  proto::LocalSignature* s = op.add_signatures();
  s->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  s->set_kind(static_cast<uint32_t>(kind));
  s->set_dtype(static_cast<uint32_t>(DType::kFloat32));
  s->set_op(static_cast<uint32_t>(Op::kSum));
  s->set_root(-1);
  s->set_prescale(1);
  s->set_postscale(1);
  s->mutable_shape()->Assign(shape.begin(), shape.end());
  return op;
}

}  // namespace

TestBed::TestBed(const Config& config)
    : core_(std::make_unique<CoordinatorCore>(config, "incarnation-1")) {}

Executor& TestBed::Connect(const std::string& job, const std::string& node,
                           const std::string& token, VersionRange versions) {
  proto::ExecutorHello hello;
  hello.set_protocol_version(versions.oldest);
  hello.set_newest_version(versions.newest);
  hello.set_job(job);
  hello.set_node(node);
  hello.set_host("host-" + node);
  hello.set_token(token);
  return Hello(hello);
}

Executor& TestBed::Hello(const proto::ExecutorHello& hello) {
  Executor& e = executors_.emplace_back();
  e.job = hello.job();
  e.node = hello.node();
  e.token = hello.token();
  e.versions = {hello.protocol_version(), hello.newest_version()};
  e.stream = ++last_stream_;
  proto::ExecutorMessage m;
  *m.mutable_hello() = hello;
  Raw(e, m);
  return e;
}

void TestBed::Ready(Executor& e, uint32_t size,
                    const std::vector<uint32_t>& ranks, uint32_t chunk_bytes) {
  proto::ExecutorMessage m;
  m.mutable_ranks_ready()->set_chunk_bytes(chunk_bytes);
  m.mutable_ranks_ready()->set_size(size);
  for (uint32_t rank : ranks) {
    m.mutable_ranks_ready()->add_ranks(rank);
    m.mutable_ranks_ready()->add_pids(1000 + rank);
  }
  m.mutable_ranks_ready()->set_stall_check_ms(stall_check_ms);
  m.mutable_ranks_ready()->set_stall_shutdown_ms(stall_shutdown_ms);
  m.mutable_ranks_ready()->set_start_timeout_ms(start_timeout_ms);
  m.mutable_ranks_ready()->set_checksums(checksums);
  From(e, std::move(m));
}

void TestBed::Waiting(Executor& e, uint32_t size,
                      const std::vector<uint32_t>& ranks, uint32_t local_size) {
  proto::ExecutorMessage m;
  m.mutable_ranks_waiting()->set_size(size);
  m.mutable_ranks_waiting()->set_start_timeout_ms(start_timeout_ms);
  m.mutable_ranks_waiting()->mutable_ranks()->Assign(ranks.begin(),
                                                     ranks.end());
  m.mutable_ranks_waiting()->set_local_size(local_size);
  From(e, std::move(m));
}

void TestBed::From(Executor& e, proto::ExecutorMessage payload) {
  const proto::ExecutorMessage* m = e.link.Push(std::move(payload));
  ASSERT_NE(m, nullptr);
  if (e.stream != 0) Raw(e, proto::ExecutorMessage(*m));
}

void TestBed::Raw(Executor& e, const proto::ExecutorMessage& message) {
  core_->Received(now_, e.stream, message, carry_);
}

void TestBed::Acknowledge(Executor& e) { Raw(e, e.link.Bare({})); }

void TestBed::PassOn(const std::vector<Executor*>& nodes) {
  for (const proto::Relayed& relayed : std::exchange(nodes[0]->relayed, {})) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      const int node = static_cast<int>(i);
      if (relayed.sequences(node) == 0) continue;
      proto::CoordinatorMessage message;
      ASSERT_TRUE(message.ParseFromString(relayed.message()));
      message.set_sequence(relayed.sequences(node));
      message.set_acknowledged(relayed.acknowledged(node));
      Receive(nodes[i], message);
    }
  }
}

void TestBed::Break(Executor& e) {
  core_->Ended(now_, std::exchange(e.stream, 0), StreamEnd::kBroken, carry_);
}

void TestBed::Finish(Executor& e) {
  core_->Ended(now_, std::exchange(e.stream, 0), StreamEnd::kFinished, carry_);
}

void TestBed::Resume(Executor& e) {
  e.stream = ++last_stream_;
  proto::ExecutorMessage m;
  proto::ExecutorHello* hello = m.mutable_hello();
  hello->set_protocol_version(e.versions.oldest);
  hello->set_newest_version(e.versions.newest);
  hello->set_job(e.job);
  hello->set_node(e.node);
  hello->set_token(e.token);
  hello->set_session(e.session);
  hello->set_incarnation(e.incarnation);
  Raw(e, e.link.Bare(m));
  if (e.refused) return;
  std::vector<proto::ExecutorMessage> again;
  e.link.Resend([&](const proto::ExecutorMessage& r) { again.push_back(r); });
  for (const auto& r : again) Raw(e, r);
}

void TestBed::Pass(Time time) {
  const Time end = now_ + time;
  while (core_->Deadline() && *core_->Deadline() <= end) {
    now_ = std::max(now_, *core_->Deadline());
    core_->Passed(now_, carry_);
  }
  now_ = end;
}

void TestBed::PassUnseen(Time time) {
  now_ += time;
  core_->Passed(now_, carry_);
}

proto::StatusReply TestBed::Status(const std::string& job) {
  proto::StatusRequest request;
  request.set_job(job);
  const auto reply = core_->Status(now_, request);
  return reply.ok() ? *reply : proto::StatusReply();
}

absl::StatusOr<proto::AbortReply> TestBed::Abort(const std::string& job,
                                                 const std::string& reason) {
  proto::AbortRequest request;
  request.set_job(job);
  request.set_reason(reason);
  request.set_who("root@head");
  return core_->Abort(now_, request, carry_);
}

absl::StatusOr<proto::RecordTimelineReply> TestBed::RecordTimeline(
    const std::string& job, bool stop) {
  proto::RecordTimelineRequest request;
  request.set_job(job);
  request.set_stop(stop);
  request.set_who("root@head");
  return core_->RecordTimeline(now_, request, carry_);
}

absl::StatusOr<proto::DrainReply> TestBed::Drain(const std::string& node,
                                                 bool undo) {
  proto::DrainRequest request;
  request.set_node(node);
  request.set_undo(undo);
  request.set_who("root@head");
  return core_->Drain(now_, request, carry_);
}

int TestBed::Count(ErrorKind kind) const {
  return std::count(errors_.begin(), errors_.end(), kind);
}

Executor* TestBed::On(StreamId stream) {
  for (Executor& e : executors_) {
    if (e.stream == stream) return &e;
  }
  return nullptr;
}

void TestBed::Receive(Executor* e, const proto::CoordinatorMessage& message) {
  if (message.has_welcome()) {
    e->session = message.welcome().session();
    e->incarnation = message.welcome().incarnation();
    e->version = message.welcome().protocol_version();
  }
  if (message.has_refused()) e->refused = message.refused();
  const Receipt r =
      e->link.OnReceived(message.sequence(), message.acknowledged());
  EXPECT_TRUE(r == Receipt::kNew || r == Receipt::kUnnumbered ||
              r == Receipt::kDuplicate)
      << static_cast<int>(r) << " " << message.ShortDebugString();
  if (message.has_relayed()) e->relayed.push_back(message.relayed());
  if (r != Receipt::kNew) return;
  e->inbox.push_back(message);
  for (const auto& run : message.execute().runs()) e->runs.push_back(run);
  if (message.has_operation_failed()) {
    e->failures.push_back(message.operation_failed());
  }
  if (message.has_set_reply()) e->set_replies.push_back(message.set_reply());
  if (message.has_join_reply()) e->join_replies.push_back(message.join_reply());
  if (message.has_stand_in()) e->stand_ins.push_back(message.stand_in());
  if (message.has_notice()) e->notices.push_back(message.notice().text());
  if (message.has_epoch_end()) e->ends.emplace_back(message);
  // All that is numbered belongs to an epoch, except these two.
  EXPECT_TRUE(message.epoch() != 0 || message.has_epoch_end() ||
              message.has_recovered())
      << message.ShortDebugString();
}

void TestBed::Carry(const Actions& actions) {
  for (const Action& action : actions) {
    if (const Send* send = std::get_if<Send>(&action)) {
      if (Executor* e = On(send->stream)) {
        Receive(e, send->message.ToMessage());
      }
    } else if (const Close* close = std::get_if<Close>(&action)) {
      if (Executor* e = On(close->stream)) {
        e->closed = close->status;
        e->stream = 0;
      }
    } else if (const StragglerNode* late =
                   std::get_if<StragglerNode>(&action)) {
      stragglers_.push_back(*late);
    } else if (const ErrorCounted* error = std::get_if<ErrorCounted>(&action)) {
      errors_.push_back(error->kind);
    } else if (const auto* issued = std::get_if<OperationIssued>(&action)) {
      issued_.push_back(*issued);
    } else if (const Log* log = std::get_if<Log>(&action)) {
      log_.push_back(log->line);
    } else if (std::holds_alternative<Reconnected>(action)) {
      ++reconnects_;
    }
  }
}

proto::PresentOperation Allreduce(const std::string& name,
                                  const std::vector<uint32_t>& ranks,
                                  const std::vector<int64_t>& shape,
                                  uint32_t generation) {
  proto::PresentOperation op = Make(Kind::kAllreduce, name, ranks, shape);
  op.set_generation(generation);
  return op;
}

proto::PresentOperation Broadcast(const std::string& name,
                                  const std::vector<uint32_t>& ranks,
                                  const std::vector<int64_t>& shape,
                                  int32_t root) {
  proto::PresentOperation op = Make(Kind::kBroadcast, name, ranks, shape);
  op.mutable_signatures(0)->set_root(root);
  return op;
}

proto::PresentOperation Allgather(const std::string& name,
                                  const std::vector<uint32_t>& ranks,
                                  const std::vector<int64_t>& first_dims,
                                  int64_t row) {
  proto::PresentOperation op =
      Make(Kind::kAllgather, name, ranks, {first_dims.front(), row});
  op.mutable_first_dims()->Assign(first_dims.begin(), first_dims.end());
  return op;
}

proto::PresentOperation Alltoall(
    const std::string& name, const std::vector<uint32_t>& ranks,
    const std::vector<std::vector<int64_t>>& splits, int64_t row) {
  proto::PresentOperation op = Make(Kind::kAlltoall, name, ranks, {0, row});
  for (const std::vector<int64_t>& to : splits) {
    op.add_first_dims(std::accumulate(to.begin(), to.end(), int64_t{0}));
    for (const int64_t rows : to) op.add_splits(rows);
  }
  return op;
}

proto::PresentOperation In(uint32_t process_set, proto::PresentOperation op) {
  op.mutable_identity()->set_process_set(process_set);
  return op;
}

proto::ExecutorMessage MakeSet(uint32_t rank, uint32_t number,
                               const std::vector<uint32_t>& ranks) {
  proto::ExecutorMessage m;
  proto::SetRequest* request = m.mutable_set_request();
  m.set_epoch(1);
  request->set_rank(rank);
  request->set_number(number);
  request->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return m;
}

proto::ExecutorMessage RemoveSet(uint32_t rank, uint32_t number,
                                 uint32_t process_set) {
  proto::ExecutorMessage m = MakeSet(rank, number, {});
  m.mutable_set_request()->set_remove(true);
  m.mutable_set_request()->set_process_set(process_set);
  return m;
}

proto::ExecutorMessage Join(uint32_t rank, uint32_t number, bool settled) {
  proto::ExecutorMessage m;
  m.set_epoch(1);
  m.mutable_join_state()->set_rank(rank);
  m.mutable_join_state()->set_number(number);
  m.mutable_join_state()->set_settled(settled);
  return m;
}

proto::ExecutorMessage Present(
    uint64_t epoch, const std::vector<proto::PresentOperation>& operations) {
  proto::ExecutorMessage m;
  m.set_epoch(epoch);
  m.mutable_presence();
  for (const auto& op : operations)
    *m.mutable_presence()->add_operations() = op;
  return m;
}

proto::ExecutorMessage Gone(uint64_t epoch, uint32_t rank, bool clean,
                            const std::string& how) {
  proto::ExecutorMessage m;
  m.set_epoch(epoch);
  m.mutable_rank_gone()->set_rank(rank);
  m.mutable_rank_gone()->set_clean(clean);
  m.mutable_rank_gone()->set_how(how);
  return m;
}

}  // namespace maypole::coordinator
