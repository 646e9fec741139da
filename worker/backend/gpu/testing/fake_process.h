// FakeProcess: one process of a fake machine: its state, injected errors and
// Gpus. FakeContext: one Gpu of the process.
//
// Thread contract: callers of FakeProcess must hold the scheduler's mutex,
// except for Create and the destructor. FakeContext: as Gpu.
//
// Invariants: a process that is not alive has no streams and, after Kill, no
// mappings.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_PROCESS_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_PROCESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/gpu/testing/fake_event.h"
#include "worker/backend/gpu/testing/fake_gpu.h"
#include "worker/backend/gpu/testing/fake_memory.h"
#include "worker/backend/gpu/testing/fake_nccl.h"
#include "worker/backend/gpu/testing/fake_scheduler.h"

namespace maypole::gpu {

class FakeContext;

class FakeProcess {
 public:
  using Held = FakeScheduler::Held;

  static absl::StatusOr<std::shared_ptr<FakeProcess>> Create(
      std::shared_ptr<FakeMachine> machine);
  ~FakeProcess();

  FakeScheduler& scheduler() { return machine_->scheduler(); }
  uint64_t number() const { return number_; }
  bool alive() const { return state_ == State::kAlive; }
  uint64_t NextId() { return number_ << 32 | ++last_id_; }
  std::string HostId() const;
  absl::StatusOr<NcclId> MakeNcclId();

  // Every call begins with this. Returns an error if the call must fail.
  absl::Status Enter(std::string_view call);
  // Returns the injected delay for what this call enqueues.
  int64_t TakeDelay(std::string_view call);

  absl::Status FailNext(std::string_view call, absl::Status status);
  absl::Status DelayNext(std::string_view call, int64_t delay);
  void SetHostId(std::string host_id) { host_id_ = std::move(host_id); }
  void Kill(Held& held);
  void LoseContext(Held& held);

  void Add(FakeContext* context) { contexts_.push_back(context); }
  void Remove(FakeContext* context) { std::erase(contexts_, context); }

 private:
  enum class State { kAlive, kLost, kKilled };
  FakeProcess(std::shared_ptr<FakeMachine> machine, uint64_t number)
      : machine_(std::move(machine)), number_(number) {}
  void StopStreams(Held& held);

  const std::shared_ptr<FakeMachine> machine_;
  const uint64_t number_;
  State state_ = State::kAlive;
  uint64_t last_id_ = 0;
  std::string host_id_;
  std::vector<FakeContext*> contexts_;
  std::vector<Fd> nccl_pages_;
  std::map<std::string, std::deque<absl::Status>, std::less<>> failures_;
  std::map<std::string, std::deque<int64_t>, std::less<>> delays_;
};

class FakeContext final : public Gpu {
 public:
  FakeContext(std::shared_ptr<FakeProcess> process, int device);
  ~FakeContext() override;

  const DeviceInfo& device() const override { return info_; }
  absl::StatusOr<Room> MemoryRoom() override;
  absl::StatusOr<Memory> Allocate(uint64_t bytes) override;
  absl::StatusOr<Fd> Export(Address address) override;
  absl::StatusOr<Memory> Import(int fd, uint64_t bytes) override;
  absl::Status Free(Address address) override;
  absl::StatusOr<Address> RegisterHost(void* host, uint64_t bytes) override;
  absl::Status UnregisterHost(void* host) override;

  absl::StatusOr<Stream> CreateStream() override;
  absl::Status DestroyStream(Stream stream) override;
  absl::StatusOr<bool> Done(Stream stream) override;
  absl::Status Synchronize(Stream stream) override;
  absl::Status WriteValue(Stream stream, Address flag, uint64_t value) override;
  absl::Status WaitValue(Stream stream, Address flag, uint64_t value,
                         WaitFor what) override;
  absl::Status Copy(Stream stream, Address to, Address from,
                    uint64_t bytes) override;
  absl::Status Fill(Stream stream, Address to, uint32_t word,
                    uint64_t words) override;
  absl::Status Reduce(Stream stream, const Reduction& reduction) override;
  absl::Status Spin(Stream stream, int blocks, int64_t nanoseconds) override;
  absl::Status KernelCopy(Stream stream, Address to, Address from,
                          uint64_t bytes, int blocks) override;

  absl::StatusOr<Event> CreateEvent(EventUse use) override;
  absl::Status DestroyEvent(Event event) override;
  absl::Status Record(Event event, Stream stream) override;
  absl::Status WaitEvent(Stream stream, Event event) override;
  absl::StatusOr<bool> EventDone(Event event) override;
  absl::StatusOr<double> Milliseconds(Event from, Event to) override;
  absl::StatusOr<EventHandle> ExportEvent(Event event) override;
  absl::StatusOr<Event> ImportEvent(const EventHandle& handle) override;

  absl::StatusOr<NcclId> MakeNcclId() override;
  absl::StatusOr<Communicator> JoinCommunicator(const NcclId& id, int size,
                                                int rank) override;
  absl::StatusOr<CommunicatorState> PollCommunicator(
      Communicator communicator) override;
  absl::Status AllReduce(Communicator communicator, Stream stream, Address data,
                         uint64_t elements, DType dtype) override;
  absl::Status AbortCommunicator(Communicator communicator) override;

  // Called by the process, under the mutex. Die() drops everything that the
  // context has made; its streams must have been stopped.
  FakeStreams Streams() const;
  void Die();

 private:
  using Held = FakeScheduler::Held;
  template <typename T>
  using Handles = std::map<uint64_t, std::shared_ptr<T>>;

  template <typename F>
  auto Call(const char* call, F f);
  template <typename F>
  absl::Status Enqueue(const char* call, Stream stream, F make);
  absl::Status Named(const char* call, const absl::Status& status) const;
  absl::Status WaitIdle(const FakeStreams& streams, Held& held);
  absl::StatusOr<FakeEvent*> RecordedEvent(Event event);

  const std::shared_ptr<FakeProcess> process_;
  FakeScheduler& scheduler_;
  const int index_;
  const DeviceInfo info_;
  FakeMemory memory_;
  Handles<FakeStream> streams_;
  Handles<FakeEvent> events_;
  Handles<FakeCommunicator> communicators_;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_PROCESS_H_
