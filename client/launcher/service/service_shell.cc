#include "client/launcher/service/service_shell.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/job/start_progress.h"
#include "client/launcher/process/private_directory.h"
#include "client/launcher/service/service_directory.h"
#include "client/launcher/service/service_facts.h"
#include "common/address.h"
#include "common/wire/unix_socket.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kTick{100};  // poll interval while something is pending
constexpr seconds kIdleLimit{3};    // without a rank for this long, it ends
constexpr milliseconds kDialSlice{2000};  // the longest single attempt to dial
constexpr milliseconds kEndLimit{2000};   // until a daemon is killed
// How long to wait for other nodes. Together with kEndLimit it must be less
// than the time that ranks wait for the service
// (client/bootstrap/node_bootstrap.cc).
constexpr milliseconds kOthersLimit{2500};
constexpr char kSecret[] = "secret";

// Whether /proc/net/tcp lists an established connection at this local port from
// an address other than the local one.
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

std::string LastLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace

NodeService::NodeService(std::string directory)
    : directory_(std::move(directory)),
      node_(&loop_, {.directory = directory_, .listener = this}) {}

Status NodeService::Start() {
  Status s = log_.Open(&loop_);
  // Without on_signal: the service blocks its signals.
  if (s.ok()) s = node_.Prepare({});
  if (!s.ok()) return s;
  ServiceFacts facts;
  if (s = GatherServiceFacts(directory_, &facts); !s.ok()) return s;
  core_ = std::make_unique<ServiceCore>(std::move(facts));
  // An earlier service that was killed may have left its secret.
  unlink((directory_ + "/" + kSecret).c_str());
  Fd listener;
  s = ListenUnix(directory_ + "/" + kServiceSocket, 0600, &listener);
  if (!s.ok()) return s;
  fcntl(listener.get(), F_SETFL, O_NONBLOCK);
  idle_since_ = Now();
  return loop_.events()->Watch(std::move(listener),
                               {.readable = [this] { Accept(); }}, &listener_);
}

void NodeService::Run() {
  while (!stopping_) {
    const bool busy =
        !starting_.empty() || !dialed_.empty() || connections_.empty();
    // node_.deadline(): of the coordinator's restart.
    loop_.Poll(busy ? std::optional<Time>(Now() + kTick) : node_.deadline());
    OnRound();
  }
  EndDaemons();
  RemoveServiceDirectory(directory_, kServiceLockFd);
}

void NodeService::OnRound() {
  for (auto& [name, log] : logs_) log.OnTime(Now());
  node_.OnTime(Now());
  ReportReady();
  if (!dialed_.empty()) Dial();
  if (connections_.empty() && !stopping_ && Now() - idle_since_ >= kIdleLimit) {
    Perform(core_->Idle());
  }
}

void NodeService::Accept() {
  Fd socket;
  PeerCredentials peer;
  if (!AcceptUnix(listener_.fd(), &socket).ok() || !socket.valid() ||
      !PeerOf(socket.get(), &peer).ok() || peer.uid != geteuid()) {
    return;
  }
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  const int id = next_connection_++;
  const Status s = loop_.events()->Watch(
      std::move(socket), {.readable = [this, id] { OnMessage(id); }},
      &connections_[id]);
  if (!s.ok()) {
    connections_.erase(id);
    return;
  }
  Perform(core_->Connected(id));
}

void NodeService::OnMessage(int connection) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  Received r;
  const Status s = ReceiveMessage(it->second.fd(), kMaxBootstrapBytes, 0, &r);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  if (s.ok() && !r.data.empty()) {
    return Perform(core_->Said(connection, {r.data.data(), r.data.size()}));
  }
  connections_.erase(connection);
  Perform(core_->Closed(connection));
}

void NodeService::Perform(ServiceCore::Actions actions) {
  for (const ServiceAction& action : actions) Perform(action);
}

void NodeService::Perform(const ServiceAction& action) {
  Status s;
  switch (action.kind) {
    case ServiceAction::kSend:
      Send(action.connection, action.text);
      break;
    case ServiceAction::kClose:
      connections_.erase(action.connection);
      break;
    case ServiceAction::kWriteSecret:
      s = WriteSecretFile(core_->secret_path(), action.text);
      break;
    case ServiceAction::kStart:
      s = StartDaemon(action);
      break;
    case ServiceAction::kDial:
      dialed_ = action.arguments;
      give_up_ = Now() + seconds(core_->start_timeout_seconds());
      break;
    case ServiceAction::kStop:
      stopping_ = true;
      break;
  }
  if (!s.ok()) Perform(core_->Failed(s.message()));
}

