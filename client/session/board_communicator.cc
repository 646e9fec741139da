#include "client/session/board_communicator.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "client/bootstrap/rank_variables.h"
#include "client/session/stall_notice.h"
#include "common/board/futex.h"
#include "common/board/kill_point.h"
#include "common/system/thread.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that still writes to an arena this long after an abort is stuck. Ranks
// check every kMaxBackoffMs, so all waits end within a second.
constexpr auto kPatience = std::chrono::milliseconds(700);
// The longest sleep while nothing is outstanding.
constexpr int kIdleSleepMs = 1000;
// The same with checksums, whose records must not wait longer.
constexpr int kIdleSleepWithChecksumsMs = 100;
// A thread that does not sleep publishes its position once in this many steps.
constexpr uint32_t kPublishEvery = 64;
// A waiter lets another thread drive for at most this long before it checks its
// own deadline.
constexpr auto kTurn = std::chrono::milliseconds(50);
// How long a rank that leaves tries to send the rest of its timeline.
constexpr auto kTimelineRest = std::chrono::milliseconds(500);

// Returns 0, or a value of errno.
int BindThread(pthread_t thread, int processor) {
  const auto number = static_cast<size_t>(processor);
  cpu_set_t* const set = CPU_ALLOC(number + 1);
  if (set == nullptr) return ENOMEM;
  const size_t bytes = CPU_ALLOC_SIZE(number + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(number, bytes, set);
  const int error = pthread_setaffinity_np(thread, bytes, set);
  CPU_FREE(set);
  return error;
}

// Locks the mutex within the time, or returns false. ThreadSanitizer of gcc 12
// does not know pthread_mutex_clocklock(), by which try_lock_for() waits, and
// would report races.
bool LockWithin(std::chrono::milliseconds time,
                std::unique_lock<std::timed_mutex>* lock) {
#ifdef __SANITIZE_THREAD__
  const auto deadline = Clock::now() + time;
  while (!lock->try_lock()) {
    if (Clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
#else
  return lock->try_lock_for(time);
#endif
}

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
    communicator->GiveUp(s);
    return s;
  }
  if (Status s = communicator->BindProgressThread(); !s.ok()) {
    communicator->GiveUp(s);
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
      outbox_(session_.get()),
      core_(board_, static_cast<uint32_t>(options.local_rank), this),
      waits_(&options_, board_, &core_, this),
      timeline_(
          [this](const void* message, size_t bytes, Fd fd) {
            outbox_.Send(message, bytes, std::move(fd));
            WakeThreads();  // one must look at the socket for the reply
          },
          [this] { return board_->AbortStatus(); }) {
  if (session_->checksums()) core_.EnableChecksums();
  const BoardConfig& config = board_->config();
  homogeneous_ = config.local_size * config.nodes == config.size;
}

BoardCommunicator::~BoardCommunicator() { Leave(); }

Status BoardCommunicator::BindProgressThread() {
  const std::vector<int>& processors = options_.thread_affinity;
  if (processors.empty()) return Status();
  if (processors.size() < static_cast<size_t>(options_.local_size)) {
    return Status(Code::kInvalidArgument,
                  std::string(kThreadAffinityVariable) + " names " +
                      std::to_string(processors.size()) +
                      " processor(s), but " +
                      std::to_string(options_.local_size) +
                      " ranks run on this node: give one for each");
  }
  const int processor = processors[static_cast<size_t>(options_.local_rank)];
  const int error = BindThread(progress_.native_handle(), processor);
  if (error == 0) return Status();
  return Status(
      Code::kInvalidArgument,
      std::string(kThreadAffinityVariable) + ": the thread of local rank " +
          std::to_string(options_.local_rank) + " cannot run on processor " +
          std::to_string(processor) + " (" + strerror(error) +
          "): give one that this process may use "
          "(Cpus_allowed_list in /proc/self/status)");
}

void BoardCommunicator::AbandonInChild() { session_->Abandon(); }

// --- Submitting -------------------------------------------------------------

Status BoardCommunicator::Start(
    std::span<const std::shared_ptr<Operation>> operations) {
  waits_.NoteUser();
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
  {
    std::lock_guard lock(input_mutex_);
    if (input_failure_.ok()) input_failure_ = operation->Explain(error);
  }
  input_failed_.store(true);  // a thread that sees the end may leave at once
  core_.InputFailed(*operation, error);
}

Status BoardCommunicator::InputFailure() {
  std::lock_guard lock(input_mutex_);
  return input_failure_;
}

void BoardCommunicator::Want(const Operation& operation) {
  waits_.NoteUser();
  core_.Want(operation);
  // Its caller was expected to drive it.
  if (operation.awaited) WakeThreads();
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

// Without NCCL in the executors, operations run on GPUs only if the set is on
// one node and all its ranks use this GPU. A rank that has not used a GPU yet
// may still use another one.
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

void BoardCommunicator::SayGoodbye(uint32_t pending, bool returns,
                                   const Status& why) {
  if (!why.ok()) {
    auto reason = session::Make<session::LeaveReason>();
    session::SetText(reason.text, why.message());
    outbox_.Send(&reason, sizeof(reason));
  }
  auto goodbye = session::Make<session::Goodbye>();
  goodbye.pending = pending;
  goodbye.returns = returns ? 1 : 0;
  outbox_.Send(&goodbye, sizeof(goodbye));
}

Status BoardCommunicator::SendGpuMemory(
    const session::GpuMemoryRequest& request, int fd) {
  Fd copy;
  if (fd >= 0) {
    copy = Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return ErrnoStatus(errno, "dup");
  }
  expected_messages_.fetch_add(1);
  outbox_.Send(&request, sizeof(request), std::move(copy));
  WakeThreads();  // one must look at the socket until the reply is there
  return Status();
}

void BoardCommunicator::ExpectMessages(int more) {
  expected_messages_.fetch_add(more);
  if (more > 0) WakeThreads();
}

Status BoardCommunicator::CallForState(session::StateCall call,
                                       std::string_view name, int fd,
                                       Fd* found) {
  if (name.size() > kMaxStateNameBytes) {
    return Status(Code::kInvalidArgument,
                  "the name of a state may have up to " +
                      std::to_string(kMaxStateNameBytes) + " bytes");
  }
  Fd copy;
  if (fd >= 0) {
    copy = Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return ErrnoStatus(errno, "dup");
  }
  auto request = session::Make<session::StateRequest>();
  request.call = static_cast<uint32_t>(call);
  session::SetText(request.name, name);
  ExpectMessages(1);  // a thread looks at the socket while this one waits
  const Status s = state_calls_.Call(
      request,
      [&](const session::StateRequest& numbered) {
        outbox_.Send(&numbered, sizeof(numbered), std::move(copy));
      },
      found);
  ExpectMessages(-1);
  return s;
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

bool BoardCommunicator::MarkUnattended(const Operation& operation) {
  if (operation.awaited || waits_.waiters() > 0) return false;
  me_.sleeping.store(kRankSleeps, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("start.flag");
  return true;
}

void BoardCommunicator::ShowUser(const std::string& line) { TellUser(line); }

bool BoardCommunicator::AbortIsOverdue() {
  const auto now = Clock::now();
  if (abort_seen_ == Clock::time_point{}) abort_seen_ = now;
  return now - abort_seen_ > kPatience;
}

void BoardCommunicator::Detach(Operation* operation) {
  if (operation->staged != nullptr) {  // what peers write there is never seen
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

void BoardCommunicator::GiveUp(Status status) {
  SayGoodbye(std::max(1u, core_.outstanding()), options_.elastic, status);
  board_->Abort(status.code(), "rank " + std::to_string(options_.rank) + ": " +
                                   status.message());
}

void BoardCommunicator::AnnounceFinished(bool finished) {
  if (!options_.elastic) return;
  auto m = session::Make<session::Finished>();
  m.finished = finished ? 1 : 0;
  {
    std::lock_guard lock(left_mutex_);
    if (left_) return;  // the Goodbye is the last message
    outbox_.Send(&m, sizeof(m));
  }
  outbox_.Flush();
}

// --- Driving ----------------------------------------------------------------

bool BoardCommunicator::Drive(bool look_at_socket) {
  if (closed_) return false;
  bool moved = core_.Step();
  // Not earlier: until then peers must assume that this rank may write.
  if (input_failed_.load(std::memory_order_relaxed) &&
      core_.outstanding() == 0 && input_failed_.exchange(false)) {
    SayGoodbye(/*pending=*/1, options_.elastic, InputFailure());
  }
  if (++drives_ % kPublishEvery == 0) core_.PublishPosition();
  if (core_.expects_messages() || core_.recalled() || look_at_socket ||
      expected_messages_.load(std::memory_order_relaxed) > 0 ||
      timeline_.waits()) {
    moved |= ReadReplies();
  }
  if (board_->aborted()) TellEpochOver();
  return moved;
}

void BoardCommunicator::TellEpochOver() {
  if (epoch_over_told_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(gpu_memory_mutex_);
  if (on_epoch_over_ == nullptr) return;
  epoch_over_told_.store(true);
  on_epoch_over_();
}

// A mutex is not fair: the thread that moves data could take it again and
// again, and this thread would wait far beyond its deadline.
bool BoardCommunicator::DriveInTurn(Look look) {
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (!lock.owns_lock() && !LockWithin(kTurn, &lock)) return true;
  if (look == Look::kPublish) core_.PublishPosition();
  return Drive(look == Look::kAtSocket);
}

bool BoardCommunicator::ReadReplies() {
  static_cast<void>(outbox_.Resend());  // those that are left come later
  bool moved = false;
  std::vector<char> message;
  std::vector<Fd> descriptors;
  for (;;) {
    const Status s = session_->NextMessage(&message, &descriptors);
    if (!s.ok()) {
      LoseExecutor(s.message());
      return moved;
    }
    if (message.empty()) return moved;
    HandOut(message, std::move(descriptors));
    moved = true;
  }
}

void BoardCommunicator::HandOut(const std::vector<char>& message,
                                std::vector<Fd> descriptors) {
  session::GpuMemoryReply reply;
  session::ConnectGpu connect;
  session::TimelineReply timeline;
  if (session::Parse(message.data(), message.size(), &timeline).ok()) {
    return timeline_.OnReply(timeline);
  }
  if (session::Parse(message.data(), message.size(), &connect).ok()) {
    std::lock_guard lock(gpu_memory_mutex_);
    if (on_connect_gpu_ != nullptr) on_connect_gpu_(connect);
    return;
  }
  session::StateReply state;
  if (session::Parse(message.data(), message.size(), &state).ok()) {
    state_calls_.OnReply(state, std::move(descriptors));
    return;
  }
  if (!session::Parse(message.data(), message.size(), &reply).ok()) {
    return core_.OnMessage(message);
  }
  if (expected_messages_.load() == 0) return;  // the executor was not asked
  expected_messages_.fetch_sub(1);
  std::lock_guard lock(gpu_memory_mutex_);
  if (on_gpu_memory_ != nullptr) on_gpu_memory_(reply);
}

// The executor's death ends the epoch. The first rank that notices it aborts
// the board for all.
void BoardCommunicator::LoseExecutor(const std::string& how) {
  if (!board_->aborted()) {
    board_->Abort(Code::kAborted, "the executor of this node (agent " +
                                      options_.agent + ") died: " + how +
                                      "; see the agent's log");
  }
  core_.LoseExecutor();
  state_calls_.End(
      Status(Code::kUnavailable, "the executor of this node (agent " +
                                     options_.agent + ") has gone: " + how));
}

void BoardCommunicator::Progress(const Operation& operation) {
  waits_.NoteUser();
  if (core_.outstanding() == 0) return;
  core_.Want(operation);
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) Drive(false);
}

void BoardCommunicator::ProgressLoop() {
  while (!stop_.load()) {
    bool moved = false;
    if (waits_.waiters() == 0 && HasWork()) {
      std::lock_guard drive(drive_mutex_);
      moved = Drive(false);
    }
    if (!moved) Park();
  }
}

// Threads in Await() drive themselves, and set the sleeping flag when they
// stop.
void BoardCommunicator::Park() {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  if (stop_.load()) return;
  if (waits_.waiters() == 0 && HasWork()) {
    me_.sleeping.store(kRankSleeps, std::memory_order_seq_cst);
    MAYPOLE_KILL_POINT("park.flag");
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::lock_guard drive(drive_mutex_);
    core_.PublishPosition();
    if (Drive(false)) return;
  }
  const int idle_ms =
      session_->checksums() ? kIdleSleepWithChecksumsMs : kIdleSleepMs;
  const int timeout_ms =
      std::min(HasWork() ? kMaxBackoffMs : idle_ms, SendTimeline());
  if (FutexWaitInBackground(me_.wake, seen, timeout_ms) !=
      FutexResult::kTimeout) {
    return;
  }
  if (waits_.waiters() > 0) return;
  // Even if nothing is outstanding, the executor may have sent a line for the
  // user.
  std::lock_guard drive(drive_mutex_);
  Drive(true);
}

// --- Timeline ---------------------------------------------------------------

// The hot path: called when an operation ends, under the core's lock.
void BoardCommunicator::Record(const Operation& op) {
  timeline_outbox_.Add(board_->header().timeline.load(),
                       RecordOf(op, options_.rank));
}

// Returns after how many milliseconds the progress thread should call it again.
int BoardCommunicator::SendTimeline() {
  return timeline_outbox_.Step(board_->header().timeline.load(),
                               core_.unrecorded(), Now() / 1000000,
                               [this](const void* message, size_t bytes) {
                                 return outbox_.SendNow(message, bytes);
                               });
}

// This rank leaves: no operation is pending, and the progress thread has ended.
void BoardCommunicator::SendTimelineRest() {
  const auto deadline = Clock::now() + kTimelineRest;
  const auto send = [this](const void* message, size_t bytes) {
    return outbox_.SendNow(message, bytes);
  };
  while (timeline_outbox_.Step(board_->header().timeline.load(), 0,
                               Now() / 1000000, send,
                               /*leaving=*/true) != TimelineOutbox::kNever &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// --- Leaving ----------------------------------------------------------------

void BoardCommunicator::Leave() {
  {
    std::lock_guard lock(left_mutex_);
    if (std::exchange(left_, true)) return;
  }
  core_.Leave();
  stop_.store(true);
  state_calls_.End(
      Status(Code::kFailedPrecondition, "this rank has left the job"));
  WakeThreads();
  if (progress_.joinable()) progress_.join();
  std::unique_lock drive(drive_mutex_);
  closed_ = true;
  // Without this rank's GPU the others' would wait forever. A failed input has
  // ended the epoch: that is no orderly departure.
  const bool input_failed = input_failed_.exchange(false);
  const uint32_t pending =
      core_.outstanding() +
      static_cast<uint32_t>(std::max(0, gpu_runs_.load())) +
      (input_failed ? 1 : 0);
  core_.FailAll(Status(Code::kAborted,
                       "this rank has left the job (shutdown) with the "
                       "operation pending"));
  core_.SendAllResults();
  // A thread that drives from now on sees closed_; the rest may take a while.
  drive.unlock();
  SendTimelineRest();
  SayGoodbye(pending, options_.elastic && returns_.load(),
             input_failed ? InputFailure() : Status());
  outbox_.Flush();
  session_->Close();
}

}  // namespace maypole
