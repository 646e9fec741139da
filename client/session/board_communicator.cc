#include "client/session/board_communicator.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <utility>

#include "client/session/stall_notice.h"
#include "client/session/wait_policy.h"
#include "common/board/futex.h"
#include "common/board/kill_point.h"
#include "common/system/resource_limits.h"
#include "common/system/thread.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that still writes to an arena this long after an abort is stuck. Ranks
// check every kMaxBackoffMs, so all waits end within a second.
constexpr auto kPatience = std::chrono::milliseconds(700);

}  // namespace

Status BoardCommunicator::Join(const RankOptions& options,
                               std::unique_ptr<BoardCommunicator>* out) {
  std::unique_ptr<RankSession> session;
  if (Status s = RankSession::Join(options, &session); !s.ok()) return s;
  const RankOptions placed = session->Placed(options);
  std::shared_ptr<Arena> arena;
  if (Status s = Arena::Map(session->board(),
                            static_cast<uint32_t>(placed.local_rank), &arena);
      !s.ok()) {
    return s;
  }
  std::unique_ptr<BoardCommunicator> communicator(
      new BoardCommunicator(placed, std::move(session), std::move(arena)));
  if (Status s = StartThread([c = communicator.get()] { c->ProgressLoop(); },
                             &communicator->progress_);
      !s.ok()) {
    communicator->Break(s);
    return s;
  }
  *out = std::move(communicator);
  return Status();
}

BoardCommunicator::BoardCommunicator(const RankOptions& options,
                                     std::unique_ptr<RankSession> session,
                                     std::shared_ptr<Arena> arena)
    : options_(options),
      session_(std::move(session)),
      board_(&session_->board()),
      me_(board_->rank(static_cast<uint32_t>(options.local_rank))),
      arena_(std::move(arena)),
      core_(board_, static_cast<uint32_t>(options.local_rank), this) {
  const BoardConfig& config = board_->config();
  homogeneous_ = config.local_size * config.nodes == config.size;
  const WaitPolicy waiting =
      ChooseWaitPolicy(AffinityCores(), CpuQuota(ReadFilesUnder("/")),
                       config.local_size, config.nodes);
  yields_ = waiting.yields;
  spin_ = options_.spin_microseconds >= 0
              ? std::chrono::microseconds(options_.spin_microseconds)
              : waiting.spin;
}

BoardCommunicator::~BoardCommunicator() { Leave(); }

void BoardCommunicator::AbandonInChild() { session_->Abandon(); }

// --- Submitting -------------------------------------------------------------

Status BoardCommunicator::Start(
    std::span<const std::shared_ptr<Operation>> operations) {
  NoteUser();
  if (arena_ != nullptr) {
    for (const std::shared_ptr<Operation>& op : operations) FindInArena(*op);
  }
  return core_.Start(operations);
}

void BoardCommunicator::FindInArena(Operation& op) const {
  const Signature& s = op.signature;
  uint64_t offset;
  if (op.control == Control::kNone && s.kind == Kind::kAllreduce &&
      s.prescale == 1.0 && op.in_place() &&
      arena_->Find(op.input, s.Bytes(), &offset)) {
    op.arena = offset + 1;
  }
}

void BoardCommunicator::InputFailed(const std::shared_ptr<Operation>& operation,
                                    const Status& error) {
  core_.InputFailed(*operation, error);
  input_failed_.store(true);
}

int BoardCommunicator::NoteGpu(std::string_view uuid) {
  const uint64_t id = HashBytes(uuid);
  if (me_.gpu.exchange(id) == id) return -1;
  const BoardConfig& config = board_->config();
  for (uint32_t i = 0; i < config.local_size; ++i) {
    const RankBlock& rank = board_->rank(i);
    if (&rank != &me_ && rank.gpu.load() == id) return config.global_rank[i];
  }
  return -1;
}

Communicator::GpuUse BoardCommunicator::UseOfGpus() const {
  std::set<uint64_t> gpus;
  bool unknown = false;
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    const uint64_t gpu = board_->rank(i).gpu.load(std::memory_order_relaxed);
    if (gpu == 0) {
      unknown = true;
    } else if (!gpus.insert(gpu).second) {
      return GpuUse::kShared;
    }
  }
  return unknown ? GpuUse::kUnknown : GpuUse::kOwn;
}

bool BoardCommunicator::executors_have_nccl() const {
  return board_->config().gpu_communicators != 0;
}

// Without communicators, only GPUs of one node that all its ranks share can. A
// rank that has not used a GPU yet may still use another one.
bool BoardCommunicator::MayRunOnGpus(const ProcessSet& set, Kind kind,
                                     DType dtype, std::string_view uuid) const {
  if (set.size() == 1) return false;
  if (executors_have_nccl()) {
    return !Reduces(kind) || HasNcclType(dtype);
  }
  if (set.negotiated()) return false;
  const uint64_t id = HashBytes(uuid);
  return std::all_of(set.locals.begin(), set.locals.end(), [&](uint32_t i) {
    return board_->rank(i).gpu.load(std::memory_order_relaxed) == id;
  });
}

