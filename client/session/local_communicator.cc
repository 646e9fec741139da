#include "client/session/local_communicator.h"

#include <time.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "client/engine/rank_core.h"
#include "common/reduce/reduce.h"

namespace maypole {
namespace {

// See kWaitInterruptible.
constexpr auto kLongestWait = std::chrono::milliseconds(100);
constexpr timespec kNap = {0, 50'000};

void Copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// Takes the same steps as with several ranks, so the result has the same bits.
void ReduceAlone(Operation& op) {
  const Signature& s = op.signature;
  const auto elements = static_cast<size_t>(s.Elements());
  if (elements == 0) return;
  const std::byte* input = op.input;
  if (s.prescale != 1.0) {
    Scale(s.dtype, input, op.output, elements, s.prescale);
    input = op.output;
  }
  if (s.postscale != 1.0 || s.dtype == DType::kBool) {
    Reduce(s.dtype, s.op, {&input, 1}, op.output, elements,
           {.scale = s.postscale});
  } else {
    Copy(op.output, input, s.Bytes());
  }
}

// The result of an allgather or alltoall is this rank's own rows.
Status GatherAlone(Operation& op) {
  const uint64_t bytes = op.signature.Bytes();
  if (!op.MakeGathered(bytes, op.signature.shape[0])) {
    return Status(Code::kResourceExhausted,
                  op.Title() + ": no memory for a result of " +
                      std::to_string(bytes) + " bytes");
  }
  Copy(op.output, op.input, bytes);
  op.received = op.splits;
  return Status();
}

Status RunAlone(Operation& op) {
  switch (op.signature.kind) {
    case Kind::kAllreduce:
    case Kind::kReducescatter:
      ReduceAlone(op);
      break;
    case Kind::kBroadcast:
      Copy(op.output, op.input, op.signature.Bytes());
      break;
    case Kind::kAllgather:
    case Kind::kAlltoall:
      return GatherAlone(op);
    default:
      break;
  }
  return Status();
}

}  // namespace

LocalCommunicator::LocalCommunicator()
    : set_(std::make_shared<const ProcessSet>(ProcessSet{0, {0}, {0}})) {}

Status LocalCommunicator::Start(
    std::span<const std::shared_ptr<Operation>> operations) {
  if (Status s = CheckDoubles(operations); !s.ok()) return s;

  for (const std::shared_ptr<Operation>& op : operations) {
    // The only possible set, that of all ranks, exists already: a request by
    // its members returns it.
    if (op->control == Control::kSetRequest && !op->by_members) {
      op->status = Status(
          Code::kInvalidArgument,
          op->removes != 0
              ? op->Title() + ": there is no process set " +
                    std::to_string(op->removes)
              : op->Title() + ": its ranks are all ranks, process set 0");
    } else if (op->control == Control::kNone) {
      if (timeline_.on()) Begin(op.get());
      if (!op->input_ready) {
        std::lock_guard lock(mutex_);
        pending_.push_back(op);
        continue;
      }
      op->status = RunAlone(*op);
    }
    Done(op.get());
  }
  return Status();
}

void LocalCommunicator::Begin(Operation* op) {
  op->moments.submitted = LocalTimeline::Now();
  op->moments.arrived = op->input_ready ? op->moments.submitted : 0;
  std::lock_guard lock(mutex_);
  op->moments.number = ++recorded_;
}

void LocalCommunicator::Done(Operation* op) {
  if (op->recorded()) {
    op->moments.ended = LocalTimeline::Now();
    if (op->moments.arrived == 0) op->moments.arrived = op->moments.ended;
    op->moments.begun = op->moments.arrived;
    timeline_.Record(*op);
  }
  op->SetDone();
}

Status LocalCommunicator::Await(const Operation& op, int timeout_ms) {
  const auto start = std::chrono::steady_clock::now();
  const int limit = LimitOfWait(timeout_ms);
  while (!op.done.load(std::memory_order_acquire)) {
    const auto waited = std::chrono::steady_clock::now() - start;
    if (limit >= 0 && waited >= std::chrono::milliseconds(limit)) {
      return Status(Code::kDeadlineExceeded, op.Title() + " is still pending");
    }
    if (timeout_ms <= kWaitInterruptible && waited >= kLongestWait) {
      return Status(Code::kCancelled, "the wait returns while a GPU works");
    }
    if (nanosleep(&kNap, nullptr) != 0) {
      return Status(Code::kCancelled, "a signal interrupted the wait");
    }
  }
  return Status();
}

void LocalCommunicator::InputReady(const std::shared_ptr<Operation>& op) {
  End(op, RunAlone(*op));
}

void LocalCommunicator::InputFailed(const std::shared_ptr<Operation>& op,
                                    const Status& error) {
  End(op, op->Explain(error));
}

void LocalCommunicator::End(const std::shared_ptr<Operation>& op,
                            Status status) {
  std::lock_guard lock(mutex_);
  if (std::erase(pending_, op) == 0) return;  // ended by Leave()
  op->status = std::move(status);
  Done(op.get());
}

void LocalCommunicator::Leave() {
  // Leaves even if the file could not be written.
  (void)timeline_.Stop();
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Operation>& op : std::exchange(pending_, {})) {
    op->status = op->Explain(
        Status(Code::kAborted,
               "this rank has left the job (shutdown) with the operation "
               "pending"));
    op->SetDone();
  }
}

}  // namespace maypole
