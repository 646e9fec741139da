#include "worker/backend/gpu/testing/fake_process.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::gpu {
namespace {

constexpr std::string_view kCalls[] = {"Devices",
                                       "Open",
                                       "MemoryRoom",
                                       "Allocate",
                                       "Export",
                                       "Import",
                                       "Free",
                                       "RegisterHost",
                                       "UnregisterHost",
                                       "CreateStream",
                                       "DestroyStream",
                                       "Done",
                                       "Synchronize",
                                       "WriteValue",
                                       "WaitValue",
                                       "Copy",
                                       "Fill",
                                       "Reduce",
                                       "Spin",
                                       "KernelCopy",
                                       "CreateEvent",
                                       "DestroyEvent",
                                       "Record",
                                       "WaitEvent",
                                       "EventDone",
                                       "Milliseconds",
                                       "ExportEvent",
                                       "ImportEvent",
                                       "MakeNcclId",
                                       "JoinCommunicator",
                                       "PollCommunicator",
                                       "AllReduce",
                                       "AbortCommunicator"};

absl::Status CheckCall(std::string_view call) {
  if (std::ranges::find(kCalls, call) != std::end(kCalls)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("neither Driver nor Gpu has a call " +
                                    std::string(call));
}

template <typename T>
T TakeFirst(std::map<std::string, std::deque<T>, std::less<>>& from,
            std::string_view call, T none) {
  const auto found = from.find(call);
  if (found == from.end() || found->second.empty()) return none;
  T first = std::move(found->second.front());
  found->second.pop_front();
  return first;
}

}  // namespace

absl::StatusOr<std::shared_ptr<FakeProcess>> FakeProcess::Create(
    std::shared_ptr<FakeMachine> machine) {
  const absl::StatusOr<uint64_t> number =
      machine->scheduler().ledger().BeginProcess();
  if (!number.ok()) return number.status();
  return std::shared_ptr<FakeProcess>(
      new FakeProcess(std::move(machine), *number));
}

FakeProcess::~FakeProcess() { scheduler().ledger().EndProcess(number_); }

std::string FakeProcess::HostId() const {
  if (!host_id_.empty()) return host_id_;
  if (const char* id = getenv("NCCL_HOSTID"); id != nullptr) return id;
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

absl::StatusOr<NcclId> FakeProcess::MakeNcclId() {
  absl::StatusOr<FakeNcclPage> page = MakeFakeNcclPage();
  if (!page.ok()) return page.status();
  nccl_pages_.push_back(std::move(page->fd));
  return page->id;
}

absl::Status FakeProcess::Enter(std::string_view call) {
  if (state_ == State::kKilled) {
    return absl::InternalError("the fake process was killed");
  }
  if (state_ == State::kLost) {
    return absl::InternalError(
        "CUDA_ERROR_ILLEGAL_ADDRESS: the context is lost");
  }
  return TakeFirst(failures_, call, absl::OkStatus());
}

int64_t FakeProcess::TakeDelay(std::string_view call) {
  return TakeFirst<int64_t>(delays_, call, 0);
}

absl::Status FakeProcess::FailNext(std::string_view call, absl::Status status) {
  absl::Status known = CheckCall(call);
  if (known.ok()) failures_[std::string(call)].push_back(std::move(status));
  return known;
}

absl::Status FakeProcess::DelayNext(std::string_view call, int64_t delay) {
  absl::Status known = CheckCall(call);
  if (known.ok()) delays_[std::string(call)].push_back(delay);
  return known;
}

void FakeProcess::StopStreams(Held& held) {
  FakeStreams streams;
  for (const FakeContext* context : contexts_) {
    const FakeStreams more = context->Streams();
    streams.insert(streams.end(), more.begin(), more.end());
  }
  scheduler().Stop(streams, held);
}

void FakeProcess::Kill(Held& held) {
  state_ = State::kKilled;
  StopStreams(held);
  for (FakeContext* context : contexts_) context->Die();
  nccl_pages_.clear();
  scheduler().ledger().EndProcess(number_);
}

void FakeProcess::LoseContext(Held& held) {
  if (state_ == State::kAlive) state_ = State::kLost;
  StopStreams(held);
}

}  // namespace maypole::gpu
