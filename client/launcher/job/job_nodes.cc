#include "client/launcher/job/job_nodes.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <utility>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/process/function_files.h"
#include "client/launcher/process/private_directory.h"
#include "client/launcher/process/process.h"
#include "common/address.h"
#include "common/program/secret_file.h"
#include "common/system/fd.h"

namespace maypole::launcher {
namespace {

// How long another host may take to end (node_core.h), plus the delay of the
// network.
constexpr EndLimit kHostLimit{std::chrono::milliseconds(7000),
                              std::chrono::milliseconds(400)};
// From the order to kill ranks until the host reports their end.
constexpr EndLimit kAnswerLimit{std::chrono::milliseconds(5000),
                                std::chrono::milliseconds(150)};
// Smaller ids belong to ranks, daemons and maypolerun itself.
constexpr int kFirstRemoteStream = kOwnStream + 1;

// Open files: for each process that it starts, maypolerun has pipes and the
// descriptor that signals its end (two without pidfds); daemons have their
// listening sockets and a few files per rank or node.
constexpr rlim_t kOwnFiles = 32, kFilesPerRank = 4, kFilesPerNode = 4;
constexpr rlim_t kDaemonFiles = 64;
// How much longer the ranks of an elastic job wait than maypolerun.
constexpr int kSlackSeconds = 10;

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

// Checked before anything is started, because an error in the middle of the
// start would say less.
Status CheckOpenFiles(const LauncherOptions& o, rlim_t limit) {
  std::vector<Host> nodes = o.hosts;
  // At first, all ranks of an elastic job may be here.
  if (o.elastic) nodes = {{.slots = o.ranks, .here = true}};
  if (!StartsDaemons(o) && !AnyElsewhere(nodes)) return Status();
  rlim_t ours = kOwnFiles + kFilesPerNode * nodes.size();
  rlim_t most = nodes.size();
  for (const Host& node : nodes) {
    if (!node.here) continue;
    const auto ranks = static_cast<rlim_t>(node.slots);
    ours += kFilesPerRank * ranks;
    most = std::max(most, ranks);
  }
  rlim_t daemons = kDaemonFiles + kFilesPerRank * most;
  rlim_t needed = std::max(ours, daemons);
  if (limit >= needed) return Status();
  return Status(
      Code::kResourceExhausted,
      "the limit of open files (ulimit -Hn) is " + std::to_string(limit) +
          ", but this job needs " + std::to_string(needed) +
          ": raise it (as root: ulimit -Hn " + std::to_string(needed) +
          "; permanently: nofile in /etc/security/limits.conf, or "
          "LimitNOFILE= of the service), or start fewer ranks");
}

}  // namespace

// A node on this machine. Its agent is started when the coordinator's address
// is known: the one that other hosts use, if there are any.
class JobNodes::NodeHere : public ElasticNode {
 public:
  NodeHere(JobNodes* owner, int node, Host host, OnLost on_lost)
      : owner_(owner),
        here_(owner->here_),
        node_(node),
        host_(std::move(host)),
        on_lost_(std::move(on_lost)) {}

  bool Ready() override {
    if (!added_) {
      if (!owner_->AllGreeted()) return false;
      added_ = true;
      const Status status = here_.AddNode(owner_->JobOf(node_, host_, nullptr),
                                          owner_->secret_file_);
      if (!status.ok()) {
        on_lost_(status.message());
        return false;
      }
    }
    if (here_.AgentIsLost(node_)) on_lost_(kAgentLost);
    // Null: the node uses an agent that already runs on this machine.
    const NodeCore::Daemon* const agent = here_.AgentOf(node_);
    return agent == nullptr || agent->ready;
  }
  std::string Standing() const override { return "not ready"; }
  void GiveUp(const std::string& why) override { on_lost_(why); }
  Status StartProcess(int process, int slot) override {
    return here_.StartProcess(node_, process, slot);
  }
  void SignalProcess(int process, int signal) override {
    here_.SignalRank(process, signal);
  }
  void Stop() override { here_.StopAgent(node_); }

