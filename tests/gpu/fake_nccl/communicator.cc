#include "tests/gpu/fake_nccl/communicator.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/gpu/fake_nccl/config.h"
#include "tests/gpu/fake_nccl/driver.h"
#include "tests/gpu/fake_nccl/hub.h"
#include "tests/gpu/fake_nccl/launch.h"
#include "tests/gpu/fake_nccl/process.h"
#include "tests/gpu/fake_nccl/root.h"

namespace maypole::nccl::fake {
namespace {

ncclResult_t Error(ncclResult_t result, const std::string& text) {
  return Process::Get().Error(result, text);
}

// How the ranks connect before the first operation of this kind.
Call ConnectCall(const Call& call) {
  if (call.kind == Kind::kSend)
    return {.kind = Kind::kConnectSend, .peer = call.peer};
  if (call.kind == Kind::kRecv)
    return {.kind = Kind::kConnectRecv, .peer = call.peer};
  return {.kind = Kind::kConnect, .peer = static_cast<int>(call.kind)};
}

}  // namespace

Communicator::Communicator(int rank, int ranks, bool blocking,
                           cuda::CUcontext context, const cuda::CUuuid& gpu)
    : rank_(rank),
      ranks_(ranks),
      blocking_(blocking),
      context_(context),
      gpu_(gpu),
      random_(Process::Get().config().seed * 1000 +
              static_cast<uint64_t>(rank)) {}

Communicator::~Communicator() {
  if (last_ != nullptr) OpenDriver()->forget(last_);
}

ncclResult_t Communicator::state() {
  std::lock_guard lock(mutex_);
  if (peer_lost_) return ncclRemoteError;
  return busy_ && !blocking_ ? ncclInProgress : result_;
}

bool Communicator::busy() {
  std::lock_guard lock(mutex_);
  return busy_;
}

void Communicator::Begin() {
  std::lock_guard lock(mutex_);
  busy_ = true;
}

void Communicator::End(ncclResult_t result) {
  std::lock_guard lock(mutex_);
  busy_ = false;
  if (result_ == ncclSuccess) result_ = result;
  changed_.notify_all();
}

void Communicator::Dawdle() {
  const Config& config = Process::Get().config();
  if (config.seed == 0) return;
  uint64_t microseconds = 0;
  {
    std::lock_guard lock(mutex_);
    microseconds = random_() % (uint64_t{config.late_microseconds} + 1);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

bool Communicator::cancelled() {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

void Communicator::WaitUntilCancelled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_; });
}

ncclResult_t Communicator::Initialise(const ncclUniqueId& id) {
  const Config::Init init = Process::Get().config().init;
  if (init == Config::Init::kHang) WaitUntilCancelled();
  if (init == Config::Init::kError) {
    return Error(ncclSystemError, "init=error");
  }
  Hello hello = {rank_, ranks_, gpu_, HostHash(), ""};
  std::string hub;
  if (rank_ == 0 && !StartHub(ranks_, &hub)) {
    return Error(ncclSystemError, "no socket for the hub");
  }
  std::copy(hub.begin(), hub.end(), hello.hub);
  Fd root = FindRoot(id);
  if (!root.valid()) {
    return Error(ncclSystemError, "Connect to the root failed");
  }
  const int socket = root.get();
  {
    std::lock_guard lock(mutex_);
    if (cancelled_) return ncclInternalError;
    root_ = std::move(root);
  }
  Welcome welcome = {ncclRemoteError, "the root is gone", ""};
  const bool met = MeetRoot(socket, hello, &welcome);
  {
    std::lock_guard lock(mutex_);
    root_.Reset();
  }
  if (!met) return Error(ncclRemoteError, "Connection closed by remote peer");
  if (welcome.result != ncclSuccess) return Error(welcome.result, welcome.text);
  return Join(welcome.hub);
}

ncclResult_t Communicator::Join(const std::string& hub) {
  auto link = Link::Open(hub, rank_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !Process::Get().config().peer_death_is_error) return;
    Error(ncclRemoteError, "Connection closed by remote peer");
    std::lock_guard lock(self->mutex_);
    self->peer_lost_ = true;
  });
  if (link == nullptr) return Error(ncclRemoteError, "rank 0 is gone");
  {
    std::lock_guard lock(mutex_);
    link_ = std::move(link);
    if (cancelled_) link_->Cancel();
  }
  return Meet({.kind = Kind::kInit});
}

// Waits until all ranks have made the same call.
ncclResult_t Communicator::Meet(const Call& call) {
  return WaitOfHost(link_->Send(call, nullptr, 0));
}

ncclResult_t Communicator::WaitOfHost(uint64_t id) {
  Link::Bytes nothing;
  if (link_->WaitOfHost(id, &nothing)) return ncclSuccess;
  return cancelled() ? ncclInternalError : ncclRemoteError;
}

bool Communicator::MustConnect(const std::vector<Operation>& operations) const {
  return std::any_of(operations.begin(), operations.end(),
                     [&](const Operation& o) {
                       const Call call = ConnectCall(o.call);
                       return !connected_.contains({call.kind, call.peer});
                     });
}

ncclResult_t Communicator::Connect(const std::vector<Operation>& operations) {
  std::vector<uint64_t> ids;
  for (const Operation& operation : operations) {
    const Call call = ConnectCall(operation.call);
    if (!connected_.insert({call.kind, call.peer}).second) continue;
    ids.push_back(link_->Send(call, nullptr, 0));
  }
  for (const uint64_t id : ids) {
    if (const ncclResult_t error = WaitOfHost(id)) return error;
  }
  return ncclSuccess;
}

ncclResult_t Communicator::Launch(const std::vector<Operation>& operations) {
  if (cancelled()) return ncclInternalError;
  void* launched = nullptr;
  const cuda::CUresult error = EnqueueLaunch(context_, link_, rank_, ranks_,
                                             operations, last_, &launched);
  if (error != cuda::CUDA_SUCCESS) {
    return Error(ncclUnhandledCudaError,
                 "Cuda failure " + std::to_string(static_cast<int>(error)));
  }
  if (last_ != nullptr) OpenDriver()->forget(last_);
  last_ = launched;
  return ncclSuccess;
}

ncclResult_t Communicator::Finalise() {
  finalised_ = true;
  if (last_ != nullptr) OpenDriver()->wait(last_);
  return Meet({.kind = Kind::kFinalize});
}

void Communicator::Cancel() { CancelWaits(&Link::Cancel); }

void Communicator::Abort() {
  const bool collective =
      Process::Get().config().abort == Config::Abort::kCollective;
  CancelWaits(collective ? &Link::Abort : &Link::Cancel);
}

void Communicator::CancelWaits(void (Link::*cancel)()) {
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (root_.valid()) shutdown(root_.get(), SHUT_RDWR);
    link = link_;
    changed_.notify_all();
  }
  if (link) (link.get()->*cancel)();
}

ncclResult_t Communicator::Reclaim(bool abort) {
  const Config::Abort how = Process::Get().config().abort;
  if (abort && how == Config::Abort::kHang) {
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (abort) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
  }
  const bool device = abort && how == Config::Abort::kDevice;
  if (last_ != nullptr || device) OpenDriver()->wait(device ? nullptr : last_);
  if (abort && link_ && how == Config::Abort::kCollective) {
    link_->WaitUntilAllGone();
    link_->Cancel();
  }
  if (abort) return ncclSuccess;
  const ncclResult_t result = finalised_ ? ncclSuccess : Finalise();
  link_->Leave();
  return result;
}

}  // namespace maypole::nccl::fake
