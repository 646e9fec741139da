#include "worker/session/executor.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/unix_socket.h"
#include "worker/core/limits.h"
#include "worker/session/clock.h"
#include "worker/session/control.h"
#include "worker/session/executor_tags.h"

namespace maypole::worker {
namespace {

constexpr int kTickMs = static_cast<int>(kBoardLookMs);
constexpr int kHeldTicketMs = 5;
constexpr int kMaxEvents = 512;  // more than there are descriptors
// A client that floods us is read this far, then others have their turn.
constexpr int kMessagesPerTurn = 32;

}  // namespace

Executor::Executor(ExecutorOptions options, Fd control, SharedStats stats)
    : options_(std::move(options)),
      core_(options_.core),
      stats_(std::move(stats)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      control_(std::move(control)) {
  Watch(control_.get(), kControl);
  Watch(mailbox_.fd(), kMailbox);
}

Executor::~Executor() {
  // Their threads post to the mailbox and look at the board.
  transport_.reset();
  network_.reset();
}

void Executor::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

absl::Status Executor::Run(Fd stop_signals) {
  stop_signals_ = std::move(stop_signals);
  if (stop_signals_.valid()) Watch(stop_signals_.get(), kStopSignal);
  core_.OnTime(NowMs());
  while (!done_) {
    if (keeper_ != nullptr) {
      // First say that we sleep, then look: who comes later wakes us.
      keeper_->SetSleeping(true);
      TakeNews();
      DoActions();
      LookAround();
    }
    if (!Sleep()) return ToAbsl(ErrnoStatus(errno, "epoll_wait"));
    if (!control_.valid() && clients_.empty()) done_ = true;
  }
  return absl::OkStatus();
}

void Executor::TakeNews() {
  const std::vector<SlotNews> all = keeper_->TakeNews();
  if (all.empty()) return;
  const int64_t now = NowNs();
  for (const SlotNews& news : all) {
    // It comes again when somebody waits for it.
    PresentSince& since = present_since_[news.slot];
    if (since.generation != news.generation) since = {news.generation, now};
    core_.OnNews(news);
  }
}

bool Executor::Sleep() {
  epoll_event events[kMaxEvents];
  const int n = epoll_wait(epoll_.get(), events, kMaxEvents, SleepMs());
  if (n < 0 && errno != EINTR) return false;
  if (keeper_ != nullptr) keeper_->SetSleeping(false);
  Tick();
  // New clients last (see OnHandOver).
  bool control = false;
  for (int i = 0; i < n; ++i) {
    control = control || events[i].data.u64 == kControl;
    if (events[i].data.u64 != kControl) HandleEvent(events[i].data.u64);
  }
  if (control) HandleEvent(kControl);
  return true;
}

void Executor::Tick() {
  core_.OnTime(NowMs());
  DoActions();
  if (keeper_ == nullptr) return;
  if (keeper_->somebody_left()) keeper_->FailWaiting();
  CountNetworkBytes();
}

int Executor::SleepMs() const {
  if (keeper_ == nullptr) return kTickMs;
  if (keeper_->PlaceHeldTickets()) return kHeldTicketMs;
  const bool hurry = keeper_->somebody_left() || keeper_->AllSayBlocked();
  return hurry ? static_cast<int>(std::min(kLeftScanMs, kBlockedLookMs))
               : kTickMs;
}

void Executor::LookAround() {
  if (keeper_ == nullptr) return;
  const int64_t now = NowMs();
  const int64_t pause =
      keeper_->AllSayBlocked() ? kBlockedLookMs : kBoardLookMs;
  if (now - looked_ms_ < pause && !core_.wants_look()) return;
  looked_ms_ = now;
  core_.OnTime(now);
  SampleCounters();
  core_.OnLook(keeper_->Look(core_.suspects()));
  DoActions();
}

void Executor::SampleCounters() {
  const StatsPage::Counter& count =
      stats_->errors[static_cast<int>(ErrorKind::kMismatch)];
  const uint64_t before = count.load(std::memory_order_relaxed);
  sampler_->Sample(&*stats_);
  const uint64_t mismatches = count.load(std::memory_order_relaxed) - before;
  if (mismatches == 0) return;
  // The ranks have found them among themselves, and know which.
  spdlog::warn("event=mismatch job={} epoch={} operations={}",
               options_.core.job, epoch(), mismatches);
}

void Executor::CountNetworkBytes() {
  if (network_ == nullptr) return;
  const uint64_t sent = network_->bytes_sent();
  const uint64_t received = network_->bytes_received();
  StatsPage::Add(stats_->network_sent, sent - counted_sent_);
  StatsPage::Add(stats_->network_received, received - counted_received_);
  counted_sent_ = sent;
  counted_received_ = received;
}

void Executor::HandleEvent(uint64_t tag) {
  switch (tag) {
    case kControl:
      OnControl();
      break;
    case kMailbox:
      mailbox_.RunAll();
      break;
    case kBoardWake: {
      uint64_t count;
      [[maybe_unused]] const ssize_t n =
          read(board_wake_.get(), &count, sizeof(count));
      break;
    }
    case kStopSignal:
      OnStopSignal();
      break;
    default: {
      const ClientId id = (tag - kFirstClient) / 2;
      if (tag == PidTag(id) && kept_pidfds_.erase(id) > 0) {
        core_.OnProcessEnded(id);
        break;
      }
      OnClientReady(id, kMessagesPerTurn);
      if (tag == PidTag(id) && clients_.contains(id)) {
        ClientGone(id, "its process ended without shutdown");
      }
    }
  }
  DoActions();
}

// --- Supervisor --------------------------------------------------------------

void Executor::OnControl() {
  Received message;
  const Status s =
      ReceiveMessage(control_.get(), control::kMaxMessageBytes, 0, &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  if (!s.ok() || message.data.empty()) {
    if (idle_reported_) {
      spdlog::info("event=end job={} reason=\"idle\"", options_.core.job);
    } else {
      spdlog::warn("event=supervisor_gone job={}", options_.core.job);
    }
    control_.Reset();
    return;
  }
  OnHandOver(message.data.data(), message.data.size(), std::move(message.fds));
}

void Executor::OnHandOver(const char* data, size_t bytes, std::vector<Fd> fds) {
  control::HandOver hand_over;
  if (bytes != sizeof(hand_over) || fds.empty()) return;
  std::memcpy(&hand_over, data, sizeof(hand_over));
  ++received_;
  idle_reported_ = false;
  // A rank that comes again has left before: its Goodbye may stand behind
  // hundreds of requests in its old socket.
  ReadAllClients();
  if (clients_.size() >= kMaxClients) return;
  const ClientId id = next_client_++;
  const Connection& client =
      clients_
          .try_emplace(id, std::move(fds[0]),
                       fds.size() > 1 ? std::move(fds[1]) : Fd())
          .first->second;
  Watch(client.socket(), SocketTag(id));
  if (client.pidfd().valid()) Watch(client.pidfd().get(), PidTag(id));
  spdlog::info("event=client job={} rank={} pid={}", options_.core.job,
               hand_over.hello.rank, hand_over.pid);
  core_.OnClient(id, hand_over.hello, hand_over.pid);
}

void Executor::OnStopSignal() {
  signalfd_siginfo info;
  [[maybe_unused]] const ssize_t n =
      read(stop_signals_.get(), &info, sizeof(info));
  core_.OnStop(absl::StrCat("the executor of job '", options_.core.job,
                            "' on node ", options_.core.node, " (host ",
                            options_.core.host, ") was stopped (SIGTERM)"));
  DoActions();
  done_ = true;
}

void Executor::Do(ReportIdle&) {
  control::Idle idle{received_};
  idle_reported_ = true;
  if (control_.valid()) {
    (void)SendMessage(control_.get(), &idle, sizeof(idle));
  }
}

void Executor::DoActions() {
  for (auto actions = core_.TakeActions(); !actions.empty();
       actions = core_.TakeActions()) {
    for (Action& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
  }
}

}  // namespace maypole::worker
