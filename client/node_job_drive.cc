// Who drives a NodeJob's mover: waiters and the progress thread; how they
// sleep, and what they read from the executor.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "client/announce.h"
#include "client/node_job.h"
#include "common/futex.h"
#include "common/kill_point.h"
#include "common/urgent.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// Bound of one sleep; also how soon an executor's death is seen.
constexpr int kSleepMs = kHeartbeatMs;
// The same while nothing is outstanding.
constexpr int kIdleSleepMs = 1000;
// A waiter yields from then on, though there seem to be cores for all.
constexpr auto kPoliteAfter = std::chrono::microseconds(20);
// How often a thread that need not sleep tells where it is.
constexpr uint32_t kTellEvery = 64;

}  // namespace

thread_local bool NodeJob::this_thread_waits_ = false;

bool NodeJob::Drive(bool look_at_socket) {
  if (closed_) return false;
  bool moved = mover_.Step();
  if (++drives_ % kTellEvery == 0) TellWhereIAm();
  if (has_held_.load(std::memory_order_relaxed)) moved |= PlaceHeldTickets();
  if (awaited_replies_.load() > 0 || look_at_socket) moved |= ReadReplies();
  if (has_controls_.load(std::memory_order_relaxed)) moved |= StandIn();
  return moved;
}

// For the executor, which takes who is silent for frozen, and for those who
// place tickets.
void NodeJob::TellWhereIAm() {
  me_.heartbeat.fetch_add(1, std::memory_order_relaxed);
  if (me_.tickets_read.load(std::memory_order_relaxed) != kAllRead) {
    std::lock_guard lock(table_mutex_);
    if (outstanding_.load() > 0) {
      me_.tickets_read.store(mover_.cursor() + 1, std::memory_order_release);
    }
  }
}

bool NodeJob::PlaceHeldTickets() {
  std::lock_guard lock(table_mutex_);
  bool moved = false;
  while (!held_.empty() &&
         PlaceHeld(*board_, mover_.cursor(), held_.front().slot,
                   held_.front().generation)) {
    held_.pop_front();
    CountOut();
    moved = true;
  }
  if (held_.empty()) has_held_.store(false);
  return moved;
}

bool NodeJob::ReadReplies() {
  bool moved = ResendMessages();
  std::vector<char> message;
  for (;;) {
    const Status s = session_->NextMessage(&message);
    if (!s.ok()) {
      LoseExecutor(s.message());
      return moved;
    }
    if (message.empty()) return moved;
    OnMessage(message);
    moved = true;
  }
}

void NodeJob::OnMessage(const std::vector<char>& message) {
  session::SlotReply slot;
  session::SetReply set;
  session::JoinReply join;
  session::Notice notice;
  if (session::Parse(message.data(), message.size(), &slot).ok()) {
    AllotSlot(slot);
  } else if (session::Parse(message.data(), message.size(), &set).ok()) {
    OnSetReply(set);
  } else if (session::Parse(message.data(), message.size(), &join).ok()) {
    std::lock_guard lock(table_mutex_);
    if (join_ == nullptr || join.number != joins_ + 1) return;
    join_reply_ = join;
  } else if (session::Parse(message.data(), message.size(), &notice).ok()) {
    std::fprintf(stderr, "maypole: %s\n", notice.text);
  }
}

// A full socket: the driver sends again. A broken one: the driver sees it.
template <typename Message>
void NodeJob::SendOrKeep(const Message& message) {
  if (unsent_.empty() && session_->Send(&message, sizeof(message)).ok()) return;
  const char* bytes = reinterpret_cast<const char*>(&message);
  unsent_.emplace_back(bytes, bytes + sizeof(message));
}
template void NodeJob::SendOrKeep(const session::SlotRequest&);
template void NodeJob::SendOrKeep(const session::SetRequest&);
template void NodeJob::SendOrKeep(const session::JoinRequest&);

bool NodeJob::ResendMessages() {
  std::lock_guard lock(table_mutex_);
  while (!unsent_.empty()) {
    const std::vector<char>& message = unsent_.front();
    if (!session_->Send(message.data(), message.size()).ok()) return false;
    unsent_.pop_front();
  }
  return false;
}

// The slot must be the name's: two names in one slot would mix their tensors.
Status NodeJob::CheckReply(const Name& name,
                           const session::SlotReply& reply) const {
  if (reply.code != 0) return Status(static_cast<Code>(reply.code), reply.text);
  const bool fits =
      reply.slot < by_slot_.size() &&
      board_->slot(reply.slot).identity.load(std::memory_order_acquire) ==
          IdentityHash(name.process_set, name.kind, name.name);
  if (fits) return Status();
  return Status(Code::kInternal, "the executor allotted slot " +
                                     std::to_string(reply.slot) +
                                     ", which is not this operation's");
}

