#include "worker/backend/gpu/testing/fake_operation.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/reduce/reduce.h"
#include "worker/backend/gpu/testing/fake_shared.h"

namespace maypole::gpu {
namespace {

absl::Status Invalid(const std::string& text) {
  return absl::InvalidArgumentError("CUDA_ERROR_INVALID_VALUE: " + text);
}

bool AnyOverlaps(const std::vector<Piece>& pieces, const Piece& piece) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& p) { return p.Overlaps(piece); });
}

std::atomic_ref<uint64_t> Word(const Piece& flag) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(flag.data));
}

class WriteValueOperation final : public FakeOperation {
 public:
  WriteValueOperation(Piece flag, uint64_t value) : value_(value) {
    writes_ = {flag};
  }
  Progress Advance(Pace&) override {
    OrderSharedMemory();
    Word(writes_[0]).store(value_);
    return Progress::kFinished;
  }

 private:
  const uint64_t value_;
};

class WaitValueOperation final : public FakeOperation {
 public:
  WaitValueOperation(Piece flag, uint64_t value, WaitFor what)
      : value_(value), what_(what) {
    reads_ = {flag};
  }
  Progress Advance(Pace&) override {
    const uint64_t seen = Word(reads_[0]).load();
    const bool there = what_ == WaitFor::kEqual
                           ? seen == value_
                           : static_cast<int64_t>(seen - value_) >= 0;
    if (!there) return Progress::kBlocked;
    OrderSharedMemory();
    return Progress::kFinished;
  }
  std::string WaitsFor() const override {
    return absl::StrFormat("flag %p %s %d (it is %d)", reads_[0].data,
                           what_ == WaitFor::kEqual ? "==" : ">=", value_,
                           Word(reads_[0]).load());
  }
  Piece Awaits() const override { return reads_[0]; }

 private:
  const uint64_t value_;
  const WaitFor what_;
};

class CopyOperation final : public FakeOperation {
 public:
  CopyOperation(Piece to, Piece from) {
    reads_ = {from};
    writes_ = {to};
  }
  Progress Advance(Pace& pace) override {
    const Piece& to = writes_[0];
    const uint64_t share = pace.Share(to.bytes - done_, 1);
    if (share > 0) {
      memcpy(to.data + done_, reads_[0].data + done_, share);
    }
    done_ += share;
    return done_ == to.bytes ? Progress::kFinished : Progress::kSome;
  }

 private:
  uint64_t done_ = 0;
};

class FillOperation final : public FakeOperation {
 public:
  FillOperation(Piece to, uint32_t word) : word_(word) { writes_ = {to}; }
  Progress Advance(Pace& pace) override {
    const Piece& to = writes_[0];
    const uint64_t share = pace.Share(to.bytes - done_, sizeof(word_));
    std::fill_n(reinterpret_cast<uint32_t*>(to.data + done_),
                share / sizeof(word_), word_);
    done_ += share;
    return done_ == to.bytes ? Progress::kFinished : Progress::kSome;
  }

 private:
  const uint32_t word_;
  uint64_t done_ = 0;
};

class ReduceOperation final : public FakeOperation {
 public:
  ReduceOperation(std::vector<Piece> inputs, std::vector<Piece> outputs,
                  const Reduction& reduction)
      : dtype_(reduction.dtype), op_(reduction.op), scale_(reduction.scale) {
    reads_ = std::move(inputs);
    writes_ = std::move(outputs);
  }
  Progress Advance(Pace& pace) override {
    const uint64_t bytes = writes_[0].bytes, unit = SizeOf(dtype_);
    const uint64_t share = pace.Share(bytes - done_, unit);
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (const Piece& piece : reads_) from.push_back(piece.data + done_);
    for (const Piece& piece : writes_) to.push_back(piece.data + done_);
    if (share > 0) {
      ReduceTo(dtype_, op_, from, to, share / unit, {.scale = scale_});
    }
    done_ += share;
    return done_ == bytes ? Progress::kFinished : Progress::kSome;
  }

 private:
  const DType dtype_;
  const Op op_;
  const double scale_;
  uint64_t done_ = 0;
};

class SpinOperation final : public FakeOperation {
 public:
  explicit SpinOperation(int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  Progress Advance(Pace& pace) override {
    if (begin_ < 0) begin_ = pace.Now();
    return pace.Elapsed(begin_, nanoseconds_) ? Progress::kFinished
                                              : Progress::kBlocked;
  }
  std::string WaitsFor() const override { return "the end of a spin"; }

 private:
  const int64_t nanoseconds_;
  int64_t begin_ = -1;
};

class RecordOperation final : public FakeOperation {
 public:
  RecordOperation(std::shared_ptr<FakeEvent> event, uint64_t record)
      : event_(std::move(event)), record_(record) {}
  Progress Advance(Pace& pace) override {
    event_->SetDone(record_, pace.Now());
    return Progress::kFinished;
  }

 private:
  const std::shared_ptr<FakeEvent> event_;
  const uint64_t record_;
};

class WaitEventOperation final : public FakeOperation {
 public:
  WaitEventOperation(std::shared_ptr<FakeEvent> event, uint64_t record)
      : event_(std::move(event)), record_(record) {}
  Progress Advance(Pace&) override {
    return event_->IsDone(record_) ? Progress::kFinished : Progress::kBlocked;
  }
  std::string WaitsFor() const override {
    return absl::StrCat("record ", record_, " of an event");
  }

