#include "client/launcher/service_shell.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "client/launcher/own_addresses.h"
#include "client/launcher/private_directory.h"
#include "client/launcher/process.h"
#include "client/launcher/service_directory.h"
#include "client/launcher/service_facts.h"
#include "common/unix_socket.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick{100};  // while something is under way
constexpr seconds kIdleLimit{3};    // nobody has come since the start
constexpr milliseconds kDialSlice{2000};
constexpr milliseconds kEndLimit{2000};  // until a daemon is killed
// Less than ranks wait for us (client/meeting.cc), with kEndLimit.
constexpr milliseconds kOthersLimit{2500};
constexpr char kSecret[] = "secret";

// Rows of /proc/net/tcp with this local port and a connection to another
// address than the local one.
bool HasRemoteConnections(const char* path, int port) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    char local[64], remote[64];
    unsigned local_port = 0, remote_port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %63[0-9A-F]:%x %63[0-9A-F]:%x %x",
                    local, &local_port, remote, &remote_port, &state) != 5) {
      continue;
    }
    constexpr unsigned kEstablished = 1;
    if (state == kEstablished && static_cast<int>(local_port) == port &&
        std::string(local) != remote) {
      return true;
    }
  }
  return false;
}

rlimit FileLimit() {
  rlimit most = {};
  getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  setrlimit(RLIMIT_NOFILE, &most);
  return most;
}

std::string LastLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

bool LeadsHere(const addrinfo* a) {
  if (a->ai_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(a->ai_addr);
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(a->ai_addr);
  return a->ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

}  // namespace

NodeService::NodeService(std::string directory)
    : directory_(std::move(directory)) {}

Status NodeService::Start() {
  Status s = loop_.Init({&log_});
  if (!s.ok()) return s;
  ServiceFacts facts;
  if (s = GatherServiceFacts(directory_, &facts); !s.ok()) return s;
  core_ = std::make_unique<ServiceCore>(std::move(facts));
  // What a service before us has left that was killed.
  unlink((directory_ + "/" + kSecret).c_str());
  s = ListenUnix(directory_ + "/" + kServiceSocket, 0600, &listener_);
  if (!s.ok()) return s;
  fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  listener_watch_ =
      loop_.Watch(EventLoop::kControl, listener_.get(), [this] { Accept(); });
  idle_since_ = steady_clock::now();
  return Status();
}

void NodeService::Run() {
  while (!stopping_) {
    const bool busy =
        !starting_.empty() || !dialed_.empty() || connections_.empty();
    loop_.Poll(busy ? std::optional<Time>(steady_clock::now() + kTick)
                    : std::nullopt);
    OnRound();
  }
  EndDaemons();
  RemoveServiceDirectory(directory_, kServiceLockFd);
}

void NodeService::OnRound() {
  for (Daemons* d : {coordinator_.get(), agent_.get()}) {
    if (d != nullptr) d->OnTime(steady_clock::now());
  }
  TellReady();
  if (!dialed_.empty()) Dial();
  if (connections_.empty() && !stopping_ &&
      steady_clock::now() - idle_since_ >= kIdleLimit) {
    CarryOut(core_->Idle());
  }
}

void NodeService::Accept() {
  Fd socket;
  PeerCredentials peer;
  if (!AcceptUnix(listener_.get(), &socket).ok() || !socket.valid() ||
      !PeerOf(socket.get(), &peer).ok() || peer.uid != geteuid()) {
    return;
  }
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  const int id = next_connection_++;
  Connection& c = connections_[id];
  c.watch = loop_.Watch(EventLoop::kControl, socket.get(),
                        [this, id] { OnMessage(id); });
  c.socket = std::move(socket);
  CarryOut(core_->Connected(id));
}

void NodeService::OnMessage(int connection) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  Received r;
  const Status s =
      ReceiveMessage(it->second.socket.get(), kMaxMeetingBytes, 0, &r);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  if (s.ok() && !r.data.empty()) {
    return CarryOut(core_->Said(connection, {r.data.data(), r.data.size()}));
  }
  Drop(connection);
  CarryOut(core_->Closed(connection));
}

void NodeService::Drop(int connection) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  loop_.Unwatch(it->second.watch);
  connections_.erase(it);
}

void NodeService::CarryOut(ServiceCore::Actions actions) {
  for (const ServiceAction& action : actions) CarryOut(action);
}

void NodeService::CarryOut(const ServiceAction& action) {
  Status s;
  switch (action.kind) {
    case ServiceAction::kSend:
      Send(action.connection, action.text);
      break;
    case ServiceAction::kClose:
      Drop(action.connection);
      break;
    case ServiceAction::kWriteSecret:
      s = WriteSecretFile(core_->secret_path(), action.text);
      break;
    case ServiceAction::kStart:
      s = StartDaemon(action);
      break;
    case ServiceAction::kDial:
      dialed_ = action.arguments;
      give_up_ = steady_clock::now() + seconds(core_->start_timeout_seconds());
      break;
    case ServiceAction::kStop:
      stopping_ = true;
      break;
  }
  if (!s.ok()) CarryOut(core_->Failed(s.message()));
}

void NodeService::Send(int connection, const std::string& text) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  // Who takes no messages has gone, or will see that the connection has.
  if (!SendMessage(it->second.socket.get(), text.data(), text.size()).ok()) {
    shutdown(it->second.socket.get(), SHUT_RDWR);
  }
}