void NodeJob::AllotSlot(const session::SlotReply& reply) {
  std::lock_guard lock(table_mutex_);
  // A reply answers one request, once.
  if (reply.request >= by_request_.size()) return;
  Name* const asked = by_request_[reply.request];
  if (asked == nullptr || asked->known) return;
  awaited_replies_.fetch_sub(1);
  Name& name = *asked;
  if (const Status s = CheckReply(name, reply); !s.ok()) {
    FailQueue(name, s);
    const std::string key = KeyOf(name.process_set, name.kind, name.name);
    by_request_[reply.request] = nullptr;
    names_.erase(key);
    return;
  }
  MAYPOLE_KILL_POINT("slot.allotted");
  name.known = true;
  name.negotiated = reply.negotiated != 0;
  name.slot = reply.slot;
  // Earlier members of this rank (an elastic job) may have used the slot.
  name.generation =
      board_->arrival(reply.slot, static_cast<uint32_t>(options_.local_rank))
          .generation.load(std::memory_order_acquire);
  by_slot_[reply.slot] = &name;
  Begin(name);
}

void NodeJob::FailQueue(Name& name, const Status& status) {
  while (!name.queue.empty()) {
    const std::shared_ptr<Operation> op = std::move(name.queue.front());
    name.queue.pop_front();
    End(*op, op->Explain(status));
  }
}

// The executor's death ends the epoch; whoever sees it first says so to all.
void NodeJob::LoseExecutor(const std::string& how) {
  if (!board_->aborted()) {
    board_->Abort(Code::kAborted, "the executor of this node (agent " +
                                      options_.agent + ") died: " + how +
                                      "; see the agent's log");
  }
  // Operations that wait for a slot number will never get one.
  const Status status = board_->AbortStatus();
  std::lock_guard lock(table_mutex_);
  for (auto& [key, name] : names_) FailQueue(*name, status);
  FailControls(status);
  awaited_replies_.store(0);
}

bool NodeJob::SleepOnBoard(const Operation& operation, int timeout_ms,
                           bool* interrupted) {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  me_.sleeping.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("sleep.flag");
  {
    std::lock_guard lock(drive_mutex_);
    TellWhereIAm();
    if (Drive(false)) return true;
  }
  // Another thread may have ended it before `seen` was read.
  if (operation.done.load(std::memory_order_acquire)) return true;
  MAYPOLE_KILL_POINT("sleep.looked");
  const FutexResult r = FutexWait(me_.wake, seen, timeout_ms);
  MAYPOLE_KILL_POINT("sleep.over");
  if (r == FutexResult::kInterrupted) *interrupted = true;
  if (r != FutexResult::kTimeout) return true;
  std::lock_guard lock(drive_mutex_);
  return Drive(true);
}

void NodeJob::WakeOwnThreads() {
  me_.wake.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(me_.wake);
}

// The last waiter leaves others' work to the progress thread, and other waiters
// to whoever wakes the rank.
void NodeJob::StopAttending() {
  const bool others_wait = waiters_.fetch_sub(1) > 1;
  if (!others_wait && outstanding_.load() == 0) return;
  me_.sleeping.store(1, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("attend.flag");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool more;
  {
    std::lock_guard lock(drive_mutex_);
    more = Drive(false);
  }
  if (more) WakeOwnThreads();
}

void NodeJob::Want(const Operation& op) {
  if (board_->config().nodes == 1 || op.awaited || op.wanted.exchange(true)) {
    return;
  }
  std::lock_guard lock(table_mutex_);
  // The operation's numbers are written with `current`, under this mutex.
  Name* name = op.slot < by_slot_.size() ? by_slot_[op.slot] : nullptr;
  const bool announced = name != nullptr && name->current.get() == &op;
  if (!announced || !name->waiting || !name->negotiated) return;
  if (RaiseUrgency(*board_, op.slot, op.generation, op.urgency()) &&
      board_->AllArrived(op.slot, op.generation) && MakeNews(*board_, op)) {
    session_->WakeExecutor();
  }
}

void NodeJob::Poke(const Operation& operation) {
  if (outstanding_.load() == 0) return;
  Want(operation);
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) Drive(false);
}

