#include "tests/properties/player/attempt.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

namespace maypole::properties {
namespace {

constexpr size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

std::string Difference(const Bytes& want, const std::byte* got) {
  size_t at = 0;
  while (want[at] == got[at]) ++at;
  size_t differing = 0;
  for (size_t i = at; i < want.size(); ++i) differing += want[i] != got[i];
  return "byte " + std::to_string(at) + " of " + std::to_string(want.size()) +
         " is " + std::to_string(static_cast<int>(got[at])) + ", expected " +
         std::to_string(static_cast<int>(want[at])) + " (" +
         std::to_string(differing) + " bytes differ)";
}

bool Equal(const Bytes& want, const std::byte* got) {
  return want.empty() || std::memcmp(want.data(), got, want.size()) == 0;
}

std::string Compare(const Bytes& want, const std::byte* got) {
  return Equal(want, got) ? "" : Difference(want, got);
}

size_t OutputBytes(const OperationSpec& spec, const Signature& s, int rank) {
  switch (spec.kind) {
    case Kind::kAllreduce:
    case Kind::kBroadcast:
      return s.Bytes();
    case Kind::kReducescatter:
      // A mismatched one has as much as any rank could get.
      return spec.MustFail()
                 ? s.Bytes()
                 : static_cast<size_t>(ResultRows(spec, rank)) * s.RowBytes();
    default:
      return 0;
  }
}

std::string ListText(const std::vector<int64_t>& values) {
  std::string out;
  for (const int64_t v : values) out += " " + std::to_string(v);
  return out;
}

// The value in which a mismatch's ranks differ, as the message shows it.
std::string AspectText(const Signature& s, Aspect aspect) {
  char number[32];
  switch (aspect) {
    case Aspect::kDType:
      return std::string(Name(s.dtype));
    case Aspect::kOp:
      return std::string(Name(s.op));
    case Aspect::kPrescale:
    case Aspect::kPostscale:
      std::snprintf(number, sizeof(number), "%.9g",
                    aspect == Aspect::kPrescale ? s.prescale : s.postscale);
      return number;
    case Aspect::kRoot:
      return std::to_string(s.root);
    default: {
      std::string out = "[";
      const bool any_rows = Gathers(s.kind);
      for (int i = 0; i < s.dims; ++i) {
        if (i > 0) out += ", ";
        out += i == 0 && any_rows ? "*" : std::to_string(s.shape[i]);
      }
      return out + "]";
    }
  }
}

// By Aspect.
constexpr const char* kAspectWords[] = {
    "",
    "mismatched shapes",
    "mismatched shapes",
    "mismatched dtypes",
    "mismatched reduction operations",
    "mismatched prescale factors",
    "mismatched postscale factors",
    "mismatched root ranks",
};

bool Has(std::string_view text, const std::string& part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::shared_ptr<std::byte[]> Memory::Allocate(size_t bytes, bool arena) {
  void* memory = nullptr;
  if (arena && client_->Allocate(bytes, &memory).ok()) {
    return {static_cast<std::byte*>(memory),
            [](std::byte* p) { (void)Client::Free(p); }};
  }
  return std::make_shared<std::byte[]>(bytes);
}

Attempt::Attempt(const OperationSpec& spec, int rank, Random& random,
                 Memory* memory)
    : spec_(spec),
      rank_(rank),
      signature_(spec.SignatureOf(rank)),
      values_(InputOf(spec, rank)),
      by_name_(OneIn(random, 2)) {
  output_bytes_ = OutputBytes(spec, signature_, rank);
  // Mostly as an allocator aligns, sometimes anywhere.
  offset_ = kGuard + (OneIn(random, 4) ? Below(random, 64) : 0);
  block_bytes_ = offset_ + output_bytes_ + kGuard;
  // Now and then one rank is elsewhere than the others.
  bool arena = spec.arena && !OneIn(random, 10);
  if (spec.arena && memory->gpu() != nullptr && spec.kind != Kind::kBarrier) {
    gpu_ = memory->gpu();
    arena = by_name_ = false;
    submit_stream_ = gpu_->streams()[Below(random, gpu_->streams().size())];
    result_stream_ = gpu_->streams()[Below(random, gpu_->streams().size())];
  }
  block_ = memory->Allocate(block_bytes_, arena);
  std::fill_n(block_.get(), block_bytes_, kGuardByte);
  std::byte* in = output();
  if (!spec.in_place) {
    input_ = memory->Allocate(std::max<size_t>(1, values_.size()), arena);
    in = input_.get();
  }
  std::copy(values_.begin(), values_.end(), in);
  if (spec.MustFail())
    before_.assign(block_.get(), block_.get() + block_bytes_);
}

void Attempt::PutOnGpu() {
  gpu_block_ = gpu_->Allocate(block_bytes_);
  gpu_->Write(gpu_block_, block_.get(), block_bytes_, submit_stream_);
  if (spec_.in_place) return;
  gpu_input_ = gpu_->Allocate(values_.size());
  gpu_->Write(gpu_input_, input_.get(), values_.size(), submit_stream_);
}

// What is on the GPU now, whatever the operation's outcome.
void Attempt::TakeFromGpu(Client* client) {
  if (status_.ok() && gathers()) {
    const GpuMemory::Block rows =
        gpu_->Allocate(static_cast<size_t>(result_.bytes));
    status_ = client->CopyResult(handle_, result_stream_, rows.get());
    gathered_.resize(static_cast<size_t>(result_.bytes));
    gpu_->Read(rows.get(), gathered_.data(), gathered_.size(), result_stream_);
  } else if (status_.ok()) {
    status_ = client->CopyResult(handle_, result_stream_, nullptr);
  }
  // Nothing but the result's copy makes the other stream wait for the input's.
  gpu_->Read(gpu_block_.get(), block_.get(), block_bytes_,
             status_.ok() ? result_stream_ : submit_stream_);
}

Request Attempt::MakeRequest(uint32_t process_set, bool awaited) {
  Request r;
  r.name = spec_.name;
  r.signature = signature_;
  r.signature.process_set = process_set;
  r.input = input();
  r.output = gathers() ? nullptr : output();
  if (spec_.kind == Kind::kBroadcast && rank_ != signature_.root &&
      !spec_.in_place) {
    r.input = nullptr;
  }
  if (spec_.kind == Kind::kAlltoall && !(spec_.equal_parts && by_name_)) {
    r.splits = spec_.splits[static_cast<size_t>(spec_.PositionOf(rank_))];
  }
  r.awaited = awaited;
  if (gpu_ != nullptr) {
    PutOnGpu();
    r.signature.device = Device::kGpu;
    r.stream = submit_stream_;
    if (r.output != nullptr) r.output = gpu_block_.get() + offset_;
    if (r.input != nullptr) {
      r.input = spec_.in_place ? gpu_block_.get() + offset_ : gpu_input_.get();
    }
  }
  return r;
}

// By the function that callers of one kind use.
Status Attempt::SubmitByName(Client* client, uint32_t process_set,
                             bool awaited) {
  Request r = MakeRequest(process_set, awaited);
  const Signature& s = r.signature;
  const Tensor tensor{s.dtype, {s.shape, s.shape + s.dims}, r.input, r.output};
  const ReduceOptions options{s.op, s.prescale, s.postscale, awaited,
                              process_set};
  switch (s.kind) {
    case Kind::kAllreduce:
      return client->Allreduce(r.name, tensor, options, &handle_);
    case Kind::kReducescatter:
      return client->Reducescatter(r.name, tensor, options, &handle_);
    case Kind::kAllgather:
      return client->Allgather(r.name, tensor, &handle_, process_set);
    case Kind::kAlltoall:
      return client->Alltoall(r.name, tensor, std::move(r.splits), &handle_,
                              process_set);
    case Kind::kBroadcast:
      return client->Broadcast(r.name, tensor, s.root, &handle_, process_set);
    default:
      return client->Barrier(&handle_, process_set);
  }
}

void Attempt::Submit(Client* client, uint32_t process_set, bool awaited) {
  const bool by_name = by_name_ || spec_.kind == Kind::kBarrier;
  const Status status =
      by_name ? SubmitByName(client, process_set, awaited)
              : client->Submit(MakeRequest(process_set, awaited), &handle_);
  Submitted(status, handle_);
}

void Attempt::Submitted(const Status& status, int64_t handle) {
  submitted_ = true;
  handle_ = handle;
  if (status.ok()) return;
  ended_ = true;
  status_ = status;
}

void Attempt::Poll(Client* client) {
  if (!submitted_ || ended_) return;
  bool done = false;
  const Status s = client->Poll(handle_, &done);
  if (!s.ok()) return End(client, s);
  if (done) Wait(client, 0);
}

void Attempt::Wait(Client* client, int timeout_ms) {
  if (!submitted_ || ended_) return;
  Status s = client->Wait(handle_, timeout_ms);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  End(client, std::move(s));
}

// What the callback has seen.
struct Attempt::Callback {
  std::mutex mutex;
  std::condition_variable called;
  int calls = 0;
  Status status;
};

void Attempt::AskForCallback(Client* client) {
  if (!submitted_ || ended_) return;
  callback_ = std::make_shared<Callback>();
  const Status s =
      client->OnDone(handle_, [callback = callback_](const Status& status) {
        std::lock_guard lock(callback->mutex);
        ++callback->calls;
        callback->status = status;
        callback->called.notify_all();
      });
  if (!s.ok()) End(client, s);
}

void Attempt::WaitForCallback(Client* client, int timeout_ms) {
  if (!submitted_ || ended_) return;
  Status seen;
  {
    std::unique_lock lock(callback_->mutex);
    if (!callback_->called.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                    [this] { return callback_->calls > 0; })) {
      return;
    }
    seen = callback_->status;
  }
  const Status outcome = client->Wait(handle_, 0);
  const bool same =
      outcome.code() == seen.code() && outcome.message() == seen.message();
  End(client, same ? outcome
                   : Status(Code::kInternal,
                            "the callback got '" + seen.message() +
                                "', a wait '" + outcome.message() + "'"));
}

void Attempt::KeepResult(Client* client) {
  status_ = client->GetResult(handle_, &result_);
  if (!status_.ok() || !gathers() || gpu_ != nullptr) return;
  const auto* data = static_cast<const std::byte*>(result_.data);
  if (result_.bytes > 0) gathered_.assign(data, data + result_.bytes);
}

void Attempt::End(Client* client, Status status) {
  ended_ = true;
  status_ = std::move(status);
  if (status_.ok() && spec_.kind != Kind::kBarrier) KeepResult(client);
  if (gpu_ != nullptr) TakeFromGpu(client);
  (void)client->Release(handle_);
}

std::string Attempt::CheckGuards() const {
  for (size_t i = 0; i < block_bytes_; ++i) {
    if (i >= offset_ && i < offset_ + output_bytes_) continue;
    if (block_[i] != kGuardByte) {
      return "written outside of the output, " +
             std::to_string(static_cast<int64_t>(i) -
                            static_cast<int64_t>(offset_)) +
             " bytes from its begin";
    }
  }
  return "";
}

std::string Attempt::CheckResult() const {
  if (spec_.kind == Kind::kBarrier) return "";
  Bytes want = ResultOf(spec_, rank_);
  if (result_.bytes != static_cast<int64_t>(want.size())) {
    return "the result has " + std::to_string(result_.bytes) +
           " bytes, expected " + std::to_string(want.size());
  }
  const bool rows = gathers() || spec_.kind == Kind::kReducescatter;
  if (rows && result_.first_dim != ResultRows(spec_, rank_)) {
    return "the result has " + std::to_string(result_.first_dim) +
           " rows, expected " + std::to_string(ResultRows(spec_, rank_));
  }
  if (spec_.kind == Kind::kAlltoall) {
    const auto splits = ReceivedSplits(spec_, rank_);
    if (result_.received_splits != splits) {
      return "received splits" + ListText(result_.received_splits) +
             ", expected" + ListText(splits);
    }
  }
  if (gathers()) return Compare(want, gathered_.data());
  if (!want.empty() && gpu_ == nullptr && result_.data != output()) {
    return "the result is not in the output";
  }
  if (spec_.values != Values::kAnyBits) return Compare(want, output());
  Bytes got(output(), output() + want.size());
  SameNans(spec_.dtype, &got);
  SameNans(spec_.dtype, &want);
  return Compare(want, got.data());
}

// It names the ranks and both values.
std::string Attempt::CheckMismatchText() const {
  const std::string_view text = status_.message();
  if (!Has(text, kAspectWords[static_cast<int>(spec_.aspect)])) {
    return std::string("it does not say '") +
           kAspectWords[static_cast<int>(spec_.aspect)] + "'";
  }
  OperationSpec plain = spec_;
  plain.odd_one = -1;
  const int odd = spec_.odd_one;
  const std::string usual = AspectText(plain.SignatureOf(odd), spec_.aspect);
  const std::string other = AspectText(spec_.SignatureOf(odd), spec_.aspect);
  // Who stands aside may be counted with either.
  std::string its = " submitted " + other;
  if (spec_.aside == 0) its = "rank " + std::to_string(odd) + its;
  for (const std::string& part : {its, " submitted " + usual}) {
    if (!Has(text, part)) return "it does not say '" + part + "'";
  }
  return "";
}

// Before any data moves, and saying what is wrong.
std::string Attempt::CheckRefused() const {
  const std::string_view text = status_.message();
  std::string wrong;
  if (!spec_.name.empty() && !Has(text, spec_.name)) {
    wrong = "it does not name the tensor";
  } else if (spec_.odd_one >= 0) {
    wrong = CheckMismatchText();
  } else if (!Has(text, "rank " + std::to_string(spec_.root)) ||
             !Has(text, "joined")) {
    wrong = "it does not say that the root has joined";
  }
  if (!wrong.empty()) {
    return "the error's text: " + wrong + ": " + std::string(text);
  }
  if (Equal(before_, block_.get())) return "";
  return "the output was written in spite of the error: " +
         Difference(before_, block_.get());
}

std::string Attempt::Check() const {
  std::string wrong = CheckGuards();
  if (wrong.empty() && !spec_.in_place && !Equal(values_, input())) {
    wrong = "the input has changed: " + Difference(values_, input());
  }
  if (wrong.empty() && status_.ok()) {
    wrong = spec_.MustFail() ? "it ended well" : CheckResult();
  }
  if (wrong.empty() && refused()) wrong = CheckRefused();
  return wrong.empty() ? "" : spec_.Text() + ": " + wrong;
}

void Attempt::Freeze() {
  if (gpu_ != nullptr && gpu_block_ != nullptr) {
    gpu_->Read(gpu_block_.get(), block_.get(), block_bytes_, result_stream_);
  }
  frozen_.assign(block_.get(), block_.get() + block_bytes_);
}

std::string Attempt::Changed() const {
  std::string wrong = CheckGuards();
  if (wrong.empty() && !Equal(frozen_, block_.get())) {
    wrong = "written after the error: " + Difference(frozen_, block_.get());
  }
  return wrong.empty() ? "" : spec_.Text() + ": " + wrong;
}

}  // namespace maypole::properties
