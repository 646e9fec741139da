#include "worker/backend/gpu/testing/fake_gpu.h"

#include <stdlib.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/backend/gpu/testing/fake_process.h"
#include "worker/backend/gpu/testing/fake_scheduler.h"

namespace maypole::gpu {

// --- FakeMachine -------------------------------------------------------------

FakeMachine::FakeMachine(std::unique_ptr<FakeScheduler> scheduler)
    : scheduler_(std::move(scheduler)) {}

FakeMachine::~FakeMachine() = default;

DeviceInfo FakeMachine::Device(int index) {
  return {.uuid = absl::StrFormat("GPU-fa4e0000-0000-0000-0000-%012d", index),
          .name = "Maypole fake GPU",
          .bus_id = absl::StrFormat("00000000:%02x:00.0", index + 1),
          .compute_major = 9,
          .compute_minor = 0,
          .multiprocessors = 132,
          .copy_engines = 3,
          .total_bytes = uint64_t{16} << 30,
          .exports_memory = true,
          .stream_flags = true};
}

absl::StatusOr<std::shared_ptr<FakeMachine>> FakeMachine::Create(
    const Options& options) {
  std::vector<DeviceInfo> devices = options.devices;
  if (devices.empty()) devices.push_back(Device(0));
  absl::StatusOr<std::unique_ptr<FakeLedger>> ledger =
      FakeLedger::Create(devices);
  if (!ledger.ok()) return ledger.status();
  return std::shared_ptr<FakeMachine>(
      new FakeMachine(std::make_unique<FakeScheduler>(
          *std::move(ledger), options.mode, options.seed)));
}

absl::StatusOr<std::shared_ptr<FakeMachine>> FakeMachine::OpenNamed(
    const std::string& name) {
  absl::StatusOr<std::unique_ptr<FakeLedger>> ledger = FakeLedger::Open(name);
  if (!ledger.ok()) return ledger.status();
  return std::shared_ptr<FakeMachine>(
      new FakeMachine(std::make_unique<FakeScheduler>(
          *std::move(ledger), Mode::kThreads, uint64_t{0})));
}

std::string FakeMachine::environment() const {
  return scheduler_->ledger().path();
}

bool FakeMachine::Step() {
  FakeScheduler::Held held(scheduler_->mutex());
  return scheduler_->stepped() && scheduler_->Step(held);
}

int64_t FakeMachine::Run() {
  int64_t steps = 0;
  while (Step()) ++steps;
  return steps;
}

absl::StatusOr<std::unique_ptr<Driver>> OpenFakeDriver() {
  const char* name = getenv(kFakeGpuVariable);
  absl::StatusOr<std::shared_ptr<FakeMachine>> machine =
      name != nullptr ? FakeMachine::OpenNamed(name) : FakeMachine::Create({});
  if (!machine.ok()) return machine.status();
  return FakeDriver::Create(*std::move(machine));
}

// --- FakeDriver --------------------------------------------------------------

FakeDriver::FakeDriver(std::shared_ptr<FakeProcess> process)
    : process_(std::move(process)) {}

FakeDriver::~FakeDriver() = default;

absl::StatusOr<std::unique_ptr<FakeDriver>> FakeDriver::Create(
    std::shared_ptr<FakeMachine> machine) {
  absl::StatusOr<std::shared_ptr<FakeProcess>> process =
      FakeProcess::Create(std::move(machine));
  if (!process.ok()) return process.status();
  return std::unique_ptr<FakeDriver>(new FakeDriver(*std::move(process)));
}

const Versions& FakeDriver::versions() const {
  static const Versions versions = {
      .driver = 13000, .runtime = 13000, .nccl = 22809, .nccl_error = ""};
  return versions;
}

absl::StatusOr<std::vector<DeviceInfo>> FakeDriver::Devices() {
  FakeScheduler::Held held(process_->scheduler().mutex());
  absl::Status status = process_->Enter("Devices");
  if (!status.ok()) return status;
  return process_->scheduler().ledger().devices();
}

absl::StatusOr<std::unique_ptr<Gpu>> FakeDriver::Open(const std::string& uuid) {
  FakeScheduler::Held held(process_->scheduler().mutex());
  absl::Status status = process_->Enter("Open");
  if (!status.ok()) return status;
  const std::vector<DeviceInfo>& devices =
      process_->scheduler().ledger().devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].uuid != uuid) continue;
    return std::make_unique<FakeContext>(process_, static_cast<int>(i));
  }
  return absl::UnavailableError(
      absl::StrCat("Open: this machine has no device ", uuid));
}

absl::Status FakeDriver::FailNext(std::string_view call, absl::Status status) {
  FakeScheduler::Held held(process_->scheduler().mutex());
  return process_->FailNext(call, std::move(status));
}

absl::Status FakeDriver::DelayNext(std::string_view call, int64_t steps) {
  FakeScheduler::Held held(process_->scheduler().mutex());
  if (!process_->scheduler().stepped()) {
    return absl::InvalidArgumentError("only a stepped machine has steps");
  }
  return process_->DelayNext(call, steps);
}

absl::Status FakeDriver::DelayNext(std::string_view call,
                                   std::chrono::nanoseconds duration) {
  FakeScheduler::Held held(process_->scheduler().mutex());
  if (process_->scheduler().stepped()) {
    return absl::InvalidArgumentError("a stepped machine is delayed by steps");
  }
  return process_->DelayNext(call, duration.count());
}

void FakeDriver::SetHostId(std::string host_id) {
  FakeScheduler::Held held(process_->scheduler().mutex());
  process_->SetHostId(std::move(host_id));
}

void FakeDriver::Kill() {
  FakeScheduler::Held held(process_->scheduler().mutex());
  process_->Kill(held);
}

void FakeDriver::LoseContext() {
  FakeScheduler::Held held(process_->scheduler().mutex());
  process_->LoseContext(held);
}

}  // namespace maypole::gpu
