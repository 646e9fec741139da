// Fake GPUs: Driver and Gpu without a GPU, for tests and for `probe --fake`.
//
// Purpose: everything is really done, on bytes of the host, in the order that
// streams, flags and events allow and no other: what is synchronised wrongly
// shows as wrong bytes. Device memory is a memfd that is mapped where its
// Address says; so exports, imports, interprocess events and communicators work
// between real processes, and between several FakeDrivers of one process, each
// of which is one (fake) process.
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
// Modes. Stepped: nothing runs but in Step(), Run() and calls that wait, which
// do the next piece of work of a stream that can go on, chosen by the seed;
// copies, fills and reductions are sometimes done in two pieces. A wait that
// can never end is kFailedPrecondition and says which stream waits for what;
// time is a counter that Spin moves on. Threads: each stream has a thread, and
// waits are polled, so that hosts and other real processes can write what is
// waited for.
//
// Real processes: the first makes a machine (Mode::kThreads) and sets
// MAYPOLE_FAKE_GPU=machine->environment() for the others, which call
// OpenFakeDriver(). The first must outlive them, and all must be of one user.
// No machine may be alive across a fork() without exec.
//
// What is refused, all before anything is enqueued or changed:
//   kFailedPrecondition  freeing, exporting or using freed memory (addresses
//       are never used again); exporting imported memory; registering host
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
//       that is no NcclId, a rank that has joined already, another size; an
//       AllReduce of nothing, or of a dtype that NCCL has not.
//   kResourceExhausted  more memory than the device has left.
//   kAborted  (PollCommunicator) two ranks on one device with equal NCCL_HOSTID
//       ("Duplicate GPU detected"), members that call AllReduce differently.
//
// Not as on a device: MemoryRoom counts memory while a living process maps it,
// descriptors count for nothing; contexts cost none; a Gpu is a context of its
// own, also if two of one device are opened; destroying a Gpu gives up what its
// streams wait for, as the end of a process does. New memory holds 0xA5, in its
// first MiB. After an AllReduce the first PollCommunicator says kInProgress. A
// communicator has at most 64 ranks. Events remember their last 1024 records.
//
// Thread contract: as Gpu's; Step(), Run(), Kill(), LoseContext() and the rest
// of the injection: any thread. A machine outlives its drivers by itself, and a
// driver's process lives until the driver and all its Gpus are gone.
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

// Devices, how much of their memory is taken, and who runs the streams.
class FakeMachine {
 public:
  enum class Mode { kStepped, kThreads };
  struct Options {
    Mode mode = Mode::kThreads;
    uint64_t seed = 1;                     // of the scheduler, if stepped
    std::vector<DeviceInfo> devices = {};  // none given: one of Device(0)
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

  // Value of MAYPOLE_FAKE_GPU for other processes.
  std::string environment() const;

  // Stepped mode. Step: one piece of work of one stream; false: no stream can
  // go on. Run: steps until then, and says how many there were.
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
  // The next call of that name (of Driver or Gpu: "Open", "Copy") gives this
  // status and does nothing; several queue up. kInvalidArgument: no such call.
  absl::Status FailNext(std::string_view call, absl::Status status);
  // What the next call of that name enqueues starts so much later than it
  // could: after so many steps of the machine (stepped), or so long (threads).
  absl::Status DelayNext(std::string_view call, int64_t steps);
  absl::Status DelayNext(std::string_view call,
                         std::chrono::nanoseconds duration);
  // Instead of NCCL_HOSTID of the environment.
  void SetHostId(std::string host_id);
  // As kill -9: its streams stop where they are, even within a copy; its
  // mappings vanish (memory that others map lives on); later calls are
  // kInternal.
  void Kill();
  // As an illegal access: streams stop, and all later calls are kInternal;
  // memory stays taken until the process ends.
  void LoseContext();

 private:
  explicit FakeDriver(std::shared_ptr<FakeProcess> process);
  const std::shared_ptr<FakeProcess> process_;
};

// A process on the machine that $MAYPOLE_FAKE_GPU names; without it, on a
// machine of its own, in threads mode.
absl::StatusOr<std::unique_ptr<Driver>> OpenFakeDriver();

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_GPU_H_