Status NodeJob::Await(const Operation& operation, int timeout_ms) {
  if (operation.done.load(std::memory_order_acquire)) return Status();
  NoteUser();
  const auto start = Clock::now();
  const auto left = [&]() -> int64_t {
    if (timeout_ms < 0) return kSleepMs;
    return timeout_ms - std::chrono::duration_cast<std::chrono::milliseconds>(
                            Clock::now() - start)
                            .count();
  };
  Want(operation);
  waiters_.fetch_add(1);
  this_thread_waits_ = true;
  me_.sleeping.store(0, std::memory_order_relaxed);
  MAYPOLE_KILL_POINT("wait.begun");
  auto idle_since = start;
  bool blocked = false;
  Status result;
  while (!operation.done.load(std::memory_order_acquire)) {
    bool moved;
    {
      std::lock_guard lock(drive_mutex_);
      moved = Drive(false);
    }
    if (moved) {
      if (std::exchange(blocked, false)) ClearBlocked();
      idle_since = Clock::now();
      continue;
    }
    if (operation.done.load(std::memory_order_acquire)) break;
    const auto idle = Clock::now() - idle_since;
    if (idle < spin_) {
      // Two ranks on one core, for a third process has the other one: who
      // waited without yielding would wait for itself.
      if (yields_ || idle > kPoliteAfter) {
        sched_yield();
      }
      continue;
    }
    if (left() <= 0) {
      result = Status(Code::kDeadlineExceeded,
                      operation.Title() + " is still pending");
      break;
    }
    bool interrupted = false;
    if (SleepOnBoard(operation,
                     static_cast<int>(std::min<int64_t>(kSleepMs, left())),
                     &interrupted)) {
      if (std::exchange(blocked, false)) ClearBlocked();
      idle_since = Clock::now();
    } else if (timeout_ms < 0 && !blocked && !interrupted) {
      blocked = SetBlocked(operation);
    }
    me_.sleeping.store(0, std::memory_order_relaxed);
    if (interrupted) {
      result = Status(Code::kCancelled, "a signal interrupted the wait");
      break;
    }
  }
  if (blocked) ClearBlocked();
  StopAttending();
  this_thread_waits_ = false;
  return result;
}

void NodeJob::NoteUser() {
  static thread_local char self;
  const void* user = user_.load(std::memory_order_relaxed);
  if (user == &self) return;
  if (user != nullptr || !user_.compare_exchange_strong(user, &self)) {
    several_users_.store(true, std::memory_order_relaxed);
  }
}

// Says on the board that nothing moves on this rank until another one does
// something: no other thread of it is known to use Maypole. The last one of the
// node to be blocked wakes the executor. False if it is not certain.
bool NodeJob::SetBlocked(const Operation& op) {
  if (!options_.deadlock_check || several_users_.load()) return false;
  {
    std::lock_guard lock(table_mutex_);
    uint64_t on =
        op.control == Control::kJoin ? kBlockedInJoin : kBlockedForSet;
    if (op.control == Control::kNone) {
      if (op.generation == 0) return false;  // it waits for its slot
      on = Tagged(op.generation, op.slot);
    }
    me_.blocked_on.store(on, std::memory_order_relaxed);
  }
  me_.blocked_count.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    const RankBlock& rank = board_->rank(i);
    const bool left = rank.state.load(std::memory_order_relaxed) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const uint64_t count = rank.blocked_count.load(std::memory_order_seq_cst);
    if (!left && count % 2 == 0) return true;
  }
  session_->WakeExecutor();
  return true;
}

void NodeJob::ClearBlocked() {
  me_.blocked_count.fetch_add(1, std::memory_order_seq_cst);
}

void NodeJob::ProgressLoop() {
  while (!stop_.load()) {
    bool moved = false;
    if (waiters_.load() == 0 && outstanding_.load() > 0) {
      std::lock_guard drive(drive_mutex_);
      moved = Drive(false);
    }
    if (!moved) Park();
  }
}

// Waiters attend themselves, and leave the sleeping flag as it must be.
void NodeJob::Park() {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  if (stop_.load()) return;
  if (waiters_.load() == 0 && outstanding_.load() > 0) {
    me_.sleeping.store(1, std::memory_order_seq_cst);
    MAYPOLE_KILL_POINT("park.flag");
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::lock_guard drive(drive_mutex_);
    TellWhereIAm();
    if (Drive(false)) return;
  }
  const int timeout_ms = outstanding_.load() > 0 ? kSleepMs : kIdleSleepMs;
  if (FutexWait(me_.wake, seen, timeout_ms) != FutexResult::kTimeout) return;
  if (waiters_.load() > 0 || outstanding_.load() == 0) return;
  std::lock_guard drive(drive_mutex_);
  Drive(true);
}

}  // namespace maypole
