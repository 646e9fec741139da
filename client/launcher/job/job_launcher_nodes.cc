// JobLauncher, starting the nodes of a job: daemons on this machine, maypolerun
// processes on other hosts, and the endpoints file.
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/job/job_launcher.h"
#include "client/launcher/process/function_files.h"
#include "client/launcher/process/private_directory.h"
#include "common/address.h"
#include "common/program/secret_file.h"
#include "common/system/fd.h"

namespace maypole::launcher {
namespace {

// Smaller ids belong to ranks, daemons and maypolerun itself.
constexpr int kFirstRemoteStream = kOwnStream + 1;

std::vector<std::string> TravellingEnvironment() {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string_view entry = *e;
    size_t equals = entry.find('=');
    if (equals == entry.npos || !Travels(entry.substr(0, equals))) continue;
    environment.emplace_back(entry);
  }
  return environment;
}

// The current directory by the path that the user entered: its symbolic links
// may exist on all hosts while the real path differs.
Status OwnDirectory(std::string* out) {
  std::error_code error;
  *out = std::filesystem::current_path(error).string();
  if (error) {
    return Status(Code::kFailedPrecondition,
                  "the current directory no longer exists: " + error.message());
  }
  const char* pwd = getenv("PWD");
  if (pwd != nullptr && std::filesystem::equivalent(pwd, *out, error)) {
    *out = pwd;
  }
  return Status();
}

// A port that is free on this machine now; 0 if there is none.
int FreePort() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), any, size) != 0 ||
      getsockname(fd.get(), any, &size) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

}  // namespace

// The port is free on rank 0's host most likely, if that is another machine.
std::string JobLauncher::TorchStore() const {
  std::string host = kLoopbackAddress;
  if (HasOtherHosts()) {
    const Host& first = options_.hosts.front();
    const std::vector<std::string> own = OwnAddresses();
    host = first.here && !own.empty() ? own.front() : first.name;
  }
  return host + ":" + std::to_string(FreePort());
}

Status JobLauncher::DescribeJob() {
  common_.set_ranks(options_.ranks);
  common_.set_nodes(options_.nodes);
  common_.set_job(JobId(options_.job_name, RandomHex()));
  common_.set_token(RandomHex());
  common_.set_start_timeout_s(options_.start_timeout_s);
  *common_.mutable_command() = {options_.command.begin(),
                                options_.command.end()};
  common_.set_verbose(options_.verbose);
  common_.set_start_agent(StartsDaemons(options_));
  common_.set_running_agent(options_.running_agents);
  common_.set_agent_socket(options_.agent_socket);
  *common_.mutable_interfaces() = {options_.interfaces.begin(),
                                   options_.interfaces.end()};
  *common_.mutable_agent_flags() = {options_.agent_flags.begin(),
                                    options_.agent_flags.end()};
  common_.set_bind_gpus(options_.bind_gpus);
  common_.set_horovod_shim(options_.shim_directory);
  if (!options_.elastic) common_.set_torch_store(TorchStore());
  if (!options_.function_directory.empty()) {
    common_.set_function(FunctionFile(options_.function_directory));
  }
  return HasOtherHosts() ? OwnDirectory(&directory_) : Status();
}

Status JobLauncher::StartNodes() {
  const Time deadline = std::chrono::steady_clock::now() +
                        std::chrono::seconds(options_.start_timeout_s);
  Status status = DescribeJob();
  std::string secret_file = options_.secret_file;
  start_.Begin(std::chrono::steady_clock::now());
  if (status.ok()) status = StartRemotes();
  if (status.ok()) status = StartCoordinator(&secret_file);
  if (status.ok()) status = WaitFor(&JobLauncher::NodesMayBeTold, deadline);
  if (status.ok()) status = TellNodes(secret_file);
  if (status.ok()) status = WaitFor(&JobLauncher::NodesAreReady, deadline);
  EndStart("");
  if (!status.ok()) return status;
  if (options_.verbose) {
    for (const std::string& line : here_.core().Summary()) Say(line);
    if (Coordinator() != nullptr) {
      Say("ask about this job: maypolectl --coordinator=" + AdminAddress() +
          " --secret_file=" + secret_file + " status");
    }
    for (const auto& remote : remotes_) {
      Say(remote->host().name + ": " + remote->agent());
    }
  }
  return WriteEndpoints();
}

