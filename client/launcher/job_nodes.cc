// The nodes of a job: daemons here, maypoleruns on other hosts, endpoints.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "client/launcher/job.h"
#include "client/launcher/own_addresses.h"
#include "client/launcher/private_directory.h"
#include "client/launcher/rank_start.h"

namespace maypole::launcher {
namespace {

constexpr char kCoordinator[] = "coordinator";

std::string PortOf(const std::string& address) {
  return address.substr(address.rfind(':') + 1);
}

// Where the coordinator listens if other hosts shall reach it. One socket of
// IPv6 takes both kinds, but not where the kernel has no IPv6.
std::string ListenForOthers() {
  for (const std::string& address : OwnAddresses()) {
    if (address.find(':') != std::string::npos) return "[::]:0";
  }
  return "0.0.0.0:0";
}

Status ReadSecret(const std::string& path, std::string* secret) {
  std::ifstream file(path);
  if (std::getline(file, *secret)) return Status();
  return Status(Code::kFailedPrecondition,
                "cannot read the secret in " + path + " (--secret-file)");
}

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

}  // namespace

Status Job::StartNodes() {
  Time deadline = std::chrono::steady_clock::now() +
                  std::chrono::seconds(options_.start_timeout_s);
  environment_.ranks = options_.ranks;
  environment_.nodes = options_.nodes;
  environment_.job = JobId(options_.job_name, RandomHex());
  environment_.token = RandomHex();
  environment_.start_timeout_s = options_.start_timeout_s;
  environment_.usable_cores = UsableCores();
  environment_.ranks_here = 0;
  const std::vector<int> ranks = RanksByNode(options_);
  for (int node = 0; node < options_.nodes; ++node) {
    if (NodeIsHere(options_, node)) environment_.ranks_here += ranks[node];
  }
  std::string secret_file = options_.secret_file;
  Status status = StartRemotes();
  if (status.ok()) status = StartCoordinator(&secret_file);
  if (status.ok()) status = WaitFor(&Job::NodesMayBeTold, deadline);
  if (status.ok()) status = StartAgents(secret_file);
  if (status.ok()) status = TellRemotes();
  if (status.ok()) status = WaitFor(&Job::NodesAreReady, deadline);
  if (!status.ok()) return status;
  if (options_.verbose) {
    if (daemons_) {
      for (const std::string& line : daemons_->Summary()) Say(line);
      if (options_.coordinator.empty()) {
        Say("ask about this job: maypolectl --coordinator=" + AdminAddress() +
            " --secret_file=" + secret_file + " status");
      }
    }
    for (const auto& remote : remotes_) {
      Say(remote->host().name + ": " + remote->agent());
    }
  }
  return WriteEndpoints();
}

Status Job::StartRemotes() {
  int first_rank = 0;
  for (int node = 0; node < static_cast<int>(options_.hosts.size()); ++node) {
    const Host& host = options_.hosts[static_cast<size_t>(node)];
    int first = first_rank;
    first_rank += host.ranks;
    if (host.here) continue;
    const size_t number = remotes_.size();
    remotes_.push_back(std::make_unique<RemoteNode>(
        &loop_,
        RemoteNode::Settings{
            .host = host,
            .node = node,
            .first_rank = first,
            .ssh = {.port = options_.ssh_port,
                    .identity_file = options_.identity_file,
                    .start_timeout_s = options_.start_timeout_s,
                    .program = settings_.remote_program},
            .log = err_sink_,
            // After those of ranks and daemons.
            .first_stream_id = 2 * options_.ranks + options_.nodes + 1 +
                               2 * static_cast<int>(number),
            .verbose = options_.verbose,
            .files = files_},
        EventsOf(number)));
    Status status = remotes_.back()->Start();
    if (!status.ok()) return status;
  }
  return Status();
}

RemoteNode::Events Job::EventsOf(size_t number) {
  // Null: not started. Before StartRanks() nobody may speak of ranks; after a
  // failure of it some are missing.
  auto rank_of = [this, number](int rank) -> Rank* {
    if (ranks_.empty()) {
      remotes_[number]->GiveUp("it speaks of ranks that were not started");
    }
    const auto index = static_cast<size_t>(rank);
    if (index >= ranks_.size() || !ranks_[index]->out) return nullptr;
    return ranks_[index].get();
  };
  return {.on_rank_started =
              [this, rank_of](int rank, pid_t pid) {
                Rank* r = rank_of(rank);
                if (r == nullptr) return;
                r->pid = pid;
                if (options_.verbose) Say(Who(rank) + " started");
              },
          .on_output =
              [rank_of](int rank, int stream, std::string_view bytes) {
                Rank* r = rank_of(rank);
                if (r == nullptr) return;
                (stream == 0 ? r->out : r->err)->Take(bytes);
              },
          .on_rank_ended =
              [this, rank_of](int rank, Exit exit) {
                Rank* r = rank_of(rank);
                if (r != nullptr) OnRankEnded(r, exit);
              },
          .on_daemon_lost =
              [this, number](const std::string& what) {
                OnDaemonLost(remotes_[number]->host().name + ": " + what);
              },
          .on_lost =
              [this, number](const std::string& why) {
                OnHostLost(*remotes_[number], why);
              }};
}

Status Job::StartCoordinator(std::string* secret_file) {
  if (!StartsDaemons(options_)) return Status();
  daemons_ = std::make_unique<Daemons>(
      &loop_,
      Daemons::Settings{
          .log = err_sink_,
          .first_stream_id = 2 * options_.ranks,
          .files = {.rlim_cur = files_.rlim_max, .rlim_max = files_.rlim_max},
          .on_lost = [this](const std::string& what) { OnDaemonLost(what); }});
  if (!options_.coordinator.empty()) {
    if (secret_file->empty() || remotes_.empty()) return Status();
    return ReadSecret(*secret_file, &secret_);
  }
  secret_ = RandomHex();
  *secret_file = settings_.where.directory + "/secret";
  Status status = WriteSecretFile(*secret_file, secret_);
  if (!status.ok()) return status;
  CoordinatorSettings coordinator = {
      .secret_file = *secret_file,
      .start_timeout_s = options_.start_timeout_s,
      .fusion_threshold = options_.fusion_threshold,
      .verbose = options_.verbose};
  if (!remotes_.empty()) coordinator.listen = ListenForOthers();
  return daemons_->Start(kCoordinator, CoordinatorArguments(coordinator));
}

// As a host (or, without one, this machine) may reach it; the best first.
std::vector<std::string> Job::CoordinatorsFor(const RemoteNode* remote) const {
  if (!options_.coordinator.empty()) return {options_.coordinator};
  const std::string& listen = daemons_->announcement(kCoordinator).listen;
  if (remotes_.empty()) return {listen};
  std::vector<std::string> addresses = OwnAddresses();
  std::string seen = (remote ? remote : remotes_[0].get())->head_address();
  auto at = std::find(addresses.begin(), addresses.end(), seen);
  if (at != addresses.end()) {
    std::rotate(addresses.begin(), at, at + 1);
  } else if (remote != nullptr && !seen.empty() && !IsThisMachine(seen)) {
    // Not ours: another machine passes on to us what is sent there.
    addresses.insert(addresses.begin(), seen);
  }
  // The other hosts are this machine by another name.
  if (addresses.empty()) addresses.push_back("127.0.0.1");
  std::vector<std::string> out;
  for (const std::string& address : addresses) {
    out.push_back(WithPort(address, PortOf(listen)));
  }
  return out;
}

Status Job::Network(int node, std::string* network) const {
  if (!options_.networks.empty()) {
    *network = options_.networks[static_cast<size_t>(node)];
  } else if (!options_.interfaces.empty() && NodeIsHere(options_, node)) {
    return AddressOfInterface(options_.interfaces, network);
  }
  return Status();
}

// The agents of the nodes here.
Status Job::StartAgents(const std::string& secret_file) {
  if (StartsDaemons(options_) || options_.running_agents) {
    environment_.agents.resize(static_cast<size_t>(options_.nodes));
  }
  for (int node = 0; node < options_.nodes; ++node) {
    if (!NodeIsHere(options_, node)) continue;
    if (options_.running_agents) {
      std::string& agent = environment_.agents[static_cast<size_t>(node)];
      agent = options_.agent_socket;
      Status status = FindRunningAgent(&agent);
      if (!status.ok()) return status;
    }
    if (!StartsDaemons(options_)) continue;
    std::string name = NodeName(node);
    std::string socket = settings_.where.directory + "/" + name + ".sock";
    std::string network;
    Status status = Network(node, &network);
    if (!status.ok()) return status;
    status = daemons_->Start(
        name, WorkerArguments({.node = name,
                               .socket = socket,
                               // Through the network's address, if there are
                               // other hosts: it is the one they shall use.
                               .coordinator = CoordinatorsFor(nullptr).front(),
                               .secret_file = secret_file,
                               .network = network,
                               .start_timeout_s = options_.start_timeout_s,
                               .verbose = options_.verbose}));
    if (!status.ok()) return status;
    environment_.agents[static_cast<size_t>(node)] = socket;
  }
  return Status();
}

Status Job::TellRemotes() {
  std::error_code error;
  std::string directory = std::filesystem::current_path(error).string();
  if (error) {
    return Status(Code::kFailedPrecondition,
                  "the directory we are in is gone: " + error.message());
  }
  // As the user has come here: a link may be the same on all hosts.
  const char* pwd = getenv("PWD");
  if (pwd != nullptr && std::filesystem::equivalent(pwd, directory, error)) {
    directory = pwd;
  }
  for (const auto& remote : remotes_) {
    NodeJob job = {.host = MachineOf(remote->host().name),
                   .node = remote->node(),
                   .nodes = options_.nodes,
                   .ranks = options_.ranks,
                   .first_rank = remote->first_rank(),
                   .local_size = remote->host().ranks,
                   .job = environment_.job,
                   .token = environment_.token,
                   .start_timeout_s = options_.start_timeout_s,
                   .directory = directory,
                   .environment = TravellingEnvironment(),
                   .command = options_.command,
                   .verbose = options_.verbose,
                   .start_agent = StartsDaemons(options_),
                   .running_agent = options_.running_agents,
                   .agent_socket = options_.agent_socket,
                   .secret = secret_,
                   .interfaces = options_.interfaces};
    if (StartsDaemons(options_)) job.coordinators = CoordinatorsFor(&*remote);
    Status status = Network(remote->node(), &job.network);
    if (!status.ok()) return status;
    remote->Send(job);
  }
  return Status();
}

bool Job::NodesMayBeTold() const {
  return (!daemons_ || daemons_->all_ready()) &&
         std::all_of(remotes_.begin(), remotes_.end(),
                     [](const auto& remote) { return remote->greeted(); });
}

bool Job::NodesAreReady() const {
  return (!daemons_ || daemons_->all_ready()) &&
         std::all_of(remotes_.begin(), remotes_.end(),
                     [](const auto& remote) { return remote->ready(); });
}

std::string Job::NotReady() const {
  std::string names = daemons_ ? daemons_->not_ready() : "";
  for (const auto& remote : remotes_) {
    if (remote->ready()) continue;
    names += (names.empty() ? "" : ", ") + remote->host().name +
             (remote->greeted() ? "" : " (no answer through ssh)");
  }
  return names;
}

Status Job::WaitFor(bool (Job::*done)() const, Time deadline) {
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
                    NotReady() + " not ready after " +
                        std::to_string(options_.start_timeout_s) +
                        " s (--start-timeout); --verbose shows its log");
    }
    Round(deadline);
  }
}