 private:
  const std::shared_ptr<FakeEvent> event_;
  const uint64_t record_;
};

// Finds the inputs or outputs of a reduction.
absl::StatusOr<std::vector<Piece>> FindOperands(
    const FakeMemory& memory, const char* what,
    std::span<const Address> addresses, uint64_t bytes) {
  if (addresses.empty() || addresses.size() > kMaxReduced) {
    return Invalid(
        absl::StrCat(addresses.size(), " ", what, "s, not 1 to ", kMaxReduced));
  }
  std::vector<Piece> pieces;
  for (const Address address : addresses) {
    absl::StatusOr<Piece> piece = memory.Find(what, address, bytes, 16);
    if (!piece.ok()) return piece.status();
    pieces.push_back(*piece);
  }
  return pieces;
}

absl::Status CheckReduction(const Reduction& reduction) {
  const DType d = reduction.dtype;
  if (d != DType::kFloat16 && d != DType::kBfloat16 && d != DType::kFloat32 &&
      d != DType::kFloat64) {
    return Invalid(absl::StrCat("cannot reduce ", std::string(Name(d))));
  }
  const Op op = reduction.op;
  if (op != Op::kSum && op != Op::kMin && op != Op::kMax) {
    return Invalid(absl::StrCat("cannot reduce by ", std::string(Name(op))));
  }
  if (reduction.elements > (uint64_t{1} << 46) / SizeOf(d)) {
    return Invalid(
        absl::StrCat("cannot reduce ", reduction.elements, " elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(const std::vector<Piece>& inputs,
                         const std::vector<Piece>& outputs, size_t index) {
  const Piece& output = outputs[index];
  for (const Piece& input : inputs) {
    if (output.Overlaps(input) && !output.SameAs(input)) {
      return Invalid(
          absl::StrCat("output ", index, " overlaps an input that it is not"));
    }
  }
  for (size_t i = 0; i < index; ++i) {
    if (output.Overlaps(outputs[i])) {
      return Invalid(absl::StrCat("outputs ", i, " and ", index, " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool FakeOperation::Writes(const Piece& piece) const {
  return AnyOverlaps(writes_, piece);
}

bool FakeOperation::Touches(const Piece& piece) const {
  return AnyOverlaps(writes_, piece) || AnyOverlaps(reads_, piece);
}

MadeOperation MakeWriteValue(const FakeMemory& memory, Address flag,
                             uint64_t value) {
  const absl::StatusOr<Piece> piece = memory.Find("flag", flag, 8, 8);
  if (!piece.ok()) return piece.status();
  return std::make_unique<WriteValueOperation>(*piece, value);
}

MadeOperation MakeWaitValue(const FakeMemory& memory, Address flag,
                            uint64_t value, WaitFor what) {
  if (what != WaitFor::kAtLeast && what != WaitFor::kEqual) {
    return Invalid("neither kAtLeast nor kEqual");
  }
  const absl::StatusOr<Piece> piece = memory.Find("flag", flag, 8, 8);
  if (!piece.ok()) return piece.status();
  return std::make_unique<WaitValueOperation>(*piece, value, what);
}

MadeOperation MakeCopy(const FakeMemory& memory, Address to, Address from,
                       uint64_t bytes) {
  const absl::StatusOr<Piece> target = memory.Find("target", to, bytes);
  if (!target.ok()) return target.status();
  const absl::StatusOr<Piece> source = memory.Find("source", from, bytes);
  if (!source.ok()) return source.status();
  if (target->Overlaps(*source)) return Invalid("target and source overlap");
  return std::make_unique<CopyOperation>(*target, *source);
}

MadeOperation MakeFill(const FakeMemory& memory, Address to, uint32_t word,
                       uint64_t words) {
  if (words > uint64_t{1} << 44) {
    return Invalid(absl::StrCat("cannot fill ", words, " words"));
  }
  const absl::StatusOr<Piece> target =
      memory.Find("target", to, words * sizeof(word), sizeof(word));
  if (!target.ok()) return target.status();
  return std::make_unique<FillOperation>(*target, word);
}

MadeOperation MakeReduce(const FakeMemory& memory, const Reduction& reduction) {
  absl::Status status = CheckReduction(reduction);
  if (!status.ok()) return status;
  const uint64_t bytes = reduction.elements * SizeOf(reduction.dtype);
  absl::StatusOr<std::vector<Piece>> inputs =
      FindOperands(memory, "input", reduction.inputs, bytes);
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<std::vector<Piece>> outputs =
      FindOperands(memory, "output", reduction.outputs, bytes);
  if (!outputs.ok()) return outputs.status();
  for (size_t i = 0; i < outputs->size(); ++i) {
    status = CheckOutput(*inputs, *outputs, i);
    if (!status.ok()) return status;
  }
  return std::make_unique<ReduceOperation>(*std::move(inputs),
                                           *std::move(outputs), reduction);
}

MadeOperation MakeSpin(int blocks, int64_t nanoseconds) {
  if (blocks <= 0 || nanoseconds < 0) {
    return Invalid(absl::StrCat("cannot spin ", nanoseconds, " ns on ", blocks,
                                " blocks"));
  }
  return std::make_unique<SpinOperation>(nanoseconds);
}

MadeOperation MakeRecord(std::shared_ptr<FakeEvent> event, uint64_t record) {
  return std::make_unique<RecordOperation>(std::move(event), record);
}

MadeOperation MakeWaitEvent(std::shared_ptr<FakeEvent> event, uint64_t record) {
  return std::make_unique<WaitEventOperation>(std::move(event), record);
}

}  // namespace maypole::gpu
