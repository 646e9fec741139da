#include "worker/executor/executor.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "common/absl_status.h"
#include "common/log_value.h"
#include "common/system/process_end.h"
#include "common/wire/unix_socket.h"
#include "worker/agent/control.h"
#include "worker/executor/client_connection.h"
#include "worker/executor/clock.h"
#include "worker/executor/file_writer.h"
#include "worker/network/network.h"

namespace maypole::worker {
namespace {

// Identifies the descriptors that the loop waits for.
enum Tag : uint64_t {
  kControl = 1,
  kMailbox = 2,
  kBoardWake = 3,
  kStopSignal = 4,
  kPeers = 5,
  kFirstClient = 16,  // then two per client: socket, process
};
uint64_t SocketTag(ClientId id) { return kFirstClient + 2 * id; }
uint64_t EndTag(ClientId id) { return SocketTag(id) + 1; }

ExecutorEvent EventOf(uint64_t tag) {
  using Kind = ExecutorEvent::Kind;
  switch (tag) {
    case kControl:
      return {Kind::kHandOver};
    case kMailbox:
      return {Kind::kPosted};
    case kBoardWake:
      return {Kind::kBoardWake};
    case kPeers:
      return {Kind::kPeers};
    default: {
      const ClientId id = (tag - kFirstClient) / 2;
      return {tag == EndTag(id) ? Kind::kProcessEnded : Kind::kClient, id};
    }
  }
}

// Reads the counter of an eventfd, or a signal.
template <typename T>
void Discard(int fd) {
  T value;
  [[maybe_unused]] const ssize_t n = read(fd, &value, sizeof(value));
}

// Whether the message may carry this descriptor. A state must be a memfd:
// closing another descriptor might block on a socket that lingers.
bool BelongsTo(const std::vector<char>& message, const Fd& descriptor) {
  if (message.size() < sizeof(session::Header)) return false;
  const session::Type type = session::TypeOf(message.data());
  if (type == session::Type::kStateRequest) {
    return fcntl(descriptor.get(), F_GET_SEALS) >= 0;
  }
  return type == session::Type::kGpuMemoryRequest ||
         type == session::Type::kTimelineFile;
}

class EventFdWake : public BoardWake {
 public:
  explicit EventFdWake(Poller* poller)
      : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        watch_(poller->WatchWrites(fd_.get(), kBoardWake)) {}
  // A rank that has filled the counter keeps others from waking the loop until
  // it is read.
  void Drain() override {
    if (++wakes_ % kDrainEvery == 0) Discard<uint64_t>(fd_.get());
  }
  int fd() const { return fd_.get(); }

 private:
  static constexpr uint32_t kDrainEvery = 64;

  const Fd fd_;
  const Registration watch_;
  uint32_t wakes_ = 0;
};

class EndWatch : public ProcessWatch {
 public:
  EndWatch(Fd end, Registration watch)
      : end_(std::move(end)), watch_(std::move(watch)) {}

 private:
  const Fd end_;
  const Registration watch_;
};

class SocketLink : public ClientLink {
 public:
  // end: readable when the client's process has ended (process_end.h); invalid:
  // unknown.
  SocketLink(Poller* poller, ClientId id, Fd socket, Fd end)
      : connection_(std::move(socket), std::move(end)),
        socket_watch_(poller->Watch(connection_.socket(), SocketTag(id))) {
    // Descriptors come with GPU memory, states and a timeline's file.
    TakeDescriptors(connection_.socket());
    if (!connection_.process_end().valid()) return;
    end_watch_ = poller->Watch(connection_.process_end().get(), EndTag(id));
  }

  Status Receive(std::vector<char>* message, Fd* descriptor) override {
    Received received;
    Status s = ReceiveMessage(connection_.socket(), session::kMaxMessageBytes,
                              0, &received);
    if (s.code() == Code::kCancelled) {  // a signal; the event comes again
      return Status(Code::kDeadlineExceeded, s.message());
    }
    *message = std::move(received.data);
    if (received.fds.size() == 1 && BelongsTo(*message, received.fds[0])) {
      *descriptor = std::move(received.fds.front());
    } else {
      CloseUnasked(std::move(received.fds));
    }
    return s;
  }

  Status Send(const void* data, size_t bytes) override {
    return SendWith(data, bytes, {});
  }

  Status SendWelcome(const session::Welcome& welcome, const Board& board,
                     const BoardWake& wake) override {
    const int fds[] = {board.fd(), static_cast<const EventFdWake&>(wake).fd()};
    return SendWith(&welcome, sizeof(welcome), fds);
  }

  Status SendState(const session::StateReply& reply, const Fd* state) override {
    const int fd = state == nullptr ? -1 : state->get();
    return SendWith(&reply, sizeof(reply), {&fd, state == nullptr ? 0u : 1u});
  }

  Status Flush() override {
    if (!connection_.wants_to_write()) return Status();
    Status s = connection_.Flush();
    if (!connection_.wants_to_write()) socket_watch_.WantWrite(false);
    return s;
  }

  std::unique_ptr<ProcessWatch> KeepProcess() override {
    Fd end = connection_.TakeProcessEnd();
    if (!end.valid()) return nullptr;
    return std::make_unique<EndWatch>(std::move(end), std::move(end_watch_));
  }

