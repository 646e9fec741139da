#include "client/bootstrap/node_bootstrap.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "client/bootstrap/bootstrap_directory.h"
#include "client/bootstrap/bootstrap_messages.h"
#include "client/bootstrap/exchange.h"
#include "client/bootstrap/pmix_exchange.h"
#include "common/wire/unix_socket.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kInfoKey[] = "maypole/bootstrap/";
constexpr int kSliceMs = 200;  // how often a wait checks the service
constexpr int kCleanUpMs = 5000;
constexpr int kTries = 3;  // if a service ends while we talk to it

// The process's connection to its node service.
struct Connection {
  Fd socket;
  std::string job;
  std::string agent;
  std::string token;
};
Connection& connection() {
  static auto& c = *new Connection;  // never destroyed: used at exit
  return c;
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

bool Gone(const Fd& socket) {
  pollfd p{socket.get(), POLLIN, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

// At exit the last rank waits until the service has cleaned up, because
// launchers kill the processes that their ranks leave behind.
void SayBye() {
  Connection& c = connection();
  if (!c.socket.valid()) return;
  const std::string bye = Say(kSayBye);
  if (!SendMessage(c.socket.get(), bye.data(), bye.size()).ok()) return;
  const auto deadline = Clock::now() + std::chrono::milliseconds(kCleanUpMs);
  Received r;
  while (Clock::now() < deadline) {
    const Status s = ReceiveMessage(c.socket.get(), kMaxBootstrapBytes,
                                    MillisecondsUntil(deadline), &r);
    if (s.ok() && r.data.empty()) break;
    if (!s.ok() && s.code() != Code::kCancelled) break;
  }
  c.socket.Reset();
}

std::string NodeName(const RankOptions& o) {
  if (!o.found.node_name.empty()) return o.found.node_name;
  const std::string host = ThisProcessFacts().host;
  if (o.local_size == o.size || o.found.node_tag.empty()) return host;
  const std::string end = "." + o.found.node_tag;
  return host.substr(0, kMaxHostBytes - std::min(kMaxHostBytes, end.size())) +
         end;
}

RankMessage MakePlace(const RankOptions& o, Exchange** exchange) {
  RankMessage p{.job = o.job,
                .node = NodeName(o),
                .rank = o.rank,
                .size = o.size,
                .local_rank = o.local_rank,
                .local_size = o.local_size,
                .start_timeout_seconds = o.start_timeout_seconds};
  if (p.one_node()) return p;
  const Status s = ExchangeOf(o, exchange);
  if (*exchange != nullptr) {
    p.exchange = ExchangeKind::kCarried;
  } else if (!o.found.head.empty()) {
    p.exchange = ExchangeKind::kDerived;
    p.head = o.found.head;
    p.at_head = o.found.at_head;
  } else {
    p.why_none = s.message();
  }
  return p;
}

// Connects to this user's service in `directory`; starts it if needed.
Status Connect(const std::string& directory, Clock::time_point deadline,
               Fd* out) {
  const std::string path = directory + "/" + kServiceSocket;
  while (true) {
    if (Status s = MakePrivate(directory); !s.ok()) return s;
    Status s = ConnectUnix(path, out, MillisecondsUntil(deadline));
    if (s.ok()) break;
    if (s.code() != Code::kUnavailable) return s;
    Fd lock;
    if (Status l = TryLock(directory, &lock); !l.ok()) return l;
    if (lock.valid()) {
      s = StartNodeService(directory, std::move(lock), deadline);
      if (!s.ok()) return s;
      continue;
    }
    if (Clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    "the node service in " + directory + " does not start: " +
                        s.message() + "; see " + directory + "/" + kServiceLog);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  PeerCredentials peer;
  if (Status s = PeerOf(out->get(), &peer); !s.ok()) return s;
  if (peer.uid == geteuid()) return Status();
  return Status(Code::kPermissionDenied, path + " belongs to uid " +
                                             std::to_string(peer.uid) +
                                             ", not to this user");
}

class Conversation {
 public:
  Conversation(const RankOptions& options, const std::string& directory,
               Clock::time_point deadline, int socket, Exchange* exchange)
      : options_(options),
        directory_(directory),
        deadline_(deadline),
        socket_(socket),
        exchange_(exchange) {}

  // kAborted: the service has ended without an error message.
  Status Run(std::string* agent, std::string* token) {
    while (true) {
      Received r;
      const Status s =
          ReceiveMessage(socket_, kMaxBootstrapBytes, kSliceMs, &r);
      if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
        // The service knows the cause better: give it time to report it.
        if (Clock::now() < deadline_ + std::chrono::seconds(3)) continue;
        return TooLate();
      }
      if (!s.ok()) return s;
      if (r.data.empty()) return Status(Code::kAborted, "it has ended");
      const std::vector<std::string> lines =
          Lines({r.data.data(), r.data.size()});
      if (lines[0] == kSayAgent && lines.size() == 3) {
        *agent = lines[1];
        *token = lines[2];
        return Status();
      }
      if (lines[0] == kSayError && lines.size() == 3) {
        return Status(static_cast<Code>(atoi(lines[1].c_str())), lines[2]);
      }
      if (Status a = Answer({r.data.data(), r.data.size()}, lines[0]);
          !a.ok()) {
        return a;
      }
    }
  }

 private:
  Status TooLate() const {
    return Status(Code::kDeadlineExceeded,
                  "rank " + std::to_string(options_.rank) + " has waited " +
                      std::to_string(options_.start_timeout_seconds) +
                      " s for the agent of its node (MAYPOLE_START_TIMEOUT): "
                      "the node service in " +
                      directory_ + Pid() + " does not answer; see " +
                      directory_ + "/" + kServiceLog);
  }

  std::string Pid() const {
    PeerCredentials peer;
    if (!PeerOf(socket_, &peer).ok() || peer.pid <= 0) return "";
    return " (pid " + std::to_string(peer.pid) + ")";
  }

  Status Send(const std::string& message) {
    return SendMessage(socket_, message.data(), message.size());
  }

  Status Answer(std::string_view message, const std::string& verb) {
    const std::string key = kInfoKey + options_.job;
    if (exchange_ == nullptr) return Status();
    if (verb == kSayPublish) {
      const std::string info(
          message.substr(std::min(message.size(), verb.size() + 1)));
      const Status s = exchange_->Put(key, info);
      return Send(s.ok() ? Say(kSayPublished) : Say(kSayFailed, {s.message()}));
    }
    if (verb == kSayGet) return Get(key);
    return Status();
  }

  Status Get(const std::string& key) {
    while (true) {
      std::string info;
      const Status s = exchange_->Get(key, kSliceMs, &info);
      if (s.ok()) return Send(std::string(kSayGot) + "\n" + info);
      pollfd p{socket_, POLLIN, 0};
      if (poll(&p, 1, 0) == 1) return Status();  // another message has come
      const bool late = s.code() == Code::kDeadlineExceeded;
      if (late && Clock::now() < deadline_) continue;
      return Send(Say(
          kSayFailed,
          {late ? "rank 0 of job " + options_.job + " has not come within " +
                      std::to_string(options_.start_timeout_seconds) +
                      " s (MAYPOLE_START_TIMEOUT): " + s.message()
                : s.message()}));
    }
  }

  const RankOptions& options_;
  const std::string& directory_;
  const Clock::time_point deadline_;
  const int socket_;
  Exchange* const exchange_;
};

Status BootstrapAnew(Clock::time_point deadline, RankOptions* o) {
  Connection& c = connection();
  c.socket.Reset();
  // Several nodes of the job may be on one machine and share its directories.
  std::string directory;
  Status s = BootstrapDirectory(
      o->job + "\n" + ThisProcessFacts().host + "\n" + o->found.node_tag,
      &directory);
  if (!s.ok()) return s;
  Exchange* exchange = nullptr;
  const std::string place = Encode(MakePlace(*o, &exchange));
  for (int i = 0; i < kTries; ++i) {
    // Kept in c.socket from the start, so that a child that is forked meanwhile
    // closes its copy.
    if (s = Connect(directory, deadline, &c.socket); s.ok()) {
      s = SendMessage(c.socket.get(), place.data(), place.size()).ok()
              ? Conversation(*o, directory, deadline, c.socket.get(), exchange)
                    .Run(&c.agent, &c.token)
              : Status(Code::kAborted, "it has ended");
    }
    if (s.ok()) {
      c.job = o->job;
      static const int once = atexit(SayBye);
      (void)once;
      return Status();
    }
    c.socket.Reset();
    if (s.code() != Code::kAborted) return s;
    // The service ended because all its earlier ranks had gone, or it was
    // killed.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Status(Code::kUnavailable,
                "the node service in " + directory + ": " + s.message());
}

}  // namespace

Status BootstrapNode(Clock::time_point deadline, RankOptions* options) {
  Connection& c = connection();
  if (!c.socket.valid() || c.job != options->job || Gone(c.socket)) {
    if (Status s = BootstrapAnew(deadline, options); !s.ok()) return s;
  }
  options->agent = c.agent;
  options->token = c.token;
  return Status();
}

void LeaveBootstrapInChild() {
  connection().socket.Reset();
  LeavePmixInChild();
}

}  // namespace maypole
