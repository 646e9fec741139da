#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/gpu/testing/fake_process.h"

namespace maypole::gpu {
namespace {

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Finds the object of a handle; `what` names its kind.
template <typename T, typename Handle>
absl::StatusOr<std::shared_ptr<T>> Find(
    const std::map<uint64_t, std::shared_ptr<T>>& handles, Handle handle,
    const char* what) {
  const auto found = handles.find(handle.id);
  if (found != handles.end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("CUDA_ERROR_INVALID_HANDLE: this Gpu has no ", what, " ",
                   handle.id & 0xffffffff, " of process ", handle.id >> 32,
                   " (another's, or given back)"));
}

}  // namespace

FakeContext::FakeContext(std::shared_ptr<FakeProcess> process, int device)
    : process_(std::move(process)),
      scheduler_(process_->scheduler()),
      index_(device),
      info_(scheduler_.ledger().devices()[static_cast<size_t>(device)]),
      memory_(scheduler_.ledger(), process_->number(), device) {
  process_->Add(this);
}

FakeContext::~FakeContext() {
  Held held(scheduler_.mutex());
  scheduler_.Stop(Streams(), held);
  process_->Remove(this);
}

FakeStreams FakeContext::Streams() const {
  FakeStreams streams;
  for (const auto& [id, stream] : streams_) streams.push_back(stream);
  return streams;
}

void FakeContext::Die() {
  memory_.Vanish();
  streams_.clear();
  events_.clear();
  communicators_.clear();
}

absl::Status FakeContext::Named(const char* call,
                                const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(call, " on ", info_.uuid,
                                                  ": ", status.message()));
}

// Runs a call that enqueues nothing; f(held) returns a Status or a StatusOr.
template <typename F>
auto FakeContext::Call(const char* call, F f) {
  Held held(scheduler_.mutex());
  using Result = decltype(f(held));
  absl::Status status = process_->Enter(call);
  if (!status.ok()) return Result(Named(call, status));
  Result result = f(held);
  if (!result.ok()) return Result(Named(call, StatusOf(result)));
  return result;
}

// Runs a call that enqueues the operation that make() returns.
template <typename F>
absl::Status FakeContext::Enqueue(const char* call, Stream stream, F make) {
  return Call(call, [&](Held& held) -> absl::Status {
    const auto found = Find(streams_, stream, "stream");
    if (!found.ok()) return found.status();
    MadeOperation operation = make();
    if (!operation.ok()) return operation.status();
    (*operation)->delay = process_->TakeDelay(call);
    scheduler_.Push(**found, *std::move(operation), held);
    return absl::OkStatus();
  });
}

absl::Status FakeContext::WaitIdle(const FakeStreams& streams, Held& held) {
  const absl::Status status = scheduler_.WaitIdle(
      streams, [this] { return !process_->alive(); }, held);
  if (!status.ok() || process_->alive()) return status;
  return absl::InternalError("the process or its context ended meanwhile");
}

// --- Memory ------------------------------------------------------------------

absl::StatusOr<Gpu::Room> FakeContext::MemoryRoom() {
  return Call("MemoryRoom", [&](Held&) -> absl::StatusOr<Room> {
    const uint64_t total = info_.total_bytes;
    const uint64_t taken = scheduler_.ledger().Taken(index_);
    return Room{.free_bytes = total - std::min(total, taken),
                .total_bytes = total};
  });
}

absl::StatusOr<Memory> FakeContext::Allocate(uint64_t bytes) {
  return Call("Allocate", [&](Held&) { return memory_.Allocate(bytes); });
}

absl::StatusOr<Fd> FakeContext::Export(Address address) {
  return Call("Export", [&](Held&) { return memory_.Export(address); });
}

absl::StatusOr<Memory> FakeContext::Import(int fd, uint64_t bytes) {
  return Call("Import", [&](Held&) { return memory_.Import(fd, bytes); });
}

absl::Status FakeContext::Free(Address address) {
  return Call("Free", [&](Held& held) {
    absl::Status status = memory_.CheckFree(address);
    if (status.ok()) status = WaitIdle(Streams(), held);
    return status.ok() ? memory_.Free(address) : status;
  });
}

absl::StatusOr<Address> FakeContext::RegisterHost(void* host, uint64_t bytes) {
  return Call("RegisterHost",
              [&](Held&) { return memory_.RegisterHost(host, bytes); });
}

