#include "client/launcher/command/options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "client/bootstrap/rank_variables.h"
#include "client/gpu/gpu_site.h"
#include "client/launcher/command/config_file.h"
#include "client/launcher/command/elastic_options.h"
#include "client/launcher/command/horovod_options.h"
#include "client/launcher/command/usage.h"
#include "client/launcher/hosts/ssh.h"
#include "common/address.h"
#include "common/checksum/checksum_mode.h"
#include "common/command_line/command_line.h"
#include "common/encryption_mode.h"
#include "common/name.h"
#include "common/version.h"

namespace maypole::launcher {
namespace {

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

// The command line, before options are checked against each other.
struct Given {
  std::string config_file;
  int nodes = 0;             // 0: not given
  int start_timeout_s = 0;   // 0: not given
  int64_t arena_bytes = -1;  // -1: not given
  std::string gpu_site;      // here and below, empty: not given
  std::string checksums;
  std::string encryption;
  std::vector<std::string> job_names;   // one for each --job-name
  std::vector<std::string> host_lists;  // one for each -H
  std::vector<std::string> host_files;  // one for each --hostfile
  std::vector<Host> hosts;              // from host_lists or host_files
  ElasticGiven elastic;
  HorovodGiven horovod;
};

// A mode; the option alone means `alone`.
OptionValue ModeValue(std::string* out, std::string alone) {
  OptionValue value = TextValue(out, "MODE");
  value.optional = true;
  value.store = [out, alone](const std::string& text) {
    *out = text.empty() ? alone : text;
    return true;
  };
  return value;
}

void DefineRanks(Given* given, LauncherOptions* o, CommandLine* line) {
  line->Add({"-np", "-n", "--num-proc"},
            IntegerValue(&o->ranks, 1, kMaxRanks)
                .WithDefault("all slots of -H or --hostfile"),
            "number of ranks to start");
  line->Add({"-H", "--hosts"},
            RepeatedValue(&given->host_lists, "HOST:SLOTS,..."),
            "hosts to run on: [user@]HOST:SLOTS, 1 slot without :SLOTS. Ranks "
            "fill one host after the other; hosts other than this one are "
            "reached by ssh");
  OptionValue host_files = RepeatedValue(&given->host_files, "FILE");
  host_files.file = true;
  line->Add({"--hostfile", "--host-file"}, std::move(host_files),
            "file with the hosts, one \"HOST slots=N\" per line; # starts a "
            "comment");
  line->Add({"-p", "--ssh-port"},
            IntegerValue(&o->ssh_port, 1, 65535)
                .WithName("PORT")
                .WithDefault("ssh's own"),
            "port of sshd on the hosts");
  line->Add({"-i", "--ssh-identity-file"}, FileValue(&o->identity_file),
            "private key for ssh");
  line->Add({"--remote-bin"},
            FileValue(&o->remote_bin, "DIR").WithDefault("the same as here"),
            "directory of maypolerun on the other hosts");
  line->Add({"--nodes"},
            IntegerValue(&given->nodes, 1, kMaxNodes).WithDefault("1"),
            "nodes (executors) on this machine to spread the ranks over, node "
            "by node: with -np 3 --nodes 2 node 0 has ranks 0,1 and node 1 has "
            "rank 2");
}

void DefineJob(Given* given, LauncherOptions* o, CommandLine* line) {
  line->Add({"--job-name"}, RepeatedValue(&given->job_names, "NAME"),
            "name of the job for operators: its id is NAME and a random "
            "number");
  line->Add({"--coordinator"}, TextValue(&o->coordinator, "HOST:PORT,..."),
            "connect to this coordinator, or to the leader of several, instead "
            "of starting one");
  line->Add({"--secret-file"}, FileValue(&o->secret_file),
            "file with the cluster secret of --coordinator");
  line->Add({"--agent"},
            OptionalTextValue(&o->running_agents, &o->agent_socket, "SOCKET"),
            "use the maypole-worker daemons that run on the hosts, and their "
            "coordinator, instead of starting them");
  line->Add({"--network-addresses"}, ListValue(&o->networks, "A,B,..."),
            "IP address of each node, one per node");
  line->Add({"--network-interfaces"}, ListValue(&o->interfaces, "E,F,..."),
            "each node uses those of these network interfaces that it has, up "
            "to 4 at once; all nodes need the same number");
  line->Add({"--start-timeout"},
            IntegerValue(&given->start_timeout_s, 1, kMaxStartTimeout)
                .WithName("SECONDS")
                .WithDefault("$MAYPOLE_START_TIMEOUT, else "
                             "$HOROVOD_START_TIMEOUT, else 120"),
            "how long to wait until all ranks have started");
  line->Add(
      {"--stop-timeout"},
      IntegerValue(&o->stop_timeout_s, 0, kMaxStartTimeout).WithName("SECONDS"),
      "how long ranks may take to end when maypolerun gets SIGTERM, "
      "which it passes on to them, for a checkpoint say; then they are "
      "killed");
  line->Add(
      {"--gpu-site"},
      TextValue(&given->gpu_site, "SITE")
          .WithDefault("$MAYPOLE_GPU_SITE, else auto"),
      "where operations on CUDA tensors run: auto (client where each rank "
      "of a node has a GPU of its own and NCCL can be used, else agent), "
      "agent (in the executor of the node, on memory that ranks share with "
      "it), client (NCCL in the ranks, one for each GPU), host (copied "
      "through host memory, as what the others cannot do); the ranks' "
      "MAYPOLE_GPU_SITE");
  line->Add({"--checksums"}, ModeValue(&given->checksums, "1"),
            "compare the ranks' copies of each result by their checksums: a "
            "difference ends the job and names rank and tensor (1, the "
            "default), or is only reported (warn); the ranks' "
            "MAYPOLE_CHECKSUMS");
  line->Add({"--encrypt"}, ModeValue(&given->encryption, "require"),
            "encrypt what goes from executor to executor: a node or a "
            "coordinator to which something would go in the clear ends the job "
            "(require, the default), or stays in the clear (on); the ranks' "
            "MAYPOLE_NETWORK_ENCRYPTION");
  line->Add({"--bind-gpus"}, SwitchValue(&o->bind_gpus),
            "each rank sees one GPU of its host only: CUDA_VISIBLE_DEVICES is "
            "set to the GPU with the number of the rank's local rank, modulo "
            "the number of GPUs");
  line->AddUnabbreviated(
      {"--arena-bytes"},
      IntegerValue(&given->arena_bytes, int64_t{0}, int64_t{kMaxArenaBytes})
          .WithDefault("8589934592"),
      "limit of each rank's arena tensors, for a machine where the address "
      "space is limited (ulimit -v)");
  line->AddUnabbreviated(
      {"--agent-flag"}, RepeatedValue(&o->agent_flags, "FLAG"),
      "a flag of maypole-worker, for each agent that maypolerun starts: "
      "--agent-flag=--slots=4096; may be given several times");
  line->AddUnabbreviated(
      {"--coordinator-flag"}, RepeatedValue(&o->coordinator_flags, "FLAG"),
      "a flag of the maypole-coordinator that maypolerun starts: "
      "--coordinator-flag=--frozen_nodes=0; may be given several times");
}

void DefineOutput(LauncherOptions* o, CommandLine* line) {
  line->Add({"--output-filename"}, FileValue(&o->output_directory, "DIR"),
            "also write each rank's output to DIR/rank.N/stdout and "
            "DIR/rank.N/stderr");
  line->Add({"--no-prefix"}, SwitchValue(&o->prefix, false),
            "print the lines of ranks without [rank]<stdout>:");
  line->Add({"--prefix-output-with-timestamp", "-prefix-timestamp"},
            SwitchValue(&o->timestamps),
            "print the time before each line of ranks");
  line->Add({"--endpoints-file"}, FileValue(&o->endpoints_file),
            "write this machine's metrics endpoints to this file, one "
            "NAME=HOST:PORT per line (coordinator, node0, ...), and "
            "admin=HOST:PORT, the coordinator's address for maypolectl");
  line->Add({"--verbose"}, SwitchValue(&o->verbose),
            "print which processes are started where, and the daemons' log "
            "lines");
  line->Add({"-cb", "--check-build"}, SwitchValue(&o->check_build),
            "print the features of this build");
  // maypolerun passes these to other instances of itself.
  line->Add({kNodeFlag}, SwitchValue(&o->node_of_job), "");
  line->Add({kNodeServiceFlag}, NameValue(&o->service_directory, "DIR"), "");
  // maypole.run passes this one.
  line->Add({"--function-directory"}, NameValue(&o->function_directory, "DIR"),
            "");
}

Status ReadHosts(const Surroundings& around, Given* given) {
  if (!given->host_lists.empty() && !given->host_files.empty()) {
    return Invalid("give either -H or --hostfile, not both");
  }
  for (const std::string& list : given->host_lists) {
    Status status = ParseHosts(list, around.is_here, &given->hosts);
    if (!status.ok()) return status;
  }
  for (const std::string& path : given->host_files) {
    std::string text;
    Status status = around.read_file(path, &text);
    if (status.ok()) {
      status = ParseHostFile(path, text, around.is_here, &given->hosts);
    }
    if (!status.ok()) return status;
  }
  return Status();
}

// addresses: HOST:PORT,...
Status CheckAddresses(const std::string& addresses) {
  for (const std::string& address :
       std::vector<std::string>(absl::StrSplit(addresses, ','))) {
    HostPort at;
    if (!SplitHostPort(address, &at) || at.port == 0) {
      return Invalid("--coordinator takes HOST:PORT, not '" + address + "'");
    }
  }
  return Status();
}

bool IsLoopback(const std::string& address) {
  HostPort at;
  return SplitHostPort(address, &at) && IsLoopbackHost(at.host);
}

// Checks the slots against -np, and chooses the hosts that become nodes. Leaves
// them out if all ranks run on this machine.
Status ChooseHosts(const Given& given, LauncherOptions* o) {
  if (given.hosts.empty()) {
    return o->ranks > 0 ? Status()
                        : Invalid("say how many ranks to start: -np N");
  }
  const char* flag = given.host_files.empty() ? "-H" : "--hostfile";
  int slots = SlotsOf(given.hosts);
  if (o->ranks == 0) o->ranks = slots;
  if (slots < o->ranks) {
    return Invalid(std::string(flag) + " has " + std::to_string(slots) +
                   " slot(s), but -np is " + std::to_string(o->ranks) +
                   ": give more slots or start fewer ranks");
  }
  std::vector<Host> hosts = given.hosts;
  FillHosts(o->ranks, &hosts);
  if (hosts.size() == 1 && hosts[0].here) return Status();
  if (given.nodes > 0) {
    return Invalid("--nodes divides this machine only; with other hosts in " +
                   std::string(flag) + " each host is a node");
  }
  o->hosts = std::move(hosts);
  return Status();
}

Status CheckLocalRanks(const LauncherOptions& o) {
  const Host& most = *std::max_element(
      o.hosts.begin(), o.hosts.end(),
      [](const Host& a, const Host& b) { return a.slots < b.slots; });
  if (most.slots <= kMaxLocalRanks) return Status();
  if (AnyElsewhere(o.hosts)) {
    return Invalid(most.name + " has " + std::to_string(most.slots) +
                   " ranks, but the limit of one host is " +
                   std::to_string(kMaxLocalRanks) + ": give more hosts");
  }
  return Invalid("-np " + std::to_string(o.ranks) + " on " +
                 std::to_string(o.hosts.size()) + " node(s) puts " +
                 std::to_string(most.slots) +
                 " ranks on one, but the limit is " +
                 std::to_string(kMaxLocalRanks) + ": raise --nodes");
}

Status CheckCoordinator(const LauncherOptions& o) {
  if (!o.coordinator_flags.empty() &&
      (o.running_agents || !o.coordinator.empty())) {
    return Invalid(
        "the job uses a coordinator that already runs with its own flags: "
        "leave --coordinator-flag out");
  }
  if (o.running_agents && !o.agent_flags.empty()) {
    return Invalid(
        "--agent uses maypole-worker daemons that already run with their own "
        "flags: leave --agent-flag and --arena-bytes out");
  }
  if (o.running_agents &&
      !(o.coordinator.empty() && o.networks.empty() && o.interfaces.empty())) {
    return Invalid(
        "--agent uses maypole-worker daemons that already run with their own "
        "coordinator and network: leave --coordinator, "
        "--network-addresses and --network-interfaces out");
  }
  if (!o.secret_file.empty() && o.coordinator.empty()) {
    return Invalid(
        "--secret-file requires --coordinator; for a coordinator that it "
        "starts, maypolerun creates the secret");
  }
  if (o.coordinator.empty()) return Status();
  if (Status s = CheckAddresses(o.coordinator); !s.ok()) return s;
  for (const Host& host : o.hosts) {
    if (host.here || !IsLoopback(o.coordinator)) continue;
    return Invalid("--coordinator " + o.coordinator +
                   " is a loopback address: give an address that " + host.name +
                   " can reach");
  }
  return Status();
}

// Without the option, reads the variables that ranks would otherwise read
// themselves.
Status ChooseStartTimeout(const Surroundings& around, const Given& given,
                          LauncherOptions* o) {
  if (given.start_timeout_s > 0) {
    o->start_timeout_s = given.start_timeout_s;
    return Status();
  }
  std::string name;
  const char* text = EitherVariable(around.variable, "START_TIMEOUT", &name);
  if (text == nullptr) return Status();
  return IntegerValue(&o->start_timeout_s, 1, kMaxStartTimeout)
      .Read(name, text);
}

// Passes the option to the ranks as a variable. They read it, or what the user
// has set there; one line here about a wrong value is better than one from
// each.
template <typename Mode>
Status ChooseSetting(const Surroundings& around, const char* option,
                     const std::string& given, const char* variable,
                     Status (*parse)(std::string_view, std::string_view, Mode*),
                     LauncherOptions* o) {
  Mode mode;
  if (!given.empty()) {
    o->environment.emplace_back(variable, given);
    return parse(option, given, &mode);
  }
  const char* text = around.variable(variable);
  return parse(variable, text == nullptr ? "" : text, &mode);
}

// The check that elastic and other jobs have in common.
Status CheckCommand(const LauncherOptions& o) {
  if (!o.command.empty()) return Status();
  return Invalid(
      "say what to run after the options, for example: maypolerun -np " +
      std::to_string(o.ranks) + " python3 train.py");
}

Status CheckTogether(const Given& given, LauncherOptions* o) {
  if (IsElastic(given.elastic)) {
    if (given.nodes > 0 || !o->networks.empty()) {
      return Invalid(
          "--nodes and --network-addresses are for jobs with fixed nodes, not "
          "for elastic ones");
    }
    Status s = ChooseElastic(given.elastic, given.hosts, o);
    if (s.ok()) s = CheckCommand(*o);
    return s.ok() ? CheckCoordinator(*o) : s;
  }
  Status status = ChooseHosts(given, o);
  if (!status.ok()) return status;
  status = CheckCommand(*o);
  if (!status.ok()) return status;
  if (given.nodes > o->ranks) {
    return Invalid("--nodes " + std::to_string(given.nodes) +
                   " needs at least as many ranks, but -np is " +
                   std::to_string(o->ranks));
  }
  if (o->hosts.empty()) {
    o->hosts = NodesHere(o->ranks, std::max(given.nodes, 1));
  }
  status = CheckLocalRanks(*o);
  if (!status.ok()) return status;
  if (!o->networks.empty() && o->networks.size() != o->hosts.size()) {
    return Invalid("--network-addresses has " +
                   std::to_string(o->networks.size()) + " address(es) for " +
                   (AnyElsewhere(o->hosts) ? "hosts: " : "--nodes ") +
                   std::to_string(o->hosts.size()) +
                   ": give one per node, separated by commas");
  }
  if (!o->networks.empty() && !o->interfaces.empty()) {
    return Invalid(
        "give either --network-addresses or --network-interfaces, not both");
  }
  return CheckCoordinator(*o);
}

// Parses the command line after the settings of a config file, so that it wins.
Status ParseLine(const std::vector<std::string>& args,
                 const std::vector<ConfigSetting>& settings, Given* given,
                 LauncherOptions* out) {
  *out = LauncherOptions();
  *given = Given();
  CommandLine line({.name = "maypolerun",
                    .version = kVersion,
                    .about = kAbout,
                    .notes = kNotes,
                    .command = &out->command,
                    .abbreviations = true});
  DefineRanks(given, out, &line);
  DefineElastic(&given->elastic, &line);
  DefineHorovod(&given->horovod, &line);
  DefineJob(given, out, &line);
  DefineOutput(out, &line);
  line.AddUnabbreviated({"--config-file"}, FileValue(&given->config_file),
                        "horovodrun's config file, YAML; the command line "
                        "prevails over it");
  for (const ConfigSetting& setting : settings) {
    Status status = line.Set(setting.option, setting.text, setting.where);
    if (!status.ok()) return status;
  }
  return line.Parse(args, &out->answer);
}

bool RunsNoJob(const LauncherOptions& o) {
  return o.answer || o.check_build || o.node_of_job ||
         !o.service_directory.empty();
}

Status ParseWithConfig(const std::vector<std::string>& args,
                       const Surroundings& around, Given* given,
                       LauncherOptions* out) {
  Status status = ParseLine(args, {}, given, out);
  if (!status.ok() || given->config_file.empty() || RunsNoJob(*out)) {
    return status;
  }
  const std::string path = given->config_file;
  std::string text;
  std::vector<ConfigSetting> settings;
  status = around.read_file(path, &text);
  if (status.ok()) status = ReadConfig(path, text, &settings);
  return status.ok() ? ParseLine(args, settings, given, out) : status;
}

}  // namespace

Status ParseOptions(const std::vector<std::string>& args,
                    const Surroundings& around, LauncherOptions* out) {
  Given given;
  Status status = ParseWithConfig(args, around, &given, out);
  if (!status.ok() || RunsNoJob(*out)) return status;
  if (given.arena_bytes >= 0) {
    out->agent_flags.push_back("--arena_bytes=" +
                               std::to_string(given.arena_bytes));
  }
  for (const std::string& name : given.job_names) {
    status = CheckName("--job-name", name, kMaxJobName);
    if (!status.ok()) return status;
    out->job_name = name;
  }
  status = ChooseSetting(around, "--gpu-site", given.gpu_site, kGpuSiteVariable,
                         ParseGpuSite, out);
  if (status.ok()) {
    status = ChooseSetting(around, "--checksums", given.checksums,
                           kChecksumVariable, ParseChecksumMode, out);
  }
  if (status.ok()) {
    status = ChooseSetting(around, "--encrypt", given.encryption,
                           kEncryptionVariable, ParseEncryptionMode, out);
  }
  if (!status.ok()) return status;
  status = ReadHosts(around, &given);
  if (status.ok()) status = ChooseStartTimeout(around, given, out);
  if (status.ok()) status = FindShim(around, given.horovod, out);
  if (status.ok()) status = ApplyHorovod(around, given.horovod, out);
  return status.ok() ? CheckTogether(given, out) : status;
}

}  // namespace maypole::launcher
