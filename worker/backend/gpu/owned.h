// OwnedStream, OwnedEvent, OwnedCommunicator, OwnedMemory, HostRegistration:
// RAII, move-only owners of a Gpu's objects.
//
//   auto stream = OwnedStream::Create(gpu);   // StatusOr<OwnedStream>
//   gpu.Copy(stream->get(), to, from, bytes);
//
// Invariants: the Gpu must outlive them. Errors of the release are ignored:
// after a lost context nothing can be done about them. The release may block,
// as Gpu says: if a stream waits for a flag, write the flag first.
//
// Thread contract: values; not synchronized.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_OWNED_H_
#define MAYPOLE_WORKER_BACKEND_GPU_OWNED_H_

#include <utility>

#include "absl/status/statusor.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::gpu {

// Handle is Stream, Event or Communicator; GiveBack is the Gpu method that
// releases it.
template <typename Handle, absl::Status (Gpu::*GiveBack)(Handle)>
class OwnedHandle {
 public:
  OwnedHandle() = default;
  OwnedHandle(Gpu& gpu, Handle handle) : gpu_(&gpu), handle_(handle) {}
  OwnedHandle(OwnedHandle&& o) noexcept
      : gpu_(o.gpu_), handle_(std::exchange(o.handle_, Handle{})) {}
  OwnedHandle& operator=(OwnedHandle&& o) noexcept {
    if (this != &o) {
      Reset();
      gpu_ = o.gpu_;
      handle_ = std::exchange(o.handle_, Handle{});
    }
    return *this;
  }
  ~OwnedHandle() { Reset(); }

  Handle get() const { return handle_; }
  bool valid() const { return handle_.id != 0; }
  void Reset() {
    const Handle handle = std::exchange(handle_, Handle{});
    if (handle.id != 0) (gpu_->*GiveBack)(handle).IgnoreError();
  }

 private:
  Gpu* gpu_ = nullptr;
  Handle handle_;
};

class OwnedStream : public OwnedHandle<Stream, &Gpu::DestroyStream> {
 public:
  using OwnedHandle::OwnedHandle;
  static absl::StatusOr<OwnedStream> Create(Gpu& gpu) {
    const absl::StatusOr<Stream> stream = gpu.CreateStream();
    if (!stream.ok()) return stream.status();
    return OwnedStream(gpu, *stream);
  }
};

class OwnedEvent : public OwnedHandle<Event, &Gpu::DestroyEvent> {
 public:
  using OwnedHandle::OwnedHandle;
  static absl::StatusOr<OwnedEvent> Create(Gpu& gpu, EventUse use) {
    const absl::StatusOr<Event> event = gpu.CreateEvent(use);
    if (!event.ok()) return event.status();
    return OwnedEvent(gpu, *event);
  }
};

using OwnedCommunicator = OwnedHandle<Communicator, &Gpu::AbortCommunicator>;

// Memory that was allocated here, or imported from another process.
class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(Gpu& gpu, Memory memory) : gpu_(&gpu), memory_(memory) {}
  OwnedMemory(OwnedMemory&& o) noexcept
      : gpu_(o.gpu_), memory_(std::exchange(o.memory_, Memory{})) {}
  OwnedMemory& operator=(OwnedMemory&& o) noexcept {
    if (this != &o) {
      Reset();
      gpu_ = o.gpu_;
      memory_ = std::exchange(o.memory_, Memory{});
    }
    return *this;
  }
  ~OwnedMemory() { Reset(); }
  static absl::StatusOr<OwnedMemory> Allocate(Gpu& gpu, uint64_t bytes) {
    const absl::StatusOr<Memory> memory = gpu.Allocate(bytes);
    if (!memory.ok()) return memory.status();
    return OwnedMemory(gpu, *memory);
  }
  static absl::StatusOr<OwnedMemory> Import(Gpu& gpu, int fd, uint64_t bytes) {
    const absl::StatusOr<Memory> memory = gpu.Import(fd, bytes);
    if (!memory.ok()) return memory.status();
    return OwnedMemory(gpu, *memory);
  }

  Address address() const { return memory_.address; }
  uint64_t bytes() const { return memory_.bytes; }
  void Reset() {
    const Memory memory = std::exchange(memory_, Memory{});
    if (memory.address != 0) gpu_->Free(memory.address).IgnoreError();
  }

 private:
  Gpu* gpu_ = nullptr;
  Memory memory_;
};

// A registration of host memory that the device may access. The caller owns the
// host memory, which must outlive this object.
class HostRegistration {
 public:
  HostRegistration() = default;
  HostRegistration(HostRegistration&& o) noexcept
      : gpu_(o.gpu_),
        host_(std::exchange(o.host_, nullptr)),
        address_(std::exchange(o.address_, 0)) {}
  HostRegistration& operator=(HostRegistration&& o) noexcept {
    if (this != &o) {
      Reset();
      gpu_ = o.gpu_;
      host_ = std::exchange(o.host_, nullptr);
      address_ = std::exchange(o.address_, 0);
    }
    return *this;
  }
  ~HostRegistration() { Reset(); }
  static absl::StatusOr<HostRegistration> Create(Gpu& gpu, void* host,
                                                 uint64_t bytes) {
    const absl::StatusOr<Address> address = gpu.RegisterHost(host, bytes);
    if (!address.ok()) return address.status();
    HostRegistration out;
    out.gpu_ = &gpu;
    out.host_ = host;
    out.address_ = *address;
    return out;
  }

  Address address() const { return address_; }
  void Reset() {
    void* host = std::exchange(host_, nullptr);
    if (host != nullptr) gpu_->UnregisterHost(host).IgnoreError();
    address_ = 0;
  }

 private:
  Gpu* gpu_ = nullptr;
  void* host_ = nullptr;
  Address address_ = 0;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_OWNED_H_