Status NodeService::StartDaemon(const ServiceAction& action) {
  const bool agent = action.name == kAgentName;
  std::unique_ptr<Daemons>& daemons = agent ? agent_ : coordinator_;
  daemons = std::make_unique<Daemons>(
      &loop_, Daemons::Settings{.log = &log_,
                                .first_stream_id = agent ? 2 : 1,
                                .files = FileLimit(),
                                .on_lost = [this](const std::string& what) {
                                  OnDaemonLost(what);
                                }});
  const Status s = daemons->Start(action.name, action.arguments);
  if (!s.ok()) return s;  // there is none that could become ready
  starting_ = action.name;
  give_up_ = steady_clock::now() + seconds(core_->start_timeout_seconds());
  return s;
}

void NodeService::TellReady() {
  if (starting_.empty()) return;
  Daemons* daemons =
      starting_ == kAgentName ? agent_.get() : coordinator_.get();
  if (daemons->all_ready()) {
    const std::string name = std::exchange(starting_, "");
    CarryOut(core_->Ready(name, daemons->announcement(name)));
  } else if (steady_clock::now() >= give_up_) {
    starting_.clear();
    OnDaemonLost(daemons->not_ready() + " is not ready after " +
                 std::to_string(core_->start_timeout_seconds()) + " s");
  }
}

// Blocks for a slice, and while names are resolved: the ranks only wait.
void NodeService::Dial() {
  std::string found;
  const std::vector<std::string> numbers = ResolveForOthers(dialed_);
  Status s(Code::kUnavailable,
           dialed_[0] +
               ": its name leads nowhere, or to this machine itself "
               "(/etc/hosts); set MAYPOLE_COORDINATOR, or mend the "
               "name");
  if (!numbers.empty()) s = FirstThatAccepts(numbers, kDialSlice, &found);
  if (s.ok()) {
    dialed_.clear();
    CarryOut(core_->Dialed(found));
  } else if (steady_clock::now() >= give_up_) {
    dialed_.clear();
    CarryOut(core_->Failed("the job's coordinator was not found for " +
                           std::to_string(core_->start_timeout_seconds()) +
                           " s: " + s.message()));
  }
}

std::string NodeService::LastLogLine() const {
  return LastLineOf(directory_ + "/" + kServiceLog);
}

void NodeService::OnDaemonLost(const std::string& what) {
  log_.Flush();
  const std::string last = LastLogLine();
  // Nobody sees the lines that the text points to.
  CarryOut(core_->Failed(what.substr(0, what.find("; its last lines")) +
                         (last.empty() ? "" : ": " + last)));
}

// Executors of other nodes may have work to do among their own ranks.
bool NodeService::OthersNeedCoordinator() const {
  if (!coordinator_ || !coordinator_->all_ready() ||
      coordinator_->all_ended()) {
    return false;
  }
  const std::string& listen =
      coordinator_->announcement(kCoordinatorName).listen;
  const int port = atoi(listen.substr(listen.rfind(':') + 1).c_str());
  return HasRemoteConnections("/proc/net/tcp", port) ||
         HasRemoteConnections("/proc/net/tcp6", port);
}

void NodeService::EndDaemons() {
  loop_.Unwatch(listener_watch_);
  listener_.Reset();
  unlink((directory_ + "/" + kServiceSocket).c_str());
  End(agent_.get());
  // Nodes end within moments of each other. Launchers may kill us when we have
  // let the last rank go.
  const Time deadline = steady_clock::now() + kOthersLimit;
  bool alone = false;
  while (OthersNeedCoordinator()) {
    loop_.Poll(steady_clock::now() + kTick);
    const bool awaited = !connections_.empty();
    if (alone || (awaited && steady_clock::now() < deadline)) continue;
    // Who waits for us to clean up need not wait longer for other nodes. The
    // lock stays: the next service of the job might want our port.
    EmptyServiceDirectory(directory_, kServiceLockFd);
    while (!connections_.empty()) Drop(connections_.begin()->first);
    alone = true;
  }
  End(coordinator_.get());
}

void NodeService::End(Daemons* daemons) {
  if (daemons == nullptr) return;
  daemons->Stop(SIGTERM);
  const Time deadline = steady_clock::now() + kEndLimit;
  while (!daemons->all_ended() && steady_clock::now() < deadline) {
    loop_.Poll(deadline);
  }
  if (!daemons->all_ended()) daemons->Stop(SIGKILL);
}

std::vector<std::string> ResolveForOthers(
    const std::vector<std::string>& addresses) {
  std::vector<std::string> out;
  // Such a head says so in numbers, and has nothing else to say.
  const bool no_network =
      addresses.size() == 1 &&
      addresses[0].starts_with(std::string(kLoopbackAddress) + ":");
  for (const std::string& address : addresses) {
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) continue;
    std::string host = address.substr(0, colon);
    if (host.starts_with("[")) host = host.substr(1, host.size() - 2);
    const std::string port = address.substr(colon + 1);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) continue;
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
      char text[NI_MAXHOST];
      if ((no_network || !LeadsHere(a)) &&
          getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
        out.push_back(WithPort(text, port));
      }
    }
    freeaddrinfo(found);
  }
  return out;
}

}  // namespace maypole::launcher