// --- RankShell --------------------------------------------------------------

void BoardCommunicator::Send(const void* message, size_t bytes) {
  SendInOrder(message, bytes, Fd());
}

// If the socket is full, the driver thread sends the message later. If it is
// broken, the driver thread notices that.
void BoardCommunicator::SendInOrder(const void* message, size_t bytes, Fd fd) {
  std::lock_guard lock(send_mutex_);
  if (unsent_.empty() && TrySend(message, bytes, fd.get()).ok()) return;
  const char* first = static_cast<const char*>(message);
  unsent_.push_back({{first, first + bytes}, std::move(fd)});
}

// A descriptor that cannot be sent must not hold up other messages: the
// executor refuses the message without it.
Status BoardCommunicator::TrySend(const void* message, size_t bytes, int fd) {
  const Status s = session_->Send(message, bytes, fd);
  if (s.ok() || fd < 0 || s.code() == Code::kResourceExhausted ||
      s.code() == Code::kUnavailable) {
    return s;
  }
  return session_->Send(message, bytes);
}

void BoardCommunicator::ResendMessages() {
  std::lock_guard lock(send_mutex_);
  while (!unsent_.empty()) {
    const auto& [message, fd] = unsent_.front();
    if (!TrySend(message.data(), message.size(), fd.get()).ok()) return;
    unsent_.pop_front();
  }
}

Status BoardCommunicator::SendGpuMemory(
    const session::GpuMemoryRequest& request, int fd) {
  Fd copy;
  if (fd >= 0) {
    copy = Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return ErrnoStatus(errno, "dup");
  }
  gpu_messages_.fetch_add(1);
  SendInOrder(&request, sizeof(request), std::move(copy));
  WakeThreads();  // one must look at the socket until the reply is there
  return Status();
}

void BoardCommunicator::ExpectGpuMessages(int more) {
  gpu_messages_.fetch_add(more);
  if (more > 0) WakeThreads();
}

void BoardCommunicator::NoteGpuRuns(int more) { gpu_runs_.fetch_add(more); }

void BoardCommunicator::OnConnectGpu(
    std::function<void(const session::ConnectGpu&)> handler) {
  std::lock_guard lock(gpu_memory_mutex_);
  on_connect_gpu_ = std::move(handler);
}

void BoardCommunicator::OnEpochOver(std::function<void()> handler) {
  std::lock_guard lock(gpu_memory_mutex_);
  on_epoch_over_ = std::move(handler);
}

void BoardCommunicator::OnGpuMemoryReply(
    std::function<void(const session::GpuMemoryReply&)> handler) {
  std::lock_guard lock(gpu_memory_mutex_);
  on_gpu_memory_ = std::move(handler);
}

void BoardCommunicator::WakeThreads() {
  me_.wake.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(me_.wake);
}

bool BoardCommunicator::LeaveAlone(const Operation& operation) {
  if (operation.awaited || waiters_.load() > 0) return false;
  me_.sleeping.store(1, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("start.flag");
  return true;
}

void BoardCommunicator::Tell(const std::string& line) { TellUser(line); }

bool BoardCommunicator::PatienceIsOver() {
  const auto now = Clock::now();
  if (abort_seen_ == Clock::time_point{}) abort_seen_ = now;
  return now - abort_seen_ > kPatience;
}

void BoardCommunicator::Detach(Operation* operation) {
  if (operation->staged != nullptr) {  // nobody sees what peers write there
    arena_->EndSharing();
    return;
  }
  // If there is no memory for a copy, the tensor stays shared. That is
  // harmless: its contents are undefined anyway, and the error says so.
  (void)arena_->Detach(operation->output, operation->signature.Bytes());
}

int64_t BoardCommunicator::Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Clock::now().time_since_epoch())
      .count();
}

void BoardCommunicator::Break(Status status) {
  session_->SayGoodbye(std::max(1u, core_.outstanding()), options_.elastic);
  board_->Abort(status.code(), "rank " + std::to_string(options_.rank) + ": " +
                                   status.message());
}

// --- Leaving ----------------------------------------------------------------

void BoardCommunicator::Leave() {
  {
    std::lock_guard lock(left_mutex_);
    if (std::exchange(left_, true)) return;
  }
  core_.Leave();
  stop_.store(true);
  WakeThreads();
  if (progress_.joinable()) progress_.join();
  std::lock_guard drive(drive_mutex_);
  closed_ = true;
  // Without this rank's GPU the others' would wait for ever.
  const uint32_t pending = core_.outstanding() +
                           static_cast<uint32_t>(std::max(0, gpu_runs_.load()));
  core_.FailAll(Status(Code::kAborted,
                       "this rank has left the job (shutdown) with the "
                       "operation pending"));
  session_->SayGoodbye(pending, options_.elastic && returns_.load());
  session_->Close();
}

}  // namespace maypole