absl::Status FakeContext::UnregisterHost(void* host) {
  return Call("UnregisterHost", [&](Held&) -> absl::Status {
    const absl::StatusOr<Piece> piece = memory_.Registered(host);
    if (!piece.ok()) return piece.status();
    for (const auto& [id, stream] : streams_) {
      for (const auto& operation : stream->queue) {
        if (!operation->Touches(*piece)) continue;
        return absl::FailedPreconditionError(absl::StrCat(
            "stream ", id & 0xffffffff, " has not done all that uses it"));
      }
    }
    memory_.UnregisterHost(host);
    return absl::OkStatus();
  });
}

// --- Streams -----------------------------------------------------------------

absl::StatusOr<Stream> FakeContext::CreateStream() {
  return Call("CreateStream", [&](Held& held) -> absl::StatusOr<Stream> {
    const uint64_t id = process_->NextId();
    streams_[id] = scheduler_.Start(id, held);
    return Stream{id};
  });
}

absl::Status FakeContext::DestroyStream(Stream stream) {
  return Call("DestroyStream", [&](Held& held) -> absl::Status {
    const auto found = Find(streams_, stream, "stream");
    if (!found.ok()) return found.status();
    const absl::Status status = WaitIdle({*found}, held);
    if (!status.ok()) return status;
    streams_.erase(stream.id);
    scheduler_.Stop({*found}, held);
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> FakeContext::Done(Stream stream) {
  return Call("Done", [&](Held&) -> absl::StatusOr<bool> {
    const auto found = Find(streams_, stream, "stream");
    if (!found.ok()) return found.status();
    return (*found)->queue.empty();
  });
}

absl::Status FakeContext::Synchronize(Stream stream) {
  return Call("Synchronize", [&](Held& held) -> absl::Status {
    const auto found = Find(streams_, stream, "stream");
    if (!found.ok()) return found.status();
    return WaitIdle({*found}, held);
  });
}

absl::Status FakeContext::WriteValue(Stream stream, Address flag,
                                     uint64_t value) {
  return Enqueue("WriteValue", stream,
                 [&] { return MakeWriteValue(memory_, flag, value); });
}

absl::Status FakeContext::WaitValue(Stream stream, Address flag, uint64_t value,
                                    WaitFor what) {
  return Enqueue("WaitValue", stream,
                 [&] { return MakeWaitValue(memory_, flag, value, what); });
}

absl::Status FakeContext::Copy(Stream stream, Address to, Address from,
                               uint64_t bytes) {
  return Enqueue("Copy", stream,
                 [&] { return MakeCopy(memory_, to, from, bytes); });
}

absl::Status FakeContext::Fill(Stream stream, Address to, uint32_t word,
                               uint64_t words) {
  return Enqueue("Fill", stream,
                 [&] { return MakeFill(memory_, to, word, words); });
}

absl::Status FakeContext::Reduce(Stream stream, const Reduction& reduction) {
  return Enqueue("Reduce", stream,
                 [&] { return MakeReduce(memory_, reduction); });
}

absl::Status FakeContext::Spin(Stream stream, int blocks, int64_t nanoseconds) {
  return Enqueue("Spin", stream, [&] { return MakeSpin(blocks, nanoseconds); });
}

absl::Status FakeContext::KernelCopy(Stream stream, Address to, Address from,
                                     uint64_t bytes, int blocks) {
  return Enqueue("KernelCopy", stream, [&]() -> MadeOperation {
    if (blocks < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("CUDA_ERROR_INVALID_VALUE: ", blocks, " blocks"));
    }
    return MakeCopy(memory_, to, from, bytes);
  });
}

// --- Events ------------------------------------------------------------------

absl::StatusOr<Event> FakeContext::CreateEvent(EventUse use) {
  return Call("CreateEvent", [&](Held&) -> absl::StatusOr<Event> {
    if (use > EventUse::kInterprocess) {
      return absl::InvalidArgumentError(
          "CUDA_ERROR_INVALID_VALUE: no such use of an event");
    }
    auto event = FakeEvent::Create(use, process_->number());
    if (!event.ok()) return event.status();
    const uint64_t id = process_->NextId();
    events_[id] = *std::move(event);
    return Event{id};
  });
}

absl::Status FakeContext::DestroyEvent(Event event) {
  return Call("DestroyEvent", [&](Held&) -> absl::Status {
    const auto found = Find(events_, event, "event");
    if (!found.ok()) return found.status();
    (*found)->Destroy();
    events_.erase(event.id);
    return absl::OkStatus();
  });
}

absl::Status FakeContext::Record(Event event, Stream stream) {
  return Enqueue("Record", stream, [&]() -> MadeOperation {
    const auto found = Find(events_, event, "event");
    if (!found.ok()) return found.status();
    const absl::Status usable = (*found)->Usable();
    if (!usable.ok()) return usable;
    return MakeRecord(*found, (*found)->Issue());
  });
}

absl::Status FakeContext::WaitEvent(Stream stream, Event event) {
  return Enqueue("WaitEvent", stream, [&]() -> MadeOperation {
    const auto found = Find(events_, event, "event");
    if (!found.ok()) return found.status();
    const absl::Status usable = (*found)->Usable();
    if (!usable.ok()) return usable;
    return MakeWaitEvent(*found, (*found)->issued());
  });
}

absl::StatusOr<bool> FakeContext::EventDone(Event event) {
  return Call("EventDone", [&](Held&) -> absl::StatusOr<bool> {
    const auto found = Find(events_, event, "event");
    if (!found.ok()) return found.status();
    const absl::Status usable = (*found)->Usable();
    if (!usable.ok()) return usable;
    return (*found)->IsDone((*found)->issued());
  });
}

// Returns a timing event whose last record is done, or an error.
absl::StatusOr<FakeEvent*> FakeContext::RecordedEvent(Event event) {
  const auto found = Find(events_, event, "event");
  if (!found.ok()) return found.status();
  FakeEvent& e = **found;
  if (e.use() != EventUse::kTiming || e.issued() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CUDA_ERROR_INVALID_HANDLE: event ", event.id & 0xffffffff,
        e.use() == EventUse::kTiming ? " was never recorded"
                                     : " was not made with kTiming"));
  }
  if (!e.IsDone(e.issued())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA_ERROR_NOT_READY: event ", event.id & 0xffffffff, " is not done"));
  }
  return &e;
}