Status JobLauncher::StartRemotes() {
  int first_rank = 0;
  for (int node = 0; node < static_cast<int>(options_.hosts.size()); ++node) {
    const Host& host = options_.hosts[static_cast<size_t>(node)];
    int first = first_rank;
    first_rank += host.ranks;
    if (host.here) continue;
    const size_t number = remotes_.size();
    remotes_.push_back(
        Connect(host, node, first, [this, number](const std::string& why) {
          OnHostLost(*remotes_[number], why);
        }));
    Status status = Begin(remotes_.back().get());
    if (!status.ok()) return status;
  }
  return Status();
}

std::unique_ptr<RemoteNode> JobLauncher::Connect(const Host& host, int node,
                                                 int first_rank,
                                                 RemoteNode::OnLost lost) {
  return std::make_unique<RemoteNode>(
      &loop_,
      RemoteNode::Settings{
          .host = host,
          .node = node,
          .first_rank = first_rank,
          .ssh = {.port = options_.ssh_port,
                  .identity_file = options_.identity_file,
                  .start_timeout_s = options_.start_timeout_s,
                  .program = settings_.remote_program},
          .log = err_sink_,
          .log_stream_id = kFirstRemoteStream + remote_streams_++,
          .verbose = options_.verbose,
          .files = here_.files()},
      EventsOf(host.name), std::move(lost));
}

Status JobLauncher::Begin(RemoteNode* remote) const {
  Status status = remote->Start();
  if (!status.ok() || options_.function_directory.empty()) return status;
  return ReadInParts(
      FunctionFile(options_.function_directory), [&](std::string_view part) {
        ToNode message;
        message.mutable_function_part()->set_bytes(std::string(part));
        remote->Send(message);
      });
}

Status JobLauncher::StartCoordinator(std::string* secret_file) {
  if (!StartsDaemons(options_)) return Status();
  if (!options_.coordinator.empty()) {
    if (secret_file->empty() || !HasOtherHosts()) return Status();
    return ReadSecretFile(*secret_file, &secret_);
  }
  secret_ = RandomHex();
  *secret_file = settings_.where.directory + "/secret";
  Status status = WriteSecretFile(*secret_file, secret_);
  if (!status.ok()) return status;
  CoordinatorSettings coordinator = {
      .secret_file = *secret_file,
      .start_timeout_s = options_.start_timeout_s,
      .fusion_threshold = options_.fusion_threshold,
      .verbose = options_.verbose,
      .flags = options_.coordinator_flags};
  if (HasOtherHosts()) coordinator.listen = AnyAddress() + ":0";
  return here_.StartDaemon(kCoordinatorName, CoordinatorArguments(coordinator));
}

const NodeCore::Daemon* JobLauncher::Coordinator() const {
  return here_.core().Find(kCoordinatorName);
}

// Whether the coordinator must be reached from other hosts.
bool JobLauncher::HasOtherHosts() const {
  const std::vector<Host>& hosts =
      options_.elastic ? options_.elastic->hosts : options_.hosts;
  return (options_.elastic && !options_.elastic->discovery_script.empty()) ||
         std::any_of(hosts.begin(), hosts.end(),
                     [](const Host& host) { return !host.here; });
}

// Addresses at which the host (null: this machine) may reach the coordinator,
// the best one first.
std::vector<std::string> JobLauncher::CoordinatorsFor(
    const RemoteNode* remote) const {
  if (!options_.coordinator.empty()) return {options_.coordinator};
  const std::string& listen = Coordinator()->announcement.listen;
  if (!HasOtherHosts()) return {listen};
  std::vector<std::string> addresses = OwnAddresses();
  if (remote == nullptr && !elastic_ && !remotes_.empty()) {
    remote = remotes_[0].get();
  }
  std::string seen = remote == nullptr ? "" : remote->head_address();
  auto at = std::find(addresses.begin(), addresses.end(), seen);
  if (at != addresses.end()) {
    std::rotate(addresses.begin(), at, at + 1);
  } else if (remote != nullptr && !seen.empty() && !IsThisMachine(seen)) {
    // Not an address of this machine: another machine (NAT) forwards it to us.
    addresses.insert(addresses.begin(), seen);
  }
  // Without any network, the other hosts are this machine by another name.
  if (addresses.empty()) addresses.push_back("127.0.0.1");
  HostPort own;
  if (!SplitHostPort(listen, &own)) return {listen};
  std::vector<std::string> out;
  for (const std::string& address : addresses) {
    out.push_back(JoinHostPort(address, own.port));
  }
  return out;
}

NodeJob JobLauncher::JobOf(int node, const RemoteNode* remote) const {
  NodeJob job = common_;
  const std::vector<int> ranks = RanksByNode(options_);
  const auto index = static_cast<size_t>(node);
  job.set_node(node);
  job.set_first_rank(std::accumulate(
      ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(index), 0));
  job.set_local_size(ranks[index]);
  if (!options_.networks.empty()) job.set_network(options_.networks[index]);
  if (!StartsDaemons(options_)) return job;
  SetCoordinators(remote, &job);
  return job;
}