// Of the daemons here: what listens on another host's loopback is of no use.
// Where maypolectl on this machine reaches our coordinator.
std::string Job::AdminAddress() const {
  const std::string& listen = daemons_->announcement(kCoordinator).listen;
  const std::string port = listen.substr(listen.rfind(':'));
  if (listen.starts_with("0.0.0.0:")) return "127.0.0.1" + port;
  return listen.starts_with("[::]:") ? "[::1]" + port : listen;
}

Status Job::WriteEndpoints() {
  if (options_.endpoints_file.empty()) return Status();
  std::string text;
  auto add = [&](const std::string& name) {
    const std::string& metrics = daemons_->announcement(name).metrics;
    if (!metrics.empty()) text += name + "=" + metrics + "\n";
  };
  if (daemons_ && options_.coordinator.empty()) {
    text += "admin=" + AdminAddress() + "\n";
    add(kCoordinator);
  }
  for (int node = 0; daemons_ && node < options_.nodes; ++node) {
    if (NodeIsHere(options_, node)) add(NodeName(node));
  }
  // Renamed into place: whoever waits for the file finds it complete.
  std::string partial =
      options_.endpoints_file + "." + std::to_string(getpid());
  FILE* file = fopen(partial.c_str(), "we");
  bool written = file != nullptr && fputs(text.c_str(), file) >= 0;
  written = file != nullptr && fclose(file) == 0 && written;
  if (!written ||
      rename(partial.c_str(), options_.endpoints_file.c_str()) != 0) {
    return ErrnoStatus(errno, "cannot write " + options_.endpoints_file +
                                  " (--endpoints-file)");
  }
  return Status();
}

}  // namespace maypole::launcher