absl::StatusOr<double> FakeContext::Milliseconds(Event from, Event to) {
  return Call("Milliseconds", [&](Held&) -> absl::StatusOr<double> {
    const absl::StatusOr<FakeEvent*> begin = RecordedEvent(from);
    if (!begin.ok()) return begin.status();
    const absl::StatusOr<FakeEvent*> end = RecordedEvent(to);
    if (!end.ok()) return end.status();
    return static_cast<double>((*end)->Time() - (*begin)->Time()) * 1e-6;
  });
}

absl::StatusOr<EventHandle> FakeContext::ExportEvent(Event event) {
  return Call("ExportEvent", [&](Held&) -> absl::StatusOr<EventHandle> {
    const auto found = Find(events_, event, "event");
    if (!found.ok()) return found.status();
    return (*found)->Export();
  });
}

absl::StatusOr<Event> FakeContext::ImportEvent(const EventHandle& handle) {
  return Call("ImportEvent", [&](Held&) -> absl::StatusOr<Event> {
    auto event = FakeEvent::Import(handle, process_->number());
    if (!event.ok()) return event.status();
    const uint64_t id = process_->NextId();
    events_[id] = *std::move(event);
    return Event{id};
  });
}

// --- NCCL --------------------------------------------------------------------

absl::StatusOr<NcclId> FakeContext::MakeNcclId() {
  return Call("MakeNcclId", [&](Held&) { return process_->MakeNcclId(); });
}

absl::StatusOr<Communicator> FakeContext::JoinCommunicator(const NcclId& id,
                                                           int size, int rank) {
  return Call("JoinCommunicator", [&](Held&) -> absl::StatusOr<Communicator> {
    auto joined = FakeCommunicator::Join(id, {.size = size,
                                              .rank = rank,
                                              .device = info_.uuid,
                                              .host_id = process_->HostId()});
    if (!joined.ok()) return joined.status();
    const uint64_t number = process_->NextId();
    communicators_[number] = *std::move(joined);
    return Communicator{number};
  });
}

absl::StatusOr<CommunicatorState> FakeContext::PollCommunicator(
    Communicator communicator) {
  return Call(
      "PollCommunicator", [&](Held&) -> absl::StatusOr<CommunicatorState> {
        const auto found = Find(communicators_, communicator, "communicator");
        if (!found.ok()) return found.status();
        return (*found)->Poll();
      });
}

absl::Status FakeContext::AllReduce(Communicator communicator, Stream stream,
                                    Address data, uint64_t elements,
                                    DType dtype) {
  return Enqueue("AllReduce", stream, [&]() -> MadeOperation {
    const auto found = Find(communicators_, communicator, "communicator");
    if (!found.ok()) return found.status();
    return (*found)->AllReduce(memory_, data, elements, dtype);
  });
}

absl::Status FakeContext::AbortCommunicator(Communicator communicator) {
  return Call("AbortCommunicator", [&](Held&) -> absl::Status {
    const auto found = Find(communicators_, communicator, "communicator");
    if (!found.ok()) return found.status();
    (*found)->Abort();
    communicators_.erase(communicator.id);
    return absl::OkStatus();
  });
}

}  // namespace maypole::gpu
