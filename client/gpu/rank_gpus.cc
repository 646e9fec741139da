#include "client/gpu/rank_gpus.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "client/session/stall_notice.h"
#include "common/board/gpu_place.h"
#include "common/gpu/kernels/built.h"
#include "common/gpu/nccl/nccl.h"
#include "common/gpu/runner/make_operation.h"
#include "common/gpu/runner/nccl/collective_steps.h"

namespace maypole {
namespace {

using cuda::CurrentGpu;
using cuda::Gpu;
using Clock = std::chrono::steady_clock;

// True if NCCL has not released the communicators of an epoch of this process.
std::atomic<bool> nccl_is_stuck{false};

void OnAbortStuck(const std::string& why) {
  nccl_is_stuck.store(true);
  TellUser("maypole: " + why +
           ": this process cannot use NCCL any more, and its GPU may be busy "
           "until it ends; end it");
}

}  // namespace

// The user is told once per process and GPU.
void RankGpus::TellOnce(const Gpu& gpu, const std::string& why) const {
  static std::mutex mutex;
  static auto& told = *new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!told.insert(gpu.uuid()).second) return;
  }
  TellUser("maypole: this rank does not call NCCL on " + gpu.uuid() + " (" +
           gpu.name() + ") itself, so " + instead_ + ": " + why);
}

// --- RankEvents, RankGpuRun --------------------------------------------------

Status RankEvents::Record(const Gpu& gpu, cuda::CUstream stream,
                          std::shared_ptr<RankEvents>* out) {
  std::shared_ptr<RankEvents> events(new RankEvents(gpu));
  const cuda::Driver& driver = gpu.driver();
  for (cuda::CUevent* const event : {&events->ready_, &events->ran_}) {
    const Status s =
        gpu.Check(driver.cuEventCreate(event, cuda::CU_EVENT_DISABLE_TIMING),
                  "cuEventCreate");
    if (!s.ok()) return s;
  }
  const Status s =
      gpu.Check(driver.cuEventRecord(events->ready_, stream), "cuEventRecord");
  if (s.ok()) *out = std::move(events);
  return s;
}

RankEvents::~RankEvents() {
  const CurrentGpu current(gpu_);
  for (const cuda::CUevent event : {ready_, ran_}) {
    if (event != nullptr) gpu_.driver().cuEventDestroy(event);
  }
}

Status RankGpuRun::Poll(State* state) {
  const bool ended = ended_.load(std::memory_order_acquire);
  *state = ended                                       ? State::kEnded
           : enqueued_.load(std::memory_order_acquire) ? State::kEnqueued
                                                       : State::kWaiting;
  return ended ? status_ : Status();
}

void RankGpuRun::End(Status status) {
  gpu_is_done_.store(true);
  Abandon(std::move(status));
}

void RankGpuRun::Abandon(Status status) {
  status_ = std::move(status);
  ended_.store(true, std::memory_order_release);
}

bool RankGpus::CanRun(const Operation& op) {
  const Signature& s = op.signature;
  const int ranks = op.set->size();
  if (s.kind == Kind::kBarrier || ranks == 1) return false;
  if (!Reduces(s.kind)) return true;  // data is moved only
  if (!HasNcclType(s.dtype)) return false;
  const KernelSteps kernels =
      KernelStepsOf(s.dtype, s.op, s.prescale, s.op == Op::kAverage ? ranks : 1,
                    s.postscale, static_cast<uint32_t>(ranks));
  // See GpuTensor::result.
  if (s.kind == Kind::kReducescatter && kernels.before) return false;
  return cuda::KernelsAreBuilt() || (!kernels.before && !kernels.after);
}

// --- Announcing --------------------------------------------------------------

uint64_t RankGpus::PlaceOf(const Gpu& gpu) {
  {
    std::lock_guard lock(mutex_);
    const auto [it, is_new] = gpus_.try_emplace(&gpu);
    const OwnGpu& own = it->second;
    if (!is_new) {
      if (own.refused || own.executors < 0 || own.runners < 0) {
        return kNoGpuPlace;
      }
      return PackGpuPlace(
          {.number = own.number, .gpu = static_cast<uint32_t>(own.executors)});
    }
  }
  if (const Status s = Announce(gpu); !s.ok()) Refuse(gpu, s.message());
  return kNoGpuPlace;
}

