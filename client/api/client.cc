#include "client/api/client.h"

#include <algorithm>

#include "client/session/board_communicator.h"
#include "client/session/local_communicator.h"
#include "client/session/stall_notice.h"
#include "common/reduce/adasum.h"

namespace maypole {
namespace {

// Unique in the process, because handles outlive the client that issued them.
std::atomic<int64_t> next_handle{1};

Status UnknownHandle(int64_t handle) {
  return Status(Code::kNotFound, "no operation has the handle " +
                                     std::to_string(handle) +
                                     " (it may have been released already)");
}

// "[0, 2, 3]"
std::string RanksText(const std::vector<int>& ranks) {
  constexpr size_t kShown = 16;
  std::string out = "[";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) {
    out += ", and " + std::to_string(ranks.size() - kShown) + " more";
  }
  return out + "]";
}

Status Describe(const Tensor& tensor, Kind kind, Signature* s) {
  if (tensor.shape.size() > kMaxDims) {
    return Status(Code::kInvalidArgument,
                  "a tensor may have up to " + std::to_string(kMaxDims) +
                      " dimensions, but this one has " +
                      std::to_string(tensor.shape.size()));
  }
  s->kind = kind;
  s->dtype = tensor.dtype;
  s->dims = static_cast<uint8_t>(tensor.shape.size());
  std::copy(tensor.shape.begin(), tensor.shape.end(), s->shape);
  return Status();
}

}  // namespace

Client::Client(const RankOptions& options,
               std::unique_ptr<Communicator> communicator)
    : options_(options),
      communicator_(std::move(communicator)),
      adasums_(communicator_, options_.rank) {
  communicator_->WatchCallbacks(callbacks_);
}

Client::~Client() { Leave(); }

// Staging leaves first: after that it reports no inputs to the communicator.
void Client::Leave() {
  std::shared_ptr<Staging> staging;
  std::shared_ptr<CompletionThread> completions;
  {
    std::lock_guard lock(mutex_);
    staging = staging_;
    completions = completions_;
  }
  if (staging != nullptr) staging->Leave();
  communicator_->Leave();
  if (completions != nullptr) completions->Drain();
}

Status Client::Join(const RankOptions& options, std::unique_ptr<Client>* out) {
  ShowNotices(options.notices);
  if (options.local()) {
    out->reset(new Client(options, std::make_unique<LocalCommunicator>()));
    return Status();
  }
  std::unique_ptr<BoardCommunicator> communicator;
  Status s = BoardCommunicator::Join(options, &communicator);
  if (!s.ok()) return s;
  const RankOptions placed = communicator->options();
  out->reset(new Client(placed, std::move(communicator)));
  return Status();
}

Status Client::SubmitReduction(std::string_view name, Kind kind,
                               const Tensor& tensor,
                               const ReduceOptions& options, int64_t* handle) {
  Request r{.name = std::string(name),
            .input = tensor.input,
            .output = tensor.output,
            .awaited = options.awaited};
  if (Status e = Describe(tensor, kind, &r.signature); !e.ok()) return e;
  r.signature.op = options.op;
  r.signature.prescale = options.prescale;
  r.signature.postscale = options.postscale;
  r.signature.process_set = options.process_set;
  return Submit(std::move(r), handle);
}

Status Client::Allreduce(std::string_view name, const Tensor& tensor,
                         const ReduceOptions& options, int64_t* handle) {
  return SubmitReduction(name, Kind::kAllreduce, tensor, options, handle);
}

Status Client::Reducescatter(std::string_view name, const Tensor& tensor,
                             const ReduceOptions& options, int64_t* handle) {
  return SubmitReduction(name, Kind::kReducescatter, tensor, options, handle);
}

Status Client::Allgather(std::string_view name, const Tensor& tensor,
                         int64_t* handle, uint32_t process_set) {
  Request r{.name = std::string(name), .input = tensor.input};
  if (Status e = Describe(tensor, Kind::kAllgather, &r.signature); !e.ok()) {
    return e;
  }
  r.signature.process_set = process_set;
  return Submit(std::move(r), handle);
}

