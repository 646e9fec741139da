// FakeMachine, FakeDriver: Driver and Gpu without a GPU, for tests and for
// `probe --fake`.
//
// Purpose: all work is really done, on host memory, in any order that streams,
// flags and events allow; so wrong synchronisation shows as wrong bytes. Device
// memory is a memfd that is mapped at its Address. Exports, imports,
// interprocess events and communicators work between real processes, and
// between several FakeDrivers of one process, each of which is one fake
// process.
//
//   FakeMachine::Options options;                 // stepped, seed 7
//   options.mode = FakeMachine::Mode::kStepped;
//   options.seed = 7;
//   auto machine = FakeMachine::Create(options);            // StatusOr
//   auto driver = FakeDriver::Create(*machine);             // StatusOr
//   auto gpu = (*driver)->Open(FakeMachine::Uuid(0));
//   (*gpu)->WriteValue(stream, flag, 1);
//   (*machine)->Run();                            // now it is written
//
// Modes. Stepped: work is only done in Step(), Run() and calls that wait. They
// execute the next piece of work of a stream that can continue, which the seed
// chooses; copies, fills and reductions are sometimes done in two pieces. A
// wait that can never end returns kFailedPrecondition and says which stream
// waits for what. Time is a counter that Spin advances. Threads: each stream
// has a thread, and waits are polled, so that the host and other real processes
// can write flags.
//
// Real processes: the first one makes a machine (Mode::kThreads) and sets
// MAYPOLE_FAKE_GPU=machine->environment() for the others, which call
// OpenFakeDriver(). The first must outlive them, and all must run as the same
// user. No machine may exist during a fork() without exec.
//
// Errors, all returned before anything is enqueued or changed:
//   kFailedPrecondition  freeing, exporting or using freed memory (addresses
//       are never reused); exporting imported memory; registering host
//       memory twice; unregistering what a stream still uses; Milliseconds of
//       events that are not done; an interprocess event that its maker has
//       destroyed; importing an event in the process that made it; an AllReduce
//       before the communicator is ready.
//   kInvalidArgument  an address that is neither device nor registered memory,
//       a range that ends outside of it, freeing what does not begin an
//       allocation, a misaligned flag, Fill's words or Reduce's operands;
//       overlapping operands (also through two mappings of one memory); a dtype
//       or op outside of Reduction's contract, 0 or more than kMaxReduced
//       operands; a descriptor that is no exported memory of this machine and
//       device, or has another size; handles of another Gpu, or given back;
//       ExportEvent of another use than kInterprocess, or of an imported event;
//       Milliseconds of other than kTiming events, or of unrecorded ones; an id
//       that is not an NcclId, a rank that has joined already, another size; an
//       AllReduce of 0 elements, or of a dtype that NCCL does not have.
//   kResourceExhausted  more memory than the device has left.
//   kAborted  (PollCommunicator) two ranks on one device with equal NCCL_HOSTID
//       ("Duplicate GPU detected"), members that call AllReduce differently.
//
// Differences from a device: MemoryRoom counts memory while a living process
// maps it, and ignores descriptors and contexts; each Gpu has a context of its
// own, even if two are opened on one device; destroying a Gpu ends its streams'
// waits, as the end of a process does. The first MiB of new memory holds 0xA5.
// After an AllReduce, the first PollCommunicator returns kInProgress. A
// communicator has at most 64 ranks. Events remember their last 1024 records.
//
// Thread contract: as Gpu's; Step(), Run() and the injection calls (Kill(),
// LoseContext() and others) from any thread. A machine lives as long as its
// drivers; a driver's process lives until the driver and its Gpus are gone.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_GPU_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_GPU_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::gpu {

class FakeProcess;
class FakeScheduler;

inline constexpr char kFakeGpuVariable[] = "MAYPOLE_FAKE_GPU";

// The devices of a machine, their memory use, and the scheduler of the streams.
class FakeMachine {
 public:
  enum class Mode { kStepped, kThreads };
  struct Options {
    Mode mode = Mode::kThreads;
    uint64_t seed = 1;                     // for the scheduler, if stepped
    std::vector<DeviceInfo> devices = {};  // if empty: Device(0)
  };

  static absl::StatusOr<std::shared_ptr<FakeMachine>> Create(
      const Options& options);
  // The machine that $MAYPOLE_FAKE_GPU names; in threads mode.
  static absl::StatusOr<std::shared_ptr<FakeMachine>> OpenNamed(
      const std::string& name);
  ~FakeMachine();

  // An ordinary device of 16 GiB.
  static DeviceInfo Device(int index);
  static std::string Uuid(int index) { return Device(index).uuid; }

  // The value of MAYPOLE_FAKE_GPU for other processes.
  std::string environment() const;

  // Stepped mode. Step() does one piece of work of one stream; it returns false
  // if no stream can continue. Run() steps until then and returns the number of
  // steps.
  bool Step();
  int64_t Run();

  FakeScheduler& scheduler() { return *scheduler_; }

 private:
  explicit FakeMachine(std::unique_ptr<FakeScheduler> scheduler);
  const std::unique_ptr<FakeScheduler> scheduler_;
};

// One process of the machine.
class FakeDriver final : public Driver {
 public:
  static absl::StatusOr<std::unique_ptr<FakeDriver>> Create(
      std::shared_ptr<FakeMachine> machine);
  ~FakeDriver() override;

  const Versions& versions() const override;
  absl::StatusOr<std::vector<DeviceInfo>> Devices() override;
  absl::StatusOr<std::unique_ptr<Gpu>> Open(const std::string& uuid) override;

  // --- Injection -------------------------------------------------------------
  // The next call of this Driver or Gpu method ("Open", "Copy") returns
  // `status` and does nothing; several such statuses queue up. Returns
  // kInvalidArgument if there is no such method.
  absl::Status FailNext(std::string_view call, absl::Status status);
  // Delays the work that the next call of this method enqueues: by `steps`
  // steps of the machine (stepped mode) or `duration` (threads mode).
  absl::Status DelayNext(std::string_view call, int64_t steps);
  absl::Status DelayNext(std::string_view call,
                         std::chrono::nanoseconds duration);
  // Overrides NCCL_HOSTID of the environment.
  void SetHostId(std::string host_id);
  // Simulates kill -9: the process's streams stop at once, even within a copy;
  // its mappings vanish (memory that others map lives on); later calls return
  // kInternal.
  void Kill();
  // Simulates an illegal access: streams stop, and later calls return
  // kInternal; memory stays allocated until the process ends.
  void LoseContext();

 private:
  explicit FakeDriver(std::shared_ptr<FakeProcess> process);
  const std::shared_ptr<FakeProcess> process_;
};

// Returns a process on the machine that $MAYPOLE_FAKE_GPU names or, if it is
// not set, on a new machine in threads mode.
absl::StatusOr<std::unique_ptr<Driver>> OpenFakeDriver();

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_GPU_H_
