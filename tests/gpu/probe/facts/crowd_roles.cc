// The roles of fact 8: a crowd, a process with many streams that wait, or
// release others; and the caller, who calls CUDA while a stream of its waits.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/facts/crowd_page.h"
#include "tests/gpu/probe/facts/fact_roles.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr Duration kStep = Seconds(10);
constexpr Duration kPulse = Seconds(1.5);
constexpr int64_t kShortSpin = 10'000;  // ns

// --- Crowd -------------------------------------------------------------------

class Crowd {
 public:
  // streams: how many. number: which process of the experiment.
  Crowd(gpu::Gpu& gpu, size_t streams, size_t number)
      : gpu_(gpu), streams_(streams), scratch_(kScratchWords + number) {}
  absl::StatusOr<std::string> Handle(Words& words);

 private:
  absl::StatusOr<std::string> Open(Fd page);
  gpu::Stream stream(size_t index) const {
    return streams_[index % streams_.size()].get();
  }
  absl::Status Write(gpu::Stream stream, size_t word, uint64_t value) {
    return gpu_.WriteValue(stream, page_.address(word), value);
  }
  absl::Status Wait(gpu::Stream stream, size_t word, uint64_t value) {
    return gpu_.WaitValue(stream, page_.address(word), value);
  }
  absl::Status WaitThenTell(size_t stream, size_t index, uint64_t value);
  absl::Status WorkThenWrite(size_t stream, size_t word, uint64_t value);
  absl::Status PairFirst(size_t stream, size_t index, uint64_t value);
  absl::Status PairSecond(size_t stream, size_t index, uint64_t value);
  absl::StatusOr<std::string> Enqueue(const Words& words);
  absl::StatusOr<std::string> Pulse(int64_t times);
  absl::StatusOr<std::string> Drain();

  gpu::Gpu& gpu_;
  FlagPage page_;
  std::vector<gpu::OwnedStream> streams_;
  const size_t scratch_;
  uint64_t pulses_ = 1;
};

// "page", with a descriptor. All streams are made, and have run what they will
// run, before any of them waits.
absl::StatusOr<std::string> Crowd::Open(Fd page) {
  auto mapped = FlagPage::Map(gpu_, std::move(page), kCrowdPageBytes);
  if (!mapped.ok()) return mapped.status();
  page_ = *std::move(mapped);
  for (gpu::OwnedStream& stream : streams_) {
    auto made = gpu::OwnedStream::Create(gpu_);
    if (!made.ok()) return made.status();
    stream = *std::move(made);
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    absl::Status status = WorkThenWrite(i, scratch_, pulses_);
    if (status.ok()) status = Wait(stream(i), scratch_, pulses_);
    if (status.ok()) status = WaitDone(gpu_, stream(i), kStep);
    if (!status.ok()) return status;
  }
  return "ready";
}

absl::Status Crowd::WaitThenTell(size_t at, size_t index, uint64_t value) {
  const absl::Status status = Wait(stream(at), kFlagWords + index, value);
  if (!status.ok()) return status;
  return Write(stream(at), kWaitedWords + index, value);
}

absl::Status Crowd::WorkThenWrite(size_t at, size_t word, uint64_t value) {
  const absl::Status status = gpu_.Spin(stream(at), 1, kShortSpin);
  if (!status.ok()) return status;
  return Write(stream(at), word, value);
}

// The first of a pair begins, and needs the second's answer; the second needs
// the first before and after it.
absl::Status Crowd::PairFirst(size_t at, size_t index, uint64_t value) {
  absl::Status status = Write(stream(at), kFlagWords + index, value);
  if (status.ok()) status = Wait(stream(at), kAnswerWords + index, value);
  if (status.ok()) {
    status = WorkThenWrite(at, kFlagWords + index, value + 1);
  }
  if (status.ok()) status = Write(stream(at), kRanWords + index, value);
  return status;
}

absl::Status Crowd::PairSecond(size_t at, size_t index, uint64_t value) {
  absl::Status status = Wait(stream(at), kFlagWords + index, value);
  if (status.ok()) status = WorkThenWrite(at, kAnswerWords + index, value);
  if (status.ok()) status = Wait(stream(at), kFlagWords + index, value + 1);
  if (status.ok()) status = Write(stream(at), kWaitedWords + index, value);
  return status;
}