Status Client::Alltoall(std::string_view name, const Tensor& tensor,
                        std::vector<int64_t> splits, int64_t* handle,
                        uint32_t process_set) {
  Request r{.name = std::string(name),
            .input = tensor.input,
            .splits = std::move(splits)};
  if (Status e = Describe(tensor, Kind::kAlltoall, &r.signature); !e.ok()) {
    return e;
  }
  r.signature.process_set = process_set;
  return Submit(std::move(r), handle);
}

Status Client::Broadcast(std::string_view name, const Tensor& tensor, int root,
                         int64_t* handle, uint32_t process_set) {
  Request r{.name = std::string(name),
            .input = tensor.input,
            .output = tensor.output};
  if (Status e = Describe(tensor, Kind::kBroadcast, &r.signature); !e.ok()) {
    return e;
  }
  r.signature.root = root;
  r.signature.process_set = process_set;
  return Submit(std::move(r), handle);
}

Status Client::Barrier(int64_t* handle, uint32_t process_set) {
  Request r{.awaited = true};
  r.signature.kind = Kind::kBarrier;
  r.signature.process_set = process_set;
  return Submit(std::move(r), handle);
}

Status Client::Join(int64_t* handle) {
  Request r;
  r.signature.kind = Kind::kJoin;
  return Submit(std::move(r), handle);
}

Status Client::AddProcessSet(std::vector<int> ranks, int64_t* handle,
                             bool by_members) {
  auto op = std::make_shared<Operation>();
  op->control = Control::kSetRequest;
  op->name = "new process set " + RanksText(ranks);
  std::sort(ranks.begin(), ranks.end());
  const bool twice =
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (ranks.empty() || twice || ranks.front() < 0 ||
      ranks.back() >= options_.size) {
    return Status(Code::kInvalidArgument,
                  op->name + ": expected ranks from 0 to " +
                      std::to_string(options_.size - 1) +
                      ", each once, and at least one");
  }
  if (by_members &&
      !std::binary_search(ranks.begin(), ranks.end(), options_.rank)) {
    return Status(Code::kInvalidArgument,
                  op->name + ": rank " + std::to_string(options_.rank) +
                      " is not a member; only members make this request");
  }
  op->ranks = std::move(ranks);
  op->by_members = by_members;
  return StartAll({&op, 1}, handle);
}

Status Client::RemoveProcessSet(uint32_t id, int64_t* handle) {
  auto op = std::make_shared<Operation>();
  op->control = Control::kSetRequest;
  op->name = "removal of process set " + std::to_string(id);
  op->removes = id;
  if (id == 0) {
    return Status(Code::kInvalidArgument,
                  op->name + ": the set of all ranks cannot be removed");
  }
  return StartAll({&op, 1}, handle);
}

std::vector<int> Client::ProcessSetRanks(uint32_t id) const {
  const auto set = communicator_->FindSet(id);
  return set == nullptr ? std::vector<int>() : set->ranks;
}

Status Client::Submit(Request request, int64_t* handle) {
  auto op = std::make_shared<Operation>();
  const cuda::CUstream stream = request.stream;
  if (Status s = MakeOperation(std::move(request), op.get()); !s.ok()) return s;
  if (op->signature.device == Device::kGpu) {
    if (Status s = Stage(op.get(), stream); !s.ok()) return s;
  }
  return StartAll({&op, 1}, handle);
}

Status Client::SubmitGroup(std::vector<Request> requests, int64_t* handles) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (Request& request : requests) {
    operations.push_back(std::make_shared<Operation>());
    Operation* const op = operations.back().get();
    const cuda::CUstream stream = request.stream;
    Status s = MakeOperation(std::move(request), op);
    if (s.ok() && op->control != Control::kNone) {
      s = Status(Code::kInvalidArgument, "a join cannot be part of a group");
    }
    if (s.ok() &&
        IsAdasum(op->signature) != IsAdasum(operations.front()->signature)) {
      s = Status(Code::kInvalidArgument,
                 op->Title() + ": a group is of Adasums, or of none");
    }
    if (s.ok() && op->signature.device == Device::kGpu) s = Stage(op, stream);
    if (!s.ok()) return s;
  }
  return operations.empty() ? Status() : StartAll(operations, handles);
}