void NodeService::Send(int connection, const std::string& text) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  // A rank that takes no message has gone; if not, it will see that the
  // connection is closed.
  if (!SendMessage(it->second.fd(), text.data(), text.size()).ok()) {
    shutdown(it->second.fd(), SHUT_RDWR);
  }
}

Status NodeService::StartDaemon(const ServiceAction& action) {
  const bool agent = action.name == kAgentName;
  Status s = logs_[action.name].Open(
      {.id = agent ? 2 : 1, .prefix = "[" + action.name + "] ", .sink = &log_});
  if (s.ok()) s = node_.StartDaemon(action.name, action.arguments);
  if (!s.ok()) return s;  // no daemon to wait for
  starting_ = action.name;
  give_up_ = Now() + seconds(core_->start_timeout_seconds());
  return s;
}

void NodeService::ReportReady() {
  if (starting_.empty()) return;
  const NodeCore::Daemon* daemon = node_.core().Find(starting_);
  if (daemon->ready) {
    starting_.clear();
    Perform(core_->Ready(daemon->name, daemon->announcement));
  } else if (Now() >= give_up_) {
    starting_.clear();
    FailForDaemon(FirstOf(node_.core().not_ready()) + " is not ready after " +
                  std::to_string(core_->start_timeout_seconds()) + " s");
  }
}

// Blocks for kDialSlice, and while names are resolved. Meanwhile the ranks can
// only wait anyway.
void NodeService::Dial() {
  std::string found;
  const std::vector<std::string> numbers = ResolveForOthers(dialed_);
  Status s(Code::kUnavailable,
           dialed_[0] +
               ": this name cannot be resolved, or leads to this machine "
               "itself (see /etc/hosts); set MAYPOLE_COORDINATOR, or correct "
               "the name");
  if (!numbers.empty()) s = FirstThatAccepts(numbers, kDialSlice, &found);
  if (s.ok()) {
    dialed_.clear();
    Perform(core_->Dialed(found));
  } else if (Now() >= give_up_) {
    dialed_.clear();
    Perform(core_->Failed("the job's coordinator was not reached within " +
                          std::to_string(core_->start_timeout_seconds()) +
                          " s: " + s.message()));
  }
}

void NodeService::OnDaemonLog(const std::string& daemon,
                              std::string_view bytes) {
  logs_[daemon].Take(bytes);
}

void NodeService::OnDaemonLost(const std::string& what, bool returns) {
  // Ranks that arrive in the meantime wait for the new daemon.
  if (!returns) FailForDaemon(what);
}

void NodeService::FailForDaemon(const std::string& what) {
  log_.Flush();
  const std::string last = LastLineOf(directory_ + "/" + kServiceLog);
  // Drops the reference to lines that the user does not see.
  Perform(core_->Failed(what.substr(0, what.find("; its last lines")) +
                        (last.empty() ? "" : ": " + last)));
}

// Executors of other nodes may still have work with their own ranks.
bool NodeService::OthersNeedCoordinator() const {
  const NodeCore::Daemon* coordinator = node_.core().Find(kCoordinatorName);
  if (coordinator == nullptr || !coordinator->ready || coordinator->ended) {
    return false;
  }
  HostPort at;
  return SplitHostPort(coordinator->announcement.listen, &at) &&
         (HasRemoteConnections("/proc/net/tcp", at.port) ||
          HasRemoteConnections("/proc/net/tcp6", at.port));
}

void NodeService::EndDaemons() {
  listener_.Reset();
  unlink((directory_ + "/" + kServiceSocket).c_str());
  End(kAgentName);
  // Nodes usually end at nearly the same time, so wait for the others first.
  // Launchers may kill us as soon as our last rank has gone.
  const Time deadline = Now() + kOthersLimit;
  bool alone = false;
  while (OthersNeedCoordinator()) {
    loop_.Poll(Now() + kTick);
    const bool awaited = !connections_.empty();
    if (alone || (awaited && Now() < deadline)) continue;
    // Ranks that wait for our cleanup need not wait longer for other nodes. The
    // lock is kept, because the next service of the job might need our port.
    EmptyServiceDirectory(directory_, kServiceLockFd);
    connections_.clear();
    alone = true;
  }
  End(kCoordinatorName);
}

void NodeService::End(const std::string& name) {
  if (node_.core().Find(name) == nullptr) return;
  node_.StopDaemon(name, SIGTERM);
  const Time deadline = Now() + kEndLimit;
  auto ended = [&] { return node_.core().Find(name)->ended; };
  while (!ended() && Now() < deadline) loop_.Poll(deadline);
  if (!ended()) node_.StopDaemon(name, SIGKILL);
}

}  // namespace maypole::launcher