void JobLauncher::SetCoordinators(const RemoteNode* remote,
                                  NodeJob* job) const {
  const std::vector<std::string> coordinators = CoordinatorsFor(remote);
  // Agents on this machine use only the first address, which is the one for
  // other hosts if there are any.
  const size_t tried = remote == nullptr ? 1 : coordinators.size();
  *job->mutable_coordinators() = {
      coordinators.begin(),
      coordinators.begin() + static_cast<ptrdiff_t>(tried)};
}

Status JobLauncher::TellNodes(const std::string& secret_file) {
  for (int node = 0; node < options_.nodes; ++node) {
    if (!NodeIsHere(options_, node)) continue;
    Status status = here_.AddNode(JobOf(node, nullptr), secret_file);
    if (!status.ok()) return status;
  }
  for (const auto& remote : remotes_) {
    ToNode message;
    *message.mutable_job() =
        JobOfRemote(JobOf(remote->node(), remote.get()), *remote);
    remote->Send(message);
  }
  return Status();
}

NodeJob JobLauncher::JobOfRemote(NodeJob job, const RemoteNode& remote) const {
  const std::vector<std::string> environment = TravellingEnvironment();
  job.set_host(MachineOf(remote.host().name));
  job.set_directory(directory_);
  *job.mutable_environment() = {environment.begin(), environment.end()};
  job.set_secret(secret_);
  return job;
}

bool JobLauncher::NodesMayBeTold() const {
  return here_.core().all_ready() &&
         std::all_of(remotes_.begin(), remotes_.end(),
                     [](const auto& remote) { return remote->greeted(); });
}

bool JobLauncher::NodesAreReady() const {
  return here_.core().all_ready() &&
         std::all_of(remotes_.begin(), remotes_.end(),
                     [](const auto& remote) { return remote->ready(); });
}

std::vector<std::string> JobLauncher::NotReady() const {
  std::vector<std::string> names = here_.core().not_ready();
  for (const auto& remote : remotes_) {
    if (remote->ready()) continue;
    names.push_back(remote->host().name +
                    (remote->greeted() ? "" : " (no answer through ssh)"));
  }
  return names;
}

Status JobLauncher::WaitFor(bool (JobLauncher::*done)() const, Time deadline) {
  while (true) {
    if (supervision_.interrupted()) {
      return Status(Code::kCancelled, "stopped before the ranks were started");
    }
    if (!lost_daemon_.empty() ||
        std::any_of(remotes_.begin(), remotes_.end(),
                    [](const auto& remote) { return remote->lost(); })) {
      return Status(Code::kUnavailable, "the job was not started");
    }
    if ((this->*done)()) return Status();
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    FirstOf(NotReady()) + " not ready after " +
                        std::to_string(options_.start_timeout_s) +
                        " s (--start-timeout); --verbose shows its log");
    }
    Round(deadline);
  }
}

// The address at which maypolectl on this machine reaches our coordinator.
std::string JobLauncher::AdminAddress() const {
  const std::string& listen = Coordinator()->announcement.listen;
  HostPort at;
  if (!SplitHostPort(listen, &at)) return listen;
  if (at.host == "0.0.0.0") at.host = "127.0.0.1";
  if (at.host == "::") at.host = "::1";
  return JoinHostPort(at.host, at.port);
}

Status JobLauncher::WriteEndpoints() {
  if (options_.endpoints_file.empty()) return Status();
  std::string text;
  if (Coordinator() != nullptr) text += "admin=" + AdminAddress() + "\n";
  // Only daemons of this machine: those of other hosts listen on loopback.
  for (const NodeCore::Daemon& daemon : here_.core().daemons()) {
    const std::string& metrics = daemon.announcement.metrics;
    if (!metrics.empty()) text += daemon.name + "=" + metrics + "\n";
  }
  // Renamed into place, so that a reader never sees an incomplete file.
  std::string partial =
      options_.endpoints_file + "." + std::to_string(getpid());
  FILE* file = fopen(partial.c_str(), "we");
  bool written = file != nullptr && fputs(text.c_str(), file) >= 0;
  written = file != nullptr && fclose(file) == 0 && written;
  if (written &&
      rename(partial.c_str(), options_.endpoints_file.c_str()) == 0) {
    return Status();
  }
  Status status = ErrnoStatus(
      errno, "cannot write " + options_.endpoints_file + " (--endpoints-file)");
  if (file != nullptr) unlink(partial.c_str());
  return status;
}

}  // namespace maypole::launcher