// Checks what can be checked on this rank alone.
Status Client::MakeOperation(Request request, Operation* op) const {
  Signature& s = request.signature;
  if (s.kind == Kind::kBarrier) {
    s.dims = 1;  // no elements
    s.shape[0] = 0;
  }
  Signature checked = s;
  if (IsAdasum(s)) checked.op = Op::kSum;  // executors see no Adasum
  if (Status e = CheckSignature(request.name, checked); !e.ok()) return e;
  op->name = std::move(request.name);
  op->signature = s;
  op->input = static_cast<const std::byte*>(request.input);
  op->output = static_cast<std::byte*>(request.output);
  op->awaited = request.awaited;
  op->splits = std::move(request.splits);
  if (s.kind == Kind::kJoin) {
    op->control = Control::kJoin;
    op->name = "join";
    return Status();
  }
  if (!Reduces(s.kind)) {
    op->signature.prescale = op->signature.postscale = 1.0;  // it has none
  }
  if (Status e = FindSet(op); !e.ok()) return e;
  if (IsAdasum(s) && !HasAdasum(s.dtype)) {
    return Status(Code::kInvalidArgument,
                  op->Title() +
                      ": Adasum needs a floating point tensor, this "
                      "one is " +
                      std::string(Name(s.dtype)));
  }
  if (s.kind == Kind::kBroadcast && !op->set->Has(s.root)) {
    return Status(
        Code::kInvalidArgument,
        op->Title() + ": root rank " + std::to_string(s.root) +
            (s.process_set == 0
                 ? " is not in this job of " + std::to_string(options_.size) +
                       " ranks"
                 : " is not among its ranks " + RanksText(op->set->ranks)));
  }
  if (s.kind == Kind::kAlltoall) {
    if (Status e = CompleteSplits(op); !e.ok()) return e;
  } else if (!op->splits.empty()) {
    return Status(Code::kInvalidArgument,
                  op->Title() + ": splits are for alltoall only");
  }
  return CheckBuffers(*op);
}

Status Client::FindSet(Operation* op) const {
  const uint32_t id = op->signature.process_set;
  op->set = communicator_->FindSet(id);
  if (op->set == nullptr) {
    return Status(Code::kInvalidArgument,
                  op->Title() + ": there is no process set " +
                      std::to_string(id) +
                      " in this epoch; all ranks make one together "
                      "(maypole_process_set_add, add_process_set)");
  }
  if (op->set->Has(options_.rank)) return Status();
  return Status(Code::kInvalidArgument, op->Title() + ": rank " +
                                            std::to_string(options_.rank) +
                                            " is not in it; its ranks are " +
                                            RanksText(op->set->ranks));
}

Status Client::CompleteSplits(Operation* op) const {
  const auto n = static_cast<int64_t>(op->set->ranks.size());
  const int64_t rows = op->signature.shape[0];
  auto bad = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, op->Title() + ": " + what);
  };
  if (op->splits.empty()) {
    if (rows % n != 0) {
      return bad(std::to_string(rows) + " rows cannot be split evenly among " +
                 std::to_string(n) + " ranks; give splits");
    }
    op->splits.assign(static_cast<size_t>(n), rows / n);
    return Status();
  }
  if (static_cast<int64_t>(op->splits.size()) != n) {
    return bad(std::to_string(op->splits.size()) + " splits for " +
               std::to_string(n) + " ranks; give one for each");
  }
  int64_t left = rows;
  for (const int64_t split : op->splits) {
    if (split < 0)
      return bad("a split of " + std::to_string(split) +
                 " rows; splits must not be negative");
    if (split > left) left = -1;
    if (left < 0) break;
    left -= split;
  }
  if (left != 0) {
    return bad("the splits do not add up to the tensor's " +
               std::to_string(rows) + " rows");
  }
  return Status();
}

// Bytes of this rank's input; 0 if it is not used.
uint64_t Client::InputBytes(const Operation& op) const {
  const Signature& s = op.signature;
  return s.kind != Kind::kBroadcast || s.root == options_.rank ? s.Bytes() : 0;
}

// Bytes that the operation writes to this rank's output.
uint64_t Client::OutputBytes(const Operation& op) const {
  const Signature& s = op.signature;
  if (s.kind == Kind::kReducescatter) {
    const int64_t rows =
        ScatteredRows(s, op.set->size(), op.set->PositionOf(options_.rank));
    return static_cast<uint64_t>(rows) * s.RowBytes();
  }
  return Gathers(s.kind) ? 0 : s.Bytes();
}