Status RankGpus::Announce(const Gpu& gpu) {
  auto request = session::Make<session::GpuMemoryRequest>();
  request.sharing = static_cast<uint32_t>(session::GpuSharing::kOwn);
  cuda::CUuuid uuid = {};
  Status s = gpu.Check(driver_.cuDeviceGetUuid(&uuid, gpu.number()),
                       "cuDeviceGetUuid");
  std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), request.uuid);
  std::string path;
  if (s.ok()) s = FindNccl(&request.nccl_version, &path);
  if (!s.ok()) return s;
  std::lock_guard runner(runner_mutex_);
  if (left_) return Status(Code::kAborted, "this rank has left the job");
  if (!announces_) {
    return Status(Code::kUnavailable, "another GPU cannot be used so");
  }
  {
    std::lock_guard lock(mutex_);
    request.number = gpus_[&gpu].number = ++last_number_;
    opening_.push_back(&gpu);
  }
  MakeRunner(path);
  runner_->OpenOwn(request.uuid);
  return communicator_->SendGpuMemory(request, -1);
}

bool RankGpus::IsRefused(const Gpu& gpu) {
  std::lock_guard lock(mutex_);
  const auto it = gpus_.find(&gpu);
  return it != gpus_.end() && it->second.refused;
}

uint32_t RankGpus::StopAnnouncing() {
  std::lock_guard runner(runner_mutex_);
  announces_ = false;
  std::lock_guard lock(mutex_);
  return last_number_;
}

void RankGpus::MakeRunner(const std::string& nccl_library) {
  if (runner_ != nullptr) return;
  EpochGpus::Callbacks callbacks;
  callbacks.on_opened = [this](GpuMemoryId, auto opened) {
    OnOpened(std::move(opened));
  };
  callbacks.on_enqueued = [this](const auto& run) { OnEnqueued(run); };
  callbacks.on_ended = [this](const auto& run, const Status& status) {
    OnEnded(run, status);
  };
  callbacks.on_abort_stuck = &OnAbortStuck;
  runner_ = std::make_unique<GpuRunner>(std::move(callbacks), nccl_library);
}

// Uses the NCCL of torch's wheel if it is loaded: two copies in one process
// would have two sets of threads and buffers.
Status RankGpus::FindNccl(uint32_t* version, std::string* path) const {
  if (nccl_is_stuck.load()) {
    return Status(Code::kUnavailable,
                  "NCCL has not given back the communicators of an earlier "
                  "epoch of this process: start a new process");
  }
  const char* const named = getenv("MAYPOLE_NCCL_LIBRARY");
  if (const auto loaded = nccl::FindLoadedNccl(); loaded) {
    *path = loaded->path;
  } else if (named != nullptr) {
    *path = named;
  }
  if (named != nullptr && std::string_view(named) == "none") {
    return Status(Code::kUnavailable, "MAYPOLE_NCCL_LIBRARY=none");
  }
  const nccl::Nccl* nccl = nullptr;
  const Status s = nccl::OpenNccl(*path, &nccl);
  if (s.ok()) *version = static_cast<uint32_t>(nccl->version);
  return s;
}

void RankGpus::Refuse(const Gpu& gpu, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    gpus_[&gpu].refused = true;
  }
  TellOnce(gpu, why);
}

void RankGpus::OnReply(const session::GpuMemoryReply& reply) {
  const Gpu* gpu = nullptr;
  {
    std::lock_guard lock(mutex_);
    for (auto& [candidate, own] : gpus_) {
      if (own.number != reply.number || own.refused) continue;
      gpu = candidate;
      if (reply.code == 0 && reply.gpu < kMaxGpus) own.executors = reply.gpu;
    }
  }
  if (gpu != nullptr && reply.code != 0) Refuse(*gpu, reply.text);
}

void RankGpus::OnOpened(StatusOr<OpenedGpuMemory> opened) {
  const Gpu* gpu = nullptr;
  {
    std::lock_guard lock(mutex_);
    gpu = opening_.front();
    opening_.pop_front();
    if (opened.ok()) gpus_[gpu].runners = opened->gpu;
  }
  if (!opened.ok()) Refuse(*gpu, opened.status().message());
}

// --- Runs --------------------------------------------------------------------

