// The roles of fact 5: lenders, whose memory is reduced, and the reducer, which
// maps all of it.
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/gpu/probe/facts/fact_roles.h"
#include "tests/gpu/probe/facts/staging.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr Duration kReduceTimeout = Seconds(20);
// Clocks of an idle device are low: so long is it kept busy before the first
// measurement.
constexpr Duration kWarmUp = Seconds(0.3);
constexpr int kUntimed = 2;

DType TypeOf(const Words& words, size_t index) {
  return static_cast<DType>(words.Integer(index));
}

// --- Lender ------------------------------------------------------------------

struct Lender {
  gpu::OwnedStream stream;
  Staging staging;
  gpu::OwnedMemory memory;
  uint64_t seed = 0;
};

// "check TYPE LENDERS ELEMENTS FILLED": are the first ELEMENTS the sum of the
// first LENDERS seeds, and the rest as they were?
absl::StatusOr<std::string> CheckResult(Lender& lender, const Words& words) {
  const DType dtype = TypeOf(words, 1);
  const uint64_t elements = static_cast<uint64_t>(words.Integer(3));
  const uint64_t filled = static_cast<uint64_t>(words.Integer(4));
  std::vector<uint64_t> seeds;
  for (int64_t i = 0; i < words.Integer(2); ++i) {
    seeds.push_back(static_cast<uint64_t>(i));
  }
  const gpu::Address at = lender.memory.address();
  const auto check =
      lender.staging.Check(lender.stream.get(), at, dtype, seeds, elements);
  if (!check.ok()) return check.status();
  if (check->wrong.has_value()) return absl::StrCat("wrong ", *check->wrong);
  const uint64_t size = SizeOf(dtype);
  const auto rest = lender.staging.Get(
      lender.stream.get(), at + elements * size, (filled - elements) * size);
  if (!rest.ok()) return rest.status();
  if (*rest != Encode({dtype, lender.seed}, {elements, filled - elements})) {
    return absl::StrCat("wrong elements after the last one, ", elements - 1,
                        ", were written");
  }
  return absl::StrCat("right ", check->checked, " ", check->worst, " ",
                      check->other_bits);
}

// --- Reducer -----------------------------------------------------------------

class Reducer {
 public:
  explicit Reducer(gpu::Gpu& gpu) : gpu_(gpu) {}
  absl::Status Open();
  absl::StatusOr<std::string> Handle(Words& words);

 private:
  absl::StatusOr<std::string> Import(Words& words);
  absl::StatusOr<std::string> WarmUp(uint64_t bytes);
  absl::Status Reduce(DType dtype, size_t inputs, uint64_t elements,
                      double scale);
  absl::StatusOr<std::string> Time(const Words& words);

  gpu::Gpu& gpu_;
  gpu::OwnedStream stream_;
  std::vector<gpu::OwnedMemory> others_;
  gpu::OwnedMemory from_, to_;  // for the rate of copies
  std::vector<gpu::OwnedEvent> events_;
};

absl::Status Reducer::Open() {
  auto stream = gpu::OwnedStream::Create(gpu_);
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  for (int i = 0; i < 4; ++i) {
    auto event = gpu::OwnedEvent::Create(gpu_, gpu::EventUse::kTiming);
    if (!event.ok()) return event.status();
    events_.push_back(*std::move(event));
  }
  return absl::OkStatus();
}

// "import BYTES", with a descriptor.
absl::StatusOr<std::string> Reducer::Import(Words& words) {
  const Fd fd = words.TakeFd();
  auto memory = gpu::OwnedMemory::Import(
      gpu_, fd.get(), static_cast<uint64_t>(words.Integer(1)));
  if (!memory.ok()) return memory.status();
  others_.push_back(*std::move(memory));
  return "imported";
}

// "warm BYTES": makes the buffers of copies, and the device busy.
absl::StatusOr<std::string> Reducer::WarmUp(uint64_t bytes) {
  for (gpu::OwnedMemory* memory : {&from_, &to_}) {
    auto made = gpu::OwnedMemory::Allocate(gpu_, bytes);
    if (!made.ok()) return made.status();
    *memory = *std::move(made);
  }
  absl::Status status =
      gpu_.Fill(stream_.get(), from_.address(), 0x3f800000, bytes / 4);
  const auto end = Clock::now() + kWarmUp;
  while (status.ok() && Clock::now() < end) {
    status = gpu_.KernelCopy(stream_.get(), to_.address(), from_.address(),
                             bytes, 0);
    if (status.ok()) {
      status = gpu_.Copy(stream_.get(), to_.address(), from_.address(), bytes);
    }
    if (status.ok()) status = WaitDone(gpu_, stream_.get(), kReduceTimeout);
  }
  if (!status.ok()) return status;
  return "warm";
}