Status Client::CheckBuffers(const Operation& op) const {
  if ((InputBytes(op) > 0 && op.input == nullptr) ||
      (OutputBytes(op) > 0 && op.output == nullptr)) {
    return Status(Code::kInvalidArgument,
                  op.Title() + ": a buffer that this operation needs is null");
  }
  return Status();
}

// The driver is opened by the first CUDA tensor: a script may choose its GPUs
// after init().
Status Client::OpenStaging(std::shared_ptr<Staging>* out) {
  // Not under mutex_: this may take seconds.
  std::lock_guard open(open_mutex_);
  {
    std::lock_guard lock(mutex_);
    *out = staging_;
  }
  if (*out != nullptr) return Status();
  GpuMemoryOptions gpus = options_.gpu_memory;
  gpus.tells_site = options_.rank == 0;
  if (Status s =
          Staging::Open(communicator_.get(), communicator_->arena(), gpus, out);
      !s.ok()) {
    return s;
  }
  if (!options_.gpu_notice.empty()) TellUser(options_.gpu_notice);
  std::lock_guard lock(mutex_);
  staging_ = *out;
  return Status();
}

Status Client::Stage(Operation* op, cuda::CUstream stream) {
  std::shared_ptr<Staging> staging;
  if (Status s = OpenStaging(&staging); !s.ok()) {
    return Status(
        Code::kInvalidArgument,
        op->Title() + ": CUDA tensors cannot be used here: " + s.message());
  }
  return staging->CopyIn(op, stream, InputBytes(*op), OutputBytes(*op));
}

Status Client::AllocateOnGpu(uint64_t bytes, int gpu, void** memory) {
  const auto all = communicator_->FindSet(0);
  if (all->locals.size() < 2 &&
      !communicator_->MayRunOnGpus(*all, Kind::kAllreduce, DType::kFloat32,
                                   "")) {
    return Status(Code::kResourceExhausted,
                  "this rank is alone on its node, and GPUs of other nodes "
                  "cannot be used together with its own, so that no memory of "
                  "GPUs is shared");
  }
  std::shared_ptr<Staging> staging;
  if (Status s = OpenStaging(&staging); !s.ok()) {
    return Status(Code::kInvalidArgument,
                  "maypole_allocate_on_gpu: CUDA memory cannot be used here: " +
                      s.message());
  }
  cuda::CUdeviceptr address = 0;
  const Status s = AllocateUserGpuMemory(staging, gpu, bytes, &address);
  if (s.ok()) *memory = reinterpret_cast<void*>(address);
  return s;
}

Status Client::CopyResult(int64_t handle, cuda::CUstream stream, void* to) {
  Result result;
  if (Status s = GetResult(handle, &result); !s.ok()) return s;
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  if (op->staged == nullptr) {
    return Status(Code::kInvalidArgument,
                  op->Title() +
                      ": its tensors are in host memory; read them "
                      "there");
  }
  return staging_->CopyOut(*op, stream, reinterpret_cast<cuda::CUdeviceptr>(to),
                           options_.async_completion
                               ? CopyOutReturns::kWhenEnqueued
                               : CopyOutReturns::kWhenDone);
}

Status Client::StartAll(std::span<const std::shared_ptr<Operation>> operations,
                        int64_t* handles) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& op : operations) {
      op->handle = next_handle.fetch_add(1);
      handles_[op->handle] = op;
    }
  }
  const bool adasums = IsAdasum(operations[0]->signature);
  std::shared_ptr<CompletionThread> completions;
  Status s = adasums ? OpenCompletions(&completions) : Status();
  if (s.ok()) {
    s = adasums ? adasums_.Start(operations, completions,
                                 [this](const auto& op, auto on_input) {
                                   staging_->Watch(op, std::move(on_input));
                                 })
                : communicator_->Start(operations);
  }
  if (!s.ok()) {
    std::lock_guard lock(mutex_);
    for (const auto& op : operations) handles_.erase(op->handle);
    return s;
  }
  for (const auto& op : operations) {
    if (op->staged != nullptr && !adasums) staging_->Watch(op);
  }
  counters_.operations.fetch_add(static_cast<int64_t>(operations.size()),
                                 std::memory_order_relaxed);
  for (size_t i = 0; i < operations.size(); ++i) {
    handles[i] = operations[i]->handle;
  }
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
  if (!op->done.load(std::memory_order_acquire)) {
    if (op->staged != nullptr) staging_->Look();
    if (!IsAdasum(op->signature)) {
      communicator_->Progress(*op);
    } else if (const auto run = adasums_.Find(handle)) {
      run->Progress();
    }
  }
  *done = op->done.load(std::memory_order_acquire);
  return Status();
}