void RankGpus::OnConnect(const session::ConnectGpu& connect) {
  std::lock_guard runner(runner_mutex_);
  if (runner_ == nullptr) return;
  GpuCommunicator c{.number = connect.number,
                    .size = connect.size,
                    .first = connect.rank,
                    .gpus = {}};
  {
    std::lock_guard lock(mutex_);
    for (const auto& [gpu, own] : gpus_) {
      if (own.executors == connect.gpu && own.runners >= 0) {
        c.gpus = {static_cast<uint32_t>(own.runners)};
      }
    }
    connected_.insert(connect.number);
    if (awaited_.erase(connect.number) > 0) {
      communicator_->ExpectMessages(-1);
    }
  }
  const size_t bytes = std::min<size_t>(connect.id_bytes, sizeof(connect.id));
  runner_->Connect(std::move(c), std::string(connect.id, bytes));
}

// The communicator's NCCL ranks are the positions in the process set.
GpuOperation RankGpus::Describe(const RankPart& part, const RankTensor& t,
                                uint32_t gpu) {
  const Operation& op = *t.operation;
  GpuOperation o = MakeOperation(op.signature, op.set->ranks, part.rows);
  o.slot = op.slot;
  o.generation = op.generation;
  for (uint32_t i = 0; i < o.members.size(); ++i) o.members[i].gpu = i;
  if (!o.members.empty()) o.members[part.position].tensor = 0;
  o.tensors = {{.offset = t.input,
                .gpu = gpu,
                .result = t.output == t.input ? kInPlace : t.output,
                .ready = t.events->ready(),
                .ran = t.events->ran()}};
  return o;
}

std::shared_ptr<RankGpuRun> RankGpus::Begin(
    const RankPart& part, const std::vector<RankTensor>& tensors) {
  const uint32_t communicator = part.communicator;
  GpuRun run{.communicator = communicator, .operations = {}};
  std::vector<std::shared_ptr<RankEvents>> events;
  std::lock_guard runner(runner_mutex_);
  if (runner_ == nullptr) return nullptr;
  std::shared_ptr<RankGpuRun> begun;
  {
    std::lock_guard lock(mutex_);
    for (const RankTensor& t : tensors) {
      const int64_t gpu = gpus_[&t.events->gpu()].runners;
      run.operations.push_back(Describe(part, t, static_cast<uint32_t>(gpu)));
      events.push_back(t.events);
    }
    begun = std::make_shared<RankGpuRun>(std::move(events));
    const GpuOperation& first = run.operations.front();
    runs_[{first.slot, first.generation}] = begun;
    if (!connected_.contains(communicator) &&
        awaited_.insert(communicator).second) {
      communicator_->ExpectMessages(1);
    }
  }
  communicator_->NoteGpuRuns(1);
  runner_->Run(std::move(run));
  return begun;
}

void RankGpus::OnEnqueued(const GpuRun& run) {
  {
    std::lock_guard lock(mutex_);
    const GpuOperation& first = run.operations.front();
    const auto it = runs_.find({first.slot, first.generation});
    if (it != runs_.end()) it->second->Enqueued();
  }
  communicator_->Wake();
}

void RankGpus::OnEnded(const GpuRun& run, const Status& status) {
  std::shared_ptr<RankGpuRun> ended;  // destroyed after the lock
  {
    std::lock_guard lock(mutex_);
    const GpuOperation& first = run.operations.front();
    const auto it = runs_.find({first.slot, first.generation});
    if (it == runs_.end()) return;
    ended = std::move(it->second);
    runs_.erase(it);
    ended->End(status);
  }
  communicator_->NoteGpuRuns(-1);
  if (!status.ok()) communicator_->Wake();
}

// --- The end -----------------------------------------------------------------

void RankGpus::OnEpochOver() {
  std::lock_guard runner(runner_mutex_);
  if (runner_ != nullptr) runner_->Abort();
}

bool RankGpus::Drained() {
  std::lock_guard lock(mutex_);
  return runs_.empty();
}

void RankGpus::Leave() {
  {
    std::lock_guard lock(runner_mutex_);
    if (left_) return;
  }
  const auto until = Clock::now() + kDrainPatience;
  while (!Drained() && communicator_->EpochStatus().ok() &&
         Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::unique_ptr<GpuRunner> runner;
  {
    std::lock_guard lock(runner_mutex_);
    left_ = true;
    runner = std::move(runner_);
  }
  runner.reset();  // not under the lock: its callbacks come meanwhile
  std::lock_guard lock(mutex_);
  for (const auto& [key, run] : runs_) {
    run->Abandon(Status(Code::kAborted,
                        "this rank has left the job (shutdown) before its GPU "
                        "had ended the operation"));
  }
}

}  // namespace maypole