// "enqueue WHAT STREAM INDEX COUNT VALUE ORDER": for COUNT streams and indices
// from those on; ORDER 1: the last first.
absl::StatusOr<std::string> Crowd::Enqueue(const Words& words) {
  const size_t first_stream = static_cast<size_t>(words.Integer(2));
  const size_t first = static_cast<size_t>(words.Integer(3));
  const size_t count = static_cast<size_t>(words.Integer(4));
  const uint64_t value = static_cast<uint64_t>(words.Integer(5));
  if (first + count > kMostWaits) return absl::InternalError("too many");
  absl::Status status;
  for (size_t i = 0; status.ok() && i < count; ++i) {
    const size_t at = words.Integer(6) == 1 ? count - 1 - i : i;
    const size_t stream = first_stream + at;
    const size_t index = first + at;
    if (words[1] == "waits") {
      status = WaitThenTell(stream, index, value);
    } else if (words[1] == "work") {
      status = WorkThenWrite(stream, kRanWords + index, value);
    } else if (words[1] == "releases") {
      status = WorkThenWrite(stream, kFlagWords + index, value);
    } else if (words[1] == "firsts") {
      status = PairFirst(stream, index, value);
    } else {  // "seconds"
      status = PairSecond(stream, index, value);
    }
  }
  if (!status.ok()) return status;
  return "enqueued";
}

// "pulse TIMES": a short kernel and a write, until the host sees it; p50 and
// the longest in microseconds, and how many were seen at all.
absl::StatusOr<std::string> Crowd::Pulse(int64_t times) {
  std::vector<double> us;
  for (int64_t i = 0; i < times; ++i) {
    const int64_t start = Now();
    const absl::Status status = WorkThenWrite(0, scratch_, ++pulses_);
    if (!status.ok()) return status;
    if (!AwaitWord(page_.memory(), scratch_, pulses_, kPulse)) break;
    us.push_back(static_cast<double>(Now() - start) / 1e3);
  }
  const size_t seen = us.size();
  if (seen == 0) return "pulsed 0 0 0";
  return absl::StrCat("pulsed ", seen, " ", Quantile(us, 0.5), " ",
                      Quantile(us, 1));
}

// "drain": all streams are done.
absl::StatusOr<std::string> Crowd::Drain() {
  for (const gpu::OwnedStream& stream : streams_) {
    const absl::Status status = WaitDone(gpu_, stream.get(), kStep);
    if (!status.ok()) return status;
  }
  return "drained";
}

absl::StatusOr<std::string> Crowd::Handle(Words& words) {
  if (words[0] == "page") return Open(words.TakeFd());
  if (words[0] == "enqueue") return Enqueue(words);
  if (words[0] == "pulse") return Pulse(words.Integer(1));
  return Drain();
}

// --- Caller ------------------------------------------------------------------

constexpr uint64_t kBytes = 4 << 20;
constexpr uint64_t kHostBytes = 64 << 10;

class Caller {
 public:
  explicit Caller(Stage& stage) : stage_(stage), gpu_(stage.gpu()) {}
  absl::Status Open();
  absl::StatusOr<std::string> Handle(Words& words);

 private:
  absl::Status Call(const std::string& name);
  absl::Status Finish() { return WaitDone(gpu_, other_.get(), kStep); }
  absl::Status Launch(DType dtype);

  Stage& stage_;
  gpu::Gpu& gpu_;
  FlagPage page_;
  SharedMemory host_;
  gpu::HostRegistration registered_;
  gpu::OwnedStream waits_, other_, spare_;
  gpu::OwnedEvent event_;
  gpu::OwnedMemory memory_, imported_, allocated_;
  Fd exported_;
};

absl::Status Caller::Open() {
  for (gpu::OwnedStream* stream : {&waits_, &other_}) {
    auto made = gpu::OwnedStream::Create(gpu_);
    if (!made.ok()) return made.status();
    *stream = *std::move(made);
  }
  auto memory = gpu::OwnedMemory::Allocate(gpu_, kBytes);
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  auto host = SharedMemory::Create(kHostBytes);
  if (!host.ok()) return host.status();
  host_ = *std::move(host);
  // Zeros are numbers of every type.
  absl::Status status =
      gpu_.Fill(other_.get(), memory_.address(), 0, kBytes / 4);
  if (status.ok()) status = gpu_.Spin(other_.get(), 1, kShortSpin);
  if (status.ok()) status = Launch(DType::kFloat32);
  if (status.ok()) status = Finish();
  return status;
}