Status Client::Wait(int64_t handle, int timeout_ms) {
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  if (op->staged != nullptr) staging_->SpinForInput(*op);
  const auto run = IsAdasum(op->signature) ? adasums_.Find(handle) : nullptr;
  const Status s = run != nullptr ? run->Await(timeout_ms)
                                  : communicator_->Await(*op, timeout_ms);
  return s.ok() ? op->status : s;
}

Status Client::OpenCompletions(std::shared_ptr<CompletionThread>* out) {
  std::lock_guard open(open_mutex_);
  if (completions_ == nullptr) {
    std::shared_ptr<CompletionThread> started;
    if (Status s = CompletionThread::Start(callbacks_, &started); !s.ok()) {
      return s;
    }
    std::lock_guard lock(mutex_);
    completions_ = std::move(started);
  }
  *out = completions_;
  return Status();
}

Status Client::OnDone(int64_t handle, std::function<void(const Status&)> done) {
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  std::shared_ptr<CompletionThread> completions;
  if (Status s = OpenCompletions(&completions); !s.ok()) return s;
  auto completion = std::make_unique<Completion>(
      op, [done = std::move(done)](const Operation& o) { done(o.status); });
  bool added;
  {
    std::lock_guard lock(mutex_);
    added = op->WhenDone(completions, std::move(completion));
  }
  if (!added) {
    return Status(Code::kAlreadyExists,
                  op->Title() + ": a callback waits for its end already");
  }
  // An Adasum's operations are always wanted.
  if (!IsAdasum(op->signature)) communicator_->Want(*op);
  return Status();
}

Status Client::GetResult(int64_t handle, Result* out) {
  const auto op = Find(handle);
  if (op == nullptr) return UnknownHandle(handle);
  if (!op->done.load(std::memory_order_acquire)) {
    return Status(Code::kFailedPrecondition,
                  op->Title() + " is still pending; wait for it first");
  }
  if (!op->status.ok()) return op->status;
  const Signature& signature = op->signature;
  out->data = op->staged == nullptr ? op->output : nullptr;
  if (op->control != Control::kNone) {
    out->first_dim = op->answer;
  } else if (Gathers(signature.kind)) {
    out->bytes = static_cast<int64_t>(op->gathered_bytes);
    out->first_dim = op->gathered_rows;
    out->received_splits = op->received;
  } else {
    out->bytes = static_cast<int64_t>(OutputBytes(*op));
    out->first_dim = signature.kind == Kind::kReducescatter
                         ? ScatteredRows(signature, op->set->size(),
                                         op->set->PositionOf(options_.rank))
                         : (signature.dims > 0 ? signature.shape[0] : 1);
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
  if (IsAdasum(op->signature)) adasums_.Release(handle);
  Count(*op);
  return Status();
}

void Client::Count(const Operation& op) {
  if (!op.done.load(std::memory_order_acquire)) return;
  if (op.status.ok()) {
    counters_.completed.fetch_add(1, std::memory_order_relaxed);
    if (op.ran_on_gpu) {
      counters_.gpu_operations.fetch_add(1, std::memory_order_relaxed);
    }
    if (op.ran_in_arena) {
      counters_.arena_operations.fetch_add(1, std::memory_order_relaxed);
    }
    if (op.control != Control::kNone) return;
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

uint64_t Client::staging_bytes() const {
  std::lock_guard lock(mutex_);
  return staging_ == nullptr ? 0 : staging_->allocated();
}

void Client::AbandonInChild() {
  if (auto* node = dynamic_cast<BoardCommunicator*>(communicator_.get()))
    node->AbandonInChild();
}

}  // namespace maypole