absl::Status Reducer::Reduce(DType dtype, size_t inputs, uint64_t elements,
                             double scale) {
  if (inputs > others_.size()) {
    return absl::InternalError("fewer buffers were imported");
  }
  std::vector<gpu::Address> addresses;
  for (size_t i = 0; i < inputs; ++i) {
    addresses.push_back(others_[i].address());
  }
  return gpu_.Reduce(stream_.get(), {.inputs = addresses,
                                     .outputs = addresses,
                                     .elements = elements,
                                     .dtype = dtype,
                                     .op = Op::kSum,
                                     .scale = scale});
}

// "time TYPE LENDERS ELEMENTS TIMES": a copy by CUDA, the reduction and a copy
// by a kernel, in turn, so that all see the same clocks. The mean instead of
// the sum, so that values stay what they are.
absl::StatusOr<std::string> Reducer::Time(const Words& words) {
  const size_t inputs = static_cast<size_t>(words.Integer(2));
  const int64_t times = words.Integer(4);
  std::vector<double> measured;
  for (int64_t i = -kUntimed; i < times; ++i) {
    const gpu::Stream stream = stream_.get();
    absl::Status status = gpu_.Record(events_[0].get(), stream);
    if (status.ok()) {
      status = gpu_.Copy(stream, to_.address(), from_.address(), from_.bytes());
    }
    if (status.ok()) status = gpu_.Record(events_[1].get(), stream);
    if (status.ok()) {
      status = Reduce(TypeOf(words, 1), inputs,
                      static_cast<uint64_t>(words.Integer(3)),
                      1.0 / static_cast<double>(inputs));
    }
    if (status.ok()) status = gpu_.Record(events_[2].get(), stream);
    if (status.ok()) {
      status = gpu_.KernelCopy(stream, to_.address(), from_.address(),
                               from_.bytes(), 0);
    }
    if (status.ok()) status = gpu_.Record(events_[3].get(), stream);
    if (status.ok()) status = WaitDone(gpu_, stream, kReduceTimeout);
    if (!status.ok()) return status;
    for (size_t j = 0; i >= 0 && j < 3; ++j) {
      const auto ms = gpu_.Milliseconds(events_[j].get(), events_[j + 1].get());
      if (!ms.ok()) return ms.status();
      measured.push_back(*ms);
    }
  }
  return absl::StrCat("timed ", from_.bytes(), " ",
                      absl::StrJoin(measured, " "));
}

absl::StatusOr<std::string> Reducer::Handle(Words& words) {
  if (words[0] == "room") {
    const auto room = gpu_.MemoryRoom();
    if (!room.ok()) return room.status();
    return absl::StrCat("room ", room->free_bytes, " ",
                        gpu_.device().exports_memory ? 1 : 0);
  }
  if (words[0] == "import") return Import(words);
  if (words[0] == "warm") {
    return WarmUp(static_cast<uint64_t>(words.Integer(1)));
  }
  if (words[0] == "time") return Time(words);
  // "reduce TYPE LENDERS ELEMENTS"
  absl::Status status =
      Reduce(TypeOf(words, 1), static_cast<size_t>(words.Integer(2)),
             static_cast<uint64_t>(words.Integer(3)), 1.0);
  if (status.ok()) status = WaitDone(gpu_, stream_.get(), kReduceTimeout);
  if (!status.ok()) return status;
  return "reduced";
}

}  // namespace

// Arguments: bytes, seed.
absl::Status PlayLender(Stage& stage) {
  gpu::Gpu& gpu = stage.gpu();
  auto stream = gpu::OwnedStream::Create(gpu);
  if (!stream.ok()) return stream.status();
  auto staging = Staging::Create(gpu);
  if (!staging.ok()) return staging.status();
  auto memory =
      gpu::OwnedMemory::Allocate(gpu, static_cast<uint64_t>(stage.Number(0)));
  if (!memory.ok()) return memory.status();
  Lender lender = {*std::move(stream), *std::move(staging), *std::move(memory),
                   static_cast<uint64_t>(stage.Number(1))};
  const absl::StatusOr<Fd> exported = gpu.Export(lender.memory.address());
  if (!exported.ok()) return exported.status();
  const int fd = exported->get();
  const absl::Status sent = stage.channel().Send(
      absl::StrCat("lends ", lender.memory.bytes()), {&fd, 1});
  if (!sent.ok()) return sent;
  return Serve(stage, [&](Words& words) -> absl::StatusOr<std::string> {
    if (words[0] == "check") return CheckResult(lender, words);
    // "fill TYPE ELEMENTS"
    const absl::Status status =
        lender.staging.Put(lender.stream.get(), lender.memory.address(),
                           {TypeOf(words, 1), lender.seed},
                           static_cast<uint64_t>(words.Integer(2)));
    if (!status.ok()) return status;
    return "filled";
  });
}

absl::Status PlayReducer(Stage& stage) {
  Reducer reducer(stage.gpu());
  const absl::Status status = reducer.Open();
  if (!status.ok()) return status;
  return Serve(stage, [&](Words& words) { return reducer.Handle(words); });
}

}  // namespace maypole::probe
