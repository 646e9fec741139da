#include "tests/gpu/fake_nccl/process.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/gpu/fake_nccl/communicator.h"

namespace maypole::nccl::fake {

Process& Process::Get() {
  static Process* const process = new Process;
  return *process;
}

Process::Process() : config_(ReadConfig(std::getenv("MAYPOLE_FAKE_NCCL"))) {}

void Process::StopAtExit() {
  static const int registered = std::atexit([] { Get().Stop(); });
  static_cast<void>(registered);
}

void Process::Stop() {
  std::vector<std::shared_ptr<Communicator>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [handle, comm] : communicators_) all.push_back(comm);
  }
  for (const auto& comm : all) comm->Cancel();
}

ncclResult_t Process::Failure(const char* name, bool* later) {
  *later = false;
  std::lock_guard lock(mutex_);
  const uint64_t call = ++calls_[name];
  for (const Config::Failure& failure : config_.failures) {
    if (failure.call != name || failure.which != call) continue;
    *later = failure.later;
    return failure.error;
  }
  return ncclSuccess;
}

uint64_t Process::CallsOf(const char* name) {
  std::lock_guard lock(mutex_);
  return calls_[name];
}

ncclComm_t Process::Add(std::shared_ptr<Communicator> comm) {
  std::lock_guard lock(mutex_);
  next_handle_ += 0x10;
  communicators_[next_handle_] = std::move(comm);
  return reinterpret_cast<ncclComm_t>(next_handle_);
}

std::shared_ptr<Communicator> Process::Find(ncclComm_t handle) {
  std::lock_guard lock(mutex_);
  const auto it = communicators_.find(reinterpret_cast<uintptr_t>(handle));
  if (it == communicators_.end()) {
    Illegal("there is no such communicator, or it has been destroyed");
  }
  return it->second;
}

void Process::Remove(ncclComm_t handle) {
  std::lock_guard lock(mutex_);
  communicators_.erase(reinterpret_cast<uintptr_t>(handle));
}

ncclResult_t Process::Error(ncclResult_t result, const std::string& text) {
  std::lock_guard lock(mutex_);
  last_error_ = errors_.insert(text).first->c_str();
  return result;
}

}  // namespace maypole::nccl::fake