 private:
  JobNodes* const owner_;
  NodeSupervisor& here_;
  const int node_;
  const Host host_;
  const OnLost on_lost_;
  bool added_ = false;
};

JobNodes::JobNodes(OutputLoop* loop, const LauncherOptions& options,
                   const Supervised& where, JobOutput* output,
                   NodeListener* listener)
    : loop_(loop),
      options_(options),
      output_(output),
      listener_(listener),
      remote_program_(options.remote_bin.empty()
                          ? OwnPath().string()
                          : options.remote_bin + "/maypolerun"),
      here_(loop, {.directory = where.directory,
                   .gives_stdin = true,
                   .raw_output = output->raw(),
                   .terminal_group = where.guard_group,
                   .others_ended = [this] { return !AwaitsHosts(); },
                   .listener = listener}),
      secret_file_(options.secret_file) {}

// --- The description of the job ----------------------------------------------

// If rank 0's host is another machine, the port is most likely free there.
std::string JobNodes::TorchStore() const {
  std::string host = kLoopbackAddress;
  if (HasOtherHosts()) {
    const Host& first = options_.hosts.front();
    const std::vector<std::string> own = OwnAddresses();
    host = first.here && !own.empty() ? own.front() : first.name;
  }
  return host + ":" + std::to_string(FreePort());
}

Status JobNodes::Describe() {
  const LauncherOptions& o = options_;
  common_.set_ranks(o.ranks);
  common_.set_nodes(static_cast<int>(o.hosts.size()));
  common_.set_job(JobId(o.job_name, RandomHex()));
  common_.set_token(RandomHex());
  common_.set_start_timeout_s(o.start_timeout_s);
  *common_.mutable_command() = {o.command.begin(), o.command.end()};
  common_.set_verbose(o.verbose);
  common_.set_start_agent(StartsDaemons(o));
  common_.set_running_agent(o.running_agents);
  common_.set_agent_socket(o.agent_socket);
  *common_.mutable_interfaces() = {o.interfaces.begin(), o.interfaces.end()};
  *common_.mutable_agent_flags() = {o.agent_flags.begin(), o.agent_flags.end()};
  common_.set_bind_gpus(o.bind_gpus);
  common_.set_horovod_shim(o.shim_directory);
  if (o.elastic) {
    common_.set_elastic(true);
    common_.set_min_size(o.elastic->min_size);
    common_.set_max_size(o.elastic->max_size);
    // Ranks wait somewhat longer than maypolerun, which reports why it gives
    // up.
    common_.set_start_timeout_s(
        std::max(o.start_timeout_s, o.elastic->timeout_s) + kSlackSeconds);
  } else {
    common_.set_torch_store(TorchStore());
  }
  if (!o.function_directory.empty()) {
    common_.set_function(FunctionFile(o.function_directory));
  }
  if (!HasOtherHosts()) return Status();
  std::string directory;
  const Status status = OwnDirectory(&directory);
  common_.set_directory(directory);
  return status;
}

// Whether the coordinator must be reached from other hosts.
bool JobNodes::HasOtherHosts() const {
  return (options_.elastic && !options_.elastic->discovery_script.empty()) ||
         AnyElsewhere(HostsOf(options_));
}

// Addresses at which the host (null: this machine) may reach the coordinator,
// the best one first.
std::vector<std::string> JobNodes::CoordinatorsFor(
    const RemoteNode* remote) const {
  if (!options_.coordinator.empty()) return {options_.coordinator};
  const std::string& listen = Coordinator()->announcement.listen;
  if (!HasOtherHosts()) return {listen};
  std::vector<std::string> addresses = OwnAddresses();
  if (remote == nullptr && !options_.elastic && !remotes_.empty()) {
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

NodeJob JobNodes::JobOf(int node, const Host& host,
                        const RemoteNode* remote) const {
  NodeJob job = common_;
  job.set_node(node);
  job.set_local_size(host.slots);
  if (!options_.elastic) {
    const auto& hosts = options_.hosts;
    job.set_first_rank(SlotsOf({hosts.begin(), hosts.begin() + node}));
  }
  if (!options_.networks.empty()) {
    job.set_network(options_.networks[static_cast<size_t>(node)]);
  }
  if (StartsDaemons(options_)) {
    for (const std::string& address : CoordinatorsFor(remote)) {
      // Agents on this machine use only the first address, which is the one for
      // other hosts if there are any.
      if (remote == nullptr && job.coordinators_size() > 0) break;
      job.add_coordinators(address);
    }
  }
  if (remote == nullptr) {
    job.clear_directory();
    return job;
  }
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const size_t equals = entry.find('=');
    if (equals != entry.npos && Travels(entry.substr(0, equals))) {
      job.add_environment(*e);
    }
  }
  job.set_host(MachineOf(host.name));
  job.set_secret(secret_);
  return job;
}

// --- The start ---------------------------------------------------------------

Status JobNodes::StartCoordinator() {
  Status status = CheckOpenFiles(options_, here_.files().rlim_max);
  for (const Host& host : options_.hosts) {
    std::string ssh;
    if (status.ok() && !host.here) status = RemoteNode::FindSsh(host, &ssh);
  }
  if (status.ok()) status = Describe();
  if (!status.ok() || !StartsDaemons(options_)) return status;
  if (!options_.coordinator.empty()) {
    if (secret_file_.empty() || !HasOtherHosts()) return Status();
    return ReadSecretFile(secret_file_, &secret_);
  }
  secret_ = RandomHex();
  secret_file_ = here_.directory() + "/secret";
  if (Status s = WriteSecretFile(secret_file_, secret_); !s.ok()) return s;
  CoordinatorSettings coordinator = {
      .secret_file = secret_file_,
      .start_timeout_s = options_.start_timeout_s,
      .fusion_threshold = options_.fusion_threshold,
      .verbose = options_.verbose,
      .flags = options_.coordinator_flags};
  if (HasOtherHosts()) coordinator.listen = AnyAddress() + ":0";
  return here_.StartDaemon(kCoordinatorName, CoordinatorArguments(coordinator));
}

const NodeCore::Daemon* JobNodes::Coordinator() const {
  return here_.core().Find(kCoordinatorName);
}

std::shared_ptr<ElasticNode> JobNodes::StartNode(int node, const Host& host,
                                                 OnLost on_lost) {
  if (host.here) {
    return std::make_shared<NodeHere>(this, node, host, std::move(on_lost));
  }
  auto remote = std::make_shared<RemoteNode>(
      loop_,
      RemoteNode::Settings{.host = host,
                           .name = NodeName(node),
                           .ssh = {.port = options_.ssh_port,
                                   .identity_file = options_.identity_file,
                                   .start_timeout_s = options_.start_timeout_s,
                                   .program = remote_program_},
                           .log = options_.verbose ? output_->err() : nullptr,
                           .log_stream_id = kFirstRemoteStream + streams_++,
                           .files = here_.files(),
                           .function = common_.function(),
                           .describe =
                               [this, node, host](const RemoteNode& r) {
                                 return JobOf(node, host, &r);
                               },
                           .listener = listener_,
                           .on_lost = on_lost});
  remotes_.push_back(remote);
  if (Status s = remote->Start(); !s.ok()) on_lost(s.message());
  return remote;
}

// When the first node is started, there are no remotes yet, so all nodes must
// have been started before this is called. An elastic job's nodes come one by
// one.
bool JobNodes::AllGreeted() const {
  return options_.elastic ||
         std::all_of(remotes_.begin(), remotes_.end(),
                     [](const auto& remote) { return remote->greeted(); });
}

std::vector<std::string> JobNodes::NotReady() const {
  std::vector<std::string> names = here_.core().not_ready();
  for (const auto& remote : remotes_) {
    if (remote->ready()) continue;
    names.push_back(remote->host().name +
                    (remote->greeted() ? "" : " (no answer through ssh)"));
  }
  return names;
}

std::vector<std::string> JobNodes::Summary() const {
  std::vector<std::string> lines = here_.core().Summary();
  if (Coordinator() != nullptr) {
    lines.push_back(
        "ask about this job: maypolectl --coordinator=" + AdminAddress() +
        " --secret_file=" + secret_file_ + " status");
  }
  for (const auto& remote : remotes_) {
    lines.push_back(remote->host().name + ": " + remote->agent());
  }
  return lines;
}

// The address at which maypolectl on this machine reaches our coordinator.
std::string JobNodes::AdminAddress() const {
  const std::string& listen = Coordinator()->announcement.listen;
  HostPort at;
  if (!SplitHostPort(listen, &at)) return listen;
  if (at.host == "0.0.0.0") at.host = "127.0.0.1";
  if (at.host == "::") at.host = "::1";
  return JoinHostPort(at.host, at.port);
}

Status JobNodes::WriteEndpoints() const {
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
  std::ofstream file(partial);
  file << text;
  file.close();
  if (file && rename(partial.c_str(), options_.endpoints_file.c_str()) == 0) {
    return Status();
  }
  Status status = ErrnoStatus(
      errno, "cannot write " + options_.endpoints_file + " (--endpoints-file)");
  unlink(partial.c_str());
  return status;
}

// --- All nodes ---------------------------------------------------------------

void JobNodes::SignalRanks(int signal, bool from_terminal) {
  if (signal == 0) return;
  here_.SignalRanks(signal, from_terminal);
  for (const auto& remote : remotes_) {
    remote->SignalAll(signal, here_.core().hurried());
  }
  if (signal == SIGKILL && !answer_by_) {
    answer_by_ = Now() + Within(kAnswerLimit);
  }
}

void JobNodes::Hurry() {
  here_.Hurry();
  for (const auto& remote : remotes_) remote->Hurry();
}

std::optional<Time> JobNodes::deadline() const {
  std::optional<Time> first = Earlier(here_.deadline(), answer_by_);
  if (end_began_ && AwaitsHosts()) {
    first = Earlier(first, *end_began_ + Within(kHostLimit));
  }
  return first;
}

void JobNodes::OnTime(Time now) {
  here_.OnTime(now);
  GiveUpSilentHosts(now);
  // Removes the nodes that ElasticJob has dropped.
  std::erase_if(remotes_, [](const auto& remote) {
    return remote.use_count() == 1 && remote->ended();
  });
}

// Gives up hosts that were asked to kill their ranks and have not reported the
// end in time.
void JobNodes::GiveUpSilentHosts(Time now) {
  if (!answer_by_ || now < *answer_by_) return;
  if (loop_->OutletsFull() && !here_.core().hurried()) {
    // We do not read from hosts while our own output is blocked, by a pager for
    // example: allow more time.
    answer_by_ = now + kAnswerLimit.normal;
    return;
  }
  answer_by_ = std::nullopt;
  for (const auto& remote : remotes_) {
    if (remote->runs_processes()) remote->GiveUp("it does not answer");
  }
}

bool JobNodes::AwaitsHosts() const {
  return std::any_of(remotes_.begin(), remotes_.end(),
                     [](const auto& remote) { return !remote->ended(); });
}

std::vector<pid_t> JobNodes::End() {
  for (const auto& remote : remotes_) remote->Stop();
  end_began_ = Now();
  return here_.End();
}

bool JobNodes::ended(Time now) const {
  return here_.core().ended() &&
         (!AwaitsHosts() || now >= *end_began_ + Within(kHostLimit));
}

void JobNodes::Close() {
  if (AwaitsHosts()) KillDescendants({}, kKillLimit.normal);
  remotes_.clear();
}

}  // namespace maypole::launcher