absl::Status Caller::Launch(DType dtype) {
  const gpu::Address data[] = {memory_.address(),
                               memory_.address() + kBytes / 2};
  return gpu_.Reduce(other_.get(), {.inputs = data,
                                    .outputs = data,
                                    .elements = 1024,
                                    .dtype = dtype,
                                    .op = Op::kSum,
                                    .scale = 1.0});
}

template <typename Owned>
absl::Status Keep(Owned* to, absl::StatusOr<Owned> made) {
  if (!made.ok()) return made.status();
  *to = *std::move(made);
  return absl::OkStatus();
}

// What is made here is given back by a later call of the list (many_waits.cc),
// in its order.
absl::Status Caller::Call(const std::string& name) {
  if (name == "memory_room") return gpu_.MemoryRoom().status();
  if (name == "create_stream") {
    return Keep(&spare_, gpu::OwnedStream::Create(gpu_));
  }
  if (name == "create_event") {
    return Keep(&event_, gpu::OwnedEvent::Create(gpu_, gpu::EventUse::kOrder));
  }
  if (name == "export") return Keep(&exported_, gpu_.Export(memory_.address()));
  if (name == "import") {
    return Keep(&imported_, gpu::OwnedMemory::Import(gpu_, exported_.get(),
                                                     memory_.bytes()));
  }
  if (name == "register_host") {
    return Keep(&registered_, gpu::HostRegistration::Create(gpu_, host_.data(),
                                                            host_.bytes()));
  }
  if (name == "copy_to_host") {
    const absl::Status status = gpu_.Copy(other_.get(), registered_.address(),
                                          memory_.address(), kHostBytes);
    return status.ok() ? Finish() : status;
  }
  if (name == "kernel" || name == "kernel_never_launched_before") {
    const absl::Status status =
        Launch(name == "kernel" ? DType::kFloat32 : DType::kFloat64);
    return status.ok() ? Finish() : status;
  }
  if (name == "synchronize_other_stream") {
    return gpu_.Synchronize(other_.get());
  }
  if (name == "allocate") {
    return Keep(&allocated_, gpu::OwnedMemory::Allocate(gpu_, kBytes));
  }
  if (name == "free") {
    allocated_.Reset();
  } else if (name == "unmap_imported") {
    imported_.Reset();
  } else if (name == "unregister_host") {
    registered_.Reset();
  } else if (name == "destroy_event") {
    event_.Reset();
  } else if (name == "destroy_stream") {
    spare_.Reset();
  } else {
    return absl::InternalError(absl::StrCat("no such call: ", name));
  }
  return absl::OkStatus();
}

// "page", with a descriptor; "try NAME VALUE": says "calling" when the stream
// waits for VALUE, and "called MS" after the call, or what it failed with;
// "finish": waits for the stream.
absl::StatusOr<std::string> Caller::Handle(Words& words) {
  if (words[0] == "page") {
    auto page = FlagPage::Map(gpu_, words.TakeFd(), kCrowdPageBytes);
    if (!page.ok()) return page.status();
    page_ = *std::move(page);
    return "ready";
  }
  if (words[0] == "finish") {
    const absl::Status done = WaitDone(gpu_, waits_.get(), kStep);
    if (!done.ok()) return done;
    return "finished";
  }
  absl::Status status = gpu_.WaitValue(waits_.get(), page_.address(kFlagWords),
                                       static_cast<uint64_t>(words.Integer(2)));
  if (status.ok()) status = stage_.channel().Send("calling");
  if (!status.ok()) return status;
  const int64_t start = Now();
  status = Call(words[1]);
  const double ms = static_cast<double>(Now() - start) / 1e6;
  return absl::StrCat("called ", ms, " ", status.ok() ? "" : status.message());
}

}  // namespace

// Arguments: streams, number of the process.
absl::Status PlayCrowd(Stage& stage) {
  Crowd crowd(stage.gpu(), static_cast<size_t>(stage.Number(0)),
              static_cast<size_t>(stage.Number(1)));
  return Serve(stage, [&](Words& words) { return crowd.Handle(words); });
}

absl::Status PlayCaller(Stage& stage) {
  Caller caller(stage);
  const absl::Status status = caller.Open();
  if (!status.ok()) return status;
  return Serve(stage, [&](Words& words) { return caller.Handle(words); });
}

}  // namespace maypole::probe
