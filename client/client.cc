#include "client/client.h"

#include <algorithm>

#include "client/local_job.h"
#include "client/node_job.h"

namespace maypole {
namespace {

// Unique in the process: handles outlive the client that issued them.
std::atomic<int64_t> next_handle{1};

Status UnknownHandle(int64_t handle) {
  return Status(Code::kNotFound, "no operation has the handle " +
                                     std::to_string(handle) +
                                     " (released already?)");
}

Status Describe(const Tensor& tensor, Kind kind, Signature* s) {
  if (tensor.shape.size() > kMaxDims) {
    return Status(Code::kInvalidArgument,
                  "a tensor may have " + std::to_string(kMaxDims) +
                      " dimensions, this one has " +
                      std::to_string(tensor.shape.size()));
  }
  s->kind = kind;
  s->dtype = tensor.dtype;
  s->dims = static_cast<uint8_t>(tensor.shape.size());
  std::copy(tensor.shape.begin(), tensor.shape.end(), s->shape);
  return Status();
}

}  // namespace

Client::Client(const Options& options, std::unique_ptr<Job> job)
    : options_(options), job_(std::move(job)) {}

Client::~Client() { job_->Leave(); }

Status Client::Join(const Options& options, std::unique_ptr<Client>* out) {
  std::unique_ptr<Job> job;
  if (options.local()) {
    job = std::make_unique<LocalJob>();
  } else {
    std::unique_ptr<NodeJob> node_job;
    if (Status s = NodeJob::Join(options, &node_job); !s.ok()) return s;
    job = std::move(node_job);
  }
  out->reset(new Client(options, std::move(job)));
  return Status();
}

Status Client::Allreduce(std::string_view name, const Tensor& tensor,
                         const AllreduceOptions& options, int64_t* handle) {
  Signature s;
  if (Status e = Describe(tensor, Kind::kAllreduce, &s); !e.ok()) return e;
  s.op = options.op;
  s.prescale = options.prescale;
  s.postscale = options.postscale;
  return Submit(name, s, tensor.input, tensor.output, handle, options.awaited);
}

Status Client::Allgather(std::string_view name, const Tensor& tensor,
                         int64_t* handle) {
  Signature s;
  if (Status e = Describe(tensor, Kind::kAllgather, &s); !e.ok()) return e;
  return Submit(name, s, tensor.input, nullptr, handle);
}

Status Client::Broadcast(std::string_view name, const Tensor& tensor, int root,
                         int64_t* handle) {
  Signature s;
  if (Status e = Describe(tensor, Kind::kBroadcast, &s); !e.ok()) return e;
  s.root = root;
  return Submit(name, s, tensor.input, tensor.output, handle);
}

Status Client::Barrier(int64_t* handle) {
  Signature s;
  s.kind = Kind::kBarrier;
  s.dims = 1;  // no elements
  return Submit("", s, nullptr, nullptr, handle, /*awaited=*/true);
}

Status Client::Submit(std::string_view name, const Signature& signature,
                      const void* input, void* output, int64_t* handle,
                      bool awaited) {
  if (Status s = CheckSignature(name, signature); !s.ok()) return s;
  auto op = std::make_shared<Operation>();
  op->name = name;
  op->signature = signature;
  if (signature.kind != Kind::kAllreduce) {  // no other kind has factors
    op->signature.prescale = op->signature.postscale = 1.0;
  }
  op->awaited = awaited;
  if (signature.kind == Kind::kBroadcast && signature.root >= options_.size) {
    return Status(Code::kInvalidArgument,
                  op->Title() + ": root rank " +
                      std::to_string(signature.root) + " of a job of " +
                      std::to_string(options_.size) + " ranks");
  }
  const bool needs_output =
      signature.kind == Kind::kAllreduce || signature.kind == Kind::kBroadcast;
  const bool needs_input =
      signature.kind != Kind::kBroadcast || signature.root == options_.rank;
  if (signature.Bytes() > 0 && ((needs_input && input == nullptr) ||
                                (needs_output && output == nullptr))) {
    return Status(Code::kInvalidArgument,
                  op->Title() + ": a buffer is missing (null)");
  }
  op->input = static_cast<const std::byte*>(input);
  op->output = static_cast<std::byte*>(output);
  {
    std::lock_guard lock(mutex_);
    op->handle = next_handle.fetch_add(1);
    handles_[op->handle] = op;
  }
  const int64_t number = op->handle;
  Status s = job_->Start(std::move(op));
  if (!s.ok()) {
    std::lock_guard lock(mutex_);
    handles_.erase(number);
    return s;
  }
  counters_.operations.fetch_add(1, std::memory_order_relaxed);
  *handle = number;
  return Status();
}

std::shared_ptr<Operation> Client::Find(int64_t handle) const {
  std::lock_guard lock(mutex_);
  const auto it = handles_.find(handle);
  return it == handles_.end() ? nullptr : it->second;
}

Status Client::Poll(int64_t handle, bool* done) {
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  if (!op->done.load(std::memory_order_acquire)) job_->Poke(*op);
  *done = op->done.load(std::memory_order_acquire);
  return Status();
}

Status Client::Wait(int64_t handle, int timeout_ms) {
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  Status s = job_->Await(*op, timeout_ms);
  return s.ok() ? op->status : s;
}

Status Client::GetResult(int64_t handle, Result* out) {
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  if (!op->done.load(std::memory_order_acquire)) {
    return Status(Code::kFailedPrecondition,
                  op->Title() + " is still pending; wait for it first");
  }
  if (!op->status.ok()) return op->status;
  out->data = op->output;
  if (op->signature.kind == Kind::kAllgather) {
    out->bytes = static_cast<int64_t>(op->gathered_bytes);
    out->first_dim = op->gathered_rows;
  } else {
    out->bytes = static_cast<int64_t>(op->signature.Bytes());
    out->first_dim = op->signature.dims > 0 ? op->signature.shape[0] : 1;
  }
  return Status();
}

Status Client::Release(int64_t handle) {
  std::shared_ptr<Operation> op;  // destroyed after the lock
  {
    std::lock_guard lock(mutex_);
    const auto it = handles_.find(handle);
    if (it == handles_.end()) return UnknownHandle(handle);
    op = std::move(it->second);
    handles_.erase(it);
  }
  Count(*op);
  return Status();
}

void Client::Count(const Operation& op) {
  if (!op.done.load(std::memory_order_acquire)) return;
  if (op.status.ok()) {
    counters_.completed.fetch_add(1, std::memory_order_relaxed);
    if (op.ran_in_arena) {
      counters_.arena_operations.fetch_add(1, std::memory_order_relaxed);
    }
    counters_.bytes.fetch_add(static_cast<int64_t>(op.signature.Bytes()),
                              std::memory_order_relaxed);
  } else {
    counters_.failed.fetch_add(1, std::memory_order_relaxed);
  }
}

size_t Client::handles() const {
  std::lock_guard lock(mutex_);
  return handles_.size();
}

int64_t Client::pending() const {
  std::lock_guard lock(mutex_);
  int64_t n = 0;
  for (const auto& [handle, op] : handles_) {
    n += op->done.load(std::memory_order_acquire) ? 0 : 1;
  }
  return n;
}

void Client::AbandonInChild() {
  if (auto* node = dynamic_cast<NodeJob*>(job_.get())) node->AbandonInChild();
}

}  // namespace maypole