 private:
  Status SendWith(const void* data, size_t bytes, std::span<const int> fds) {
    const bool wanted = connection_.wants_to_write();
    Status s = connection_.Send(data, bytes, fds);
    if (!wanted && connection_.wants_to_write()) socket_watch_.WantWrite(true);
    return s;
  }

  ClientConnection connection_;
  Registration socket_watch_;
  Registration end_watch_;
};

}  // namespace

Executor::Executor(ExecutorOptions options, Fd control, SharedStats stats)
    : options_(std::move(options)),
      watchdog_([job = options_.core.job](const LoopWatchdog::Report& r) {
        spdlog::error("event=loop_stuck job={} seconds={} doing={}", job,
                      static_cast<double>(r.stands.count() / 10) / 100,
                      LogValue(r.doing));
      }),
      reporter_(options_.core.job, std::move(stats), &watchdog_),
      control_(std::move(control)),
      control_watch_(poller_.Watch(control_.get(), kControl)),
      mailbox_watch_(poller_.Watch(mailbox_.fd(), kMailbox)),
      logic_(options_.core, this, &reporter_) {}

Executor::~Executor() = default;

absl::Status Executor::Run(Fd stop_signals) {
  Registration stop_watch;
  if (stop_signals.valid()) {
    stop_watch = poller_.Watch(stop_signals.get(), kStopSignal);
  }
  std::vector<ExecutorEvent> events;
  while (!logic_.done()) {
    const int64_t ms = logic_.PrepareSleep();
    watchdog_.Asleep();
    const auto tags = poller_.Wait(ms);
    watchdog_.Awake();
    if (!tags.ok()) return tags.status();
    bool stop = false;
    events.clear();
    for (const uint64_t tag : *tags) {
      stop = stop || tag == kStopSignal;
      if (tag != kStopSignal) events.push_back(EventOf(tag));
    }
    logic_.Wake(events);
    if (!stop) continue;
    Discard<signalfd_siginfo>(stop_signals.get());
    logic_.Stop();
  }
  return absl::OkStatus();
}

int64_t Executor::NowNs() { return worker::NowNs(); }

void Executor::Post(std::function<void()> function) {
  mailbox_.Post(std::move(function));
}

std::vector<std::function<void()>> Executor::TakePosted() {
  return mailbox_.TakeAll();
}

// --- Supervisor --------------------------------------------------------------

Executor::HandOver Executor::TakeClient(ClientId id, ArrivingClient* client,
                                        std::unique_ptr<ClientLink>* link) {
  Received message;
  const Status s =
      ReceiveMessage(control_.get(), control::kMaxMessageBytes, 0, &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return HandOver::kNone;
  }
  control::HandOver hand_over;
  if (message.data.size() != sizeof(hand_over)) {
    control_watch_.Reset();
    control_.Reset();
    return HandOver::kSupervisorGone;
  }
  std::memcpy(&hand_over, message.data.data(), sizeof(hand_over));
  client->hello = hand_over.hello;
  client->pid = hand_over.pid;
  // The client cannot be told, because its socket is lost; the log says why.
  if (!s.ok() || message.fds.empty()) return HandOver::kLost;
  // Without a pidfd the executor itself watches the client: a thread of the
  // supervisor would end with the supervisor, which the executor outlives.
  Fd end = message.fds.size() > 1 ? std::move(message.fds[1])
                                  : WatchProcess(hand_over.pid);
  *link = std::make_unique<SocketLink>(&poller_, id, std::move(message.fds[0]),
                                       std::move(end));
  return HandOver::kClient;
}

void Executor::ReportIdle(uint64_t received) {
  const control::Idle idle{received};
  (void)SendMessage(control_.get(), &idle, sizeof(idle));
}

// --- Factories for the logic -------------------------------------------------

std::unique_ptr<Transport> Executor::OpenTransport(
    TransportCallbacks callbacks) {
  return options_.make_transport(std::move(callbacks));
}

std::unique_ptr<EpochNetwork> Executor::MakeNetwork(
    const PrepareBackend& epoch, EpochNetwork::Callbacks callbacks) {
  return std::make_unique<Network>(
      options_.make_backend(epoch), std::move(callbacks), epoch.node_names,
      [this](int fd) { return poller_.Watch(fd, kPeers); });
}

std::unique_ptr<EpochGpus> Executor::MakeGpus(EpochGpus::Callbacks callbacks) {
  return options_.make_gpus(std::move(callbacks));
}

Status Executor::CreateBoard(const BoardConfig& config, uint32_t version,
                             std::unique_ptr<Board>* board) {
  return Board::Create(config, board, version);
}

std::unique_ptr<BoardWake> Executor::MakeBoardWake() {
  return std::make_unique<EventFdWake>(&poller_);
}

std::unique_ptr<TimelineFile> Executor::OpenTimelineFile(Fd file) {
  return std::make_unique<FileWriter>(std::move(file));
}

std::unique_ptr<TimelineFile> Executor::MakeTimelineFile(
    int pid, const std::string& name, std::function<void(Status)> failed) {
  return std::make_unique<FileWriter>(
      [pid, name](Fd* file) { return MakeFileOf(pid, name, file); },
      std::move(failed));
}

// No destructors: they would wait for the thread.
void Executor::EndProcess(const std::string& reason) {
  spdlog::critical("event=executor_ends job={} reason={}", options_.core.job,
                   LogValue(reason));
  spdlog::shutdown();
  _exit(1);
}

}  // namespace maypole::worker
