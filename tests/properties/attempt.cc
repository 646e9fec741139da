#include "tests/properties/attempt.h"

#include <algorithm>
#include <cstring>
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

}  // namespace

std::shared_ptr<std::byte[]> Memory::Allocate(size_t bytes, bool arena) {
  void* memory = nullptr;
  if (arena && client_->Allocate(bytes, &memory).ok()) {
    return {static_cast<std::byte*>(memory),
            [](std::byte* p) { (void)Client::Free(p); }};
  }
  return std::make_shared<std::byte[]>(bytes);
}

Attempt::Attempt(const OperationSpec& spec, int rank, int ranks, Random& random,
                 Memory* memory)
    : spec_(spec), rank_(rank), ranks_(ranks), values_(InputOf(spec, rank)) {
  const bool delivers =
      spec.kind == Kind::kAllreduce || spec.kind == Kind::kBroadcast;
  output_bytes_ = delivers ? values_.size() : 0;
  // Mostly as an allocator aligns, sometimes anywhere.
  offset_ = kGuard + (OneIn(random, 4) ? Below(random, 64) : 0);
  block_bytes_ = offset_ + output_bytes_ + kGuard;
  // Now and then one rank is elsewhere than the others.
  const bool arena = spec.arena && !OneIn(random, 10);
  block_ = memory->Allocate(block_bytes_, arena);
  std::fill_n(block_.get(), block_bytes_, kGuardByte);
  std::byte* in = output();
  if (!spec.in_place) {
    input_ = memory->Allocate(std::max<size_t>(1, values_.size()), arena);
    in = input_.get();
  }
  std::copy(values_.begin(), values_.end(), in);
  if (spec.odd_one >= 0)
    before_.assign(block_.get(), block_.get() + block_bytes_);
}

void Attempt::Submit(Client* client, bool awaited) {
  Signature s;
  s.kind = spec_.kind;
  s.dtype = spec_.dtype;
  s.op = spec_.op;
  const auto& shape = spec_.shape[static_cast<size_t>(rank_)];
  s.dims = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), s.shape);
  const std::byte* from = input();
  std::byte* to = output();
  if (spec_.kind == Kind::kBroadcast) {
    s.root = spec_.root;
    if (rank_ != spec_.root && !spec_.in_place) from = nullptr;
  } else if (spec_.kind != Kind::kAllreduce) {
    to = nullptr;
  }
  s.prescale = spec_.prescale;
  s.postscale = spec_.postscale;
  submitted_ = true;
  const Status status =
      spec_.kind == Kind::kBarrier
          ? client->Barrier(&handle_)
          : client->Submit(spec_.name, s, from, to, &handle_, awaited);
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

void Attempt::End(Client* client, Status status) {
  ended_ = true;
  status_ = std::move(status);
  if (status_.ok() && spec_.kind == Kind::kAllgather) {
    Result result;
    status_ = client->GetResult(handle_, &result);
    const auto* data = static_cast<const std::byte*>(result.data);
    if (status_.ok()) gathered_.assign(data, data + result.bytes);
  }
  (void)client->Release(handle_);
}

std::string Attempt::CheckGuards() const {
  for (size_t i = 0; i < block_bytes_; ++i) {
    if (i >= offset_ && i < offset_ + output_bytes_) continue;
    if (spec_.in_place && i >= offset_ && i < offset_ + values_.size()) {
      continue;
    }
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
  const Bytes want = ResultOf(spec_, ranks_);
  if (spec_.kind == Kind::kBarrier) return "";
  if (spec_.kind == Kind::kAllgather) {
    if (gathered_.size() != want.size()) {
      return "gathered " + std::to_string(gathered_.size()) +
             " bytes, expected " + std::to_string(want.size());
    }
    return Equal(want, gathered_.data()) ? ""
                                         : Difference(want, gathered_.data());
  }
  return Equal(want, output()) ? "" : Difference(want, output());
}

// Before any data moves, and saying what differs.
std::string Attempt::CheckRefused() const {
  const std::string text(status_.message());
  const std::string odd = "rank " + std::to_string(spec_.odd_one);
  if (text.find("mismatched shapes") == std::string::npos ||
      (ranks_ > 2 && text.find(odd) == std::string::npos)) {
    return "a mismatch's error says: " + text;
  }
  if (Equal(before_, block_.get())) return "";
  return "a mismatch's output was written: " +
         Difference(before_, block_.get());
}

std::string Attempt::Check() const {
  std::string wrong = CheckGuards();
  if (wrong.empty() && !spec_.in_place && !Equal(values_, input())) {
    wrong = "the input has changed: " + Difference(values_, input());
  }
  if (wrong.empty() && status_.ok()) {
    wrong = spec_.odd_one < 0 ? CheckResult() : "a mismatch ended well";
  }
  if (wrong.empty() && refused()) wrong = CheckRefused();
  return wrong.empty() ? "" : spec_.Text() + ": " + wrong;
}

void Attempt::Freeze() {
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
