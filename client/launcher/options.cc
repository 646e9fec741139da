#include "client/launcher/options.h"

#include <getopt.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "client/launcher/placement.h"

namespace maypole::launcher {
namespace {

enum Flag {
  kRanks = 1,
  kNodes,
  kJobName,
  kCoordinator,
  kSecretFile,
  kStartTimeout,
  kVerbose,
  kNoPrefix,
  kOutput,
  kEndpoints,
  kNetworks,
  kInterfaces,
  kHosts,
  kHostFile,
  kSshPort,
  kIdentity,
  kRemoteBin,
  kAgent,
  kCheckBuild,
  kHelp,
  kVersionFlag,
};

constexpr option kFlags[] = {
    {"np", required_argument, nullptr, kRanks},
    {"n", required_argument, nullptr, kRanks},
    {"num-proc", required_argument, nullptr, kRanks},
    {"nodes", required_argument, nullptr, kNodes},
    {"job-name", required_argument, nullptr, kJobName},
    {"coordinator", required_argument, nullptr, kCoordinator},
    {"secret-file", required_argument, nullptr, kSecretFile},
    {"start-timeout", required_argument, nullptr, kStartTimeout},
    {"verbose", no_argument, nullptr, kVerbose},
    {"no-prefix", no_argument, nullptr, kNoPrefix},
    {"output-filename", required_argument, nullptr, kOutput},
    {"endpoints-file", required_argument, nullptr, kEndpoints},
    {"network-addresses", required_argument, nullptr, kNetworks},
    {"network-interfaces", required_argument, nullptr, kInterfaces},
    {"H", required_argument, nullptr, kHosts},
    {"hosts", required_argument, nullptr, kHosts},
    {"hostfile", required_argument, nullptr, kHostFile},
    {"host-file", required_argument, nullptr, kHostFile},
    {"p", required_argument, nullptr, kSshPort},
    {"ssh-port", required_argument, nullptr, kSshPort},
    {"i", required_argument, nullptr, kIdentity},
    {"ssh-identity-file", required_argument, nullptr, kIdentity},
    {"remote-bin", required_argument, nullptr, kRemoteBin},
    {"agent", optional_argument, nullptr, kAgent},
    {"cb", no_argument, nullptr, kCheckBuild},
    {"check-build", no_argument, nullptr, kCheckBuild},
    {"h", no_argument, nullptr, kHelp},
    {"help", no_argument, nullptr, kHelp},
    {"v", no_argument, nullptr, kVersionFlag},
    {"version", no_argument, nullptr, kVersionFlag},
    {nullptr, 0, nullptr, 0},
};

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

Status ParseCount(std::string_view flag, std::string_view text, int max,
                  int* out) {
  int value = 0;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > max) {
    return Invalid(std::string(flag) + " takes a number from 1 to " +
                   std::to_string(max) + ", not '" + std::string(text) + "'");
  }
  *out = value;
  return Status();
}

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// What was given on the command line, before it is looked at as a whole.
struct Given {
  std::vector<Host> hosts;
  bool by_file = false;
  bool nodes = false;
  bool start_timeout = false;
};

// It goes into log lines, labels and the names of files.
Status ParseJobName(const std::string& name, std::string* out) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.empty() || name.size() > kMaxJobName ||
      name.find_first_not_of(kAllowed) != name.npos) {
    return Invalid("--job-name takes 1 to " + std::to_string(kMaxJobName) +
                   " letters, digits, '.', '_' and '-', not '" + name + "'");
  }
  *out = name;
  return Status();
}

// "-np4" and "-n4": the number without a space, as mpirun's users write it.
std::string_view AttachedCount(std::string_view word) {
  for (std::string_view flag : {"-np", "-n"}) {
    if (!word.starts_with(flag)) continue;
    std::string_view count = word.substr(flag.size());
    bool digits = count.find_first_not_of("0123456789") == count.npos;
    if (!count.empty() && digits) return count;
  }
  return "";
}

Status ApplyHosts(int flag, const std::string& value,
                  const Surroundings& around, Given* given) {
  if (!given->hosts.empty() && given->by_file != (flag == kHostFile)) {
    return Invalid("give either -H or --hostfile, not both");
  }
  given->by_file = flag == kHostFile;
  if (flag == kHosts) return ParseHosts(value, around.is_here, &given->hosts);
  std::string text;
  Status status = around.read_file(value, &text);
  if (!status.ok()) return status;
  return ParseHostFile(value, text, around.is_here, &given->hosts);
}

Status Apply(int flag, const std::string& value, const Surroundings& around,
             Given* given, Options* out) {
  switch (flag) {
    case kRanks:
      return ParseCount("-np", value, kMaxRanks, &out->ranks);
    case kNodes:
      given->nodes = true;
      return ParseCount("--nodes", value, kMaxNodes, &out->nodes);
    case kStartTimeout:
      given->start_timeout = true;
      return ParseCount("--start-timeout", value, kMaxStartTimeout,
                        &out->start_timeout_s);
    case kJobName:
      return ParseJobName(value, &out->job_name);
    case kCoordinator:
      out->coordinator = value;
      return Status();
    case kSecretFile:
      out->secret_file = value;
      return Status();
    case kVerbose:
      out->verbose = true;
      return Status();
    case kNoPrefix:
      out->prefix = false;
      return Status();
    case kOutput:
      out->output_directory = value;
      return Status();
    case kEndpoints:
      out->endpoints_file = value;
      return Status();
    case kNetworks:
      out->networks = SplitCommas(value);
      return Status();
    case kHelp:
      out->help = true;
      return Status();
    case kVersionFlag:
      out->version = true;
      return Status();
    case kCheckBuild:
      out->check_build = true;
      return Status();
    case kInterfaces:
      out->interfaces = SplitCommas(value);
      return Status();
    case kSshPort:
      return ParseCount("--ssh-port", value, 65535, &out->ssh_port);
    case kIdentity:
      out->identity_file = value;
      return Status();
    case kRemoteBin:
      out->remote_bin = value;
      return Status();
    case kAgent:
      out->running_agents = true;
      out->agent_socket = value;
      return Status();
    case kHosts:
    case kHostFile:
      return ApplyHosts(flag, value, around, given);
  }
  return Status(Code::kInternal, "flag without a meaning");
}

Status CheckAddress(const std::string& address) {
  size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !ParseCount("port", std::string_view(address).substr(colon + 1), 65535,
                  &port)
           .ok()) {
    return Invalid("--coordinator takes HOST:PORT, not '" + address + "'");
  }
  return Status();
}

bool IsLoopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]");
}

// Slots and -np; which hosts are nodes.
Status ChooseHosts(const Given& given, Options* o) {
  if (given.hosts.empty()) {
    return o->ranks > 0 ? Status()
                        : Invalid("say how many ranks to start: -np N");
  }
  const char* flag = given.by_file ? "--hostfile" : "-H";
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
  if (given.nodes) {
    return Invalid("--nodes is for this machine alone; with other hosts in " +
                   std::string(flag) + " each host is a node");
  }
  o->nodes = static_cast<int>(hosts.size());
  o->hosts = std::move(hosts);
  return Status();
}

Status CheckLocalRanks(const Options& o) {
  const std::vector<int> ranks = RanksByNode(o);
  const auto most = std::max_element(ranks.begin(), ranks.end());
  if (*most <= kMaxLocalRanks) return Status();
  if (!o.hosts.empty()) {
    return Invalid(o.hosts[static_cast<size_t>(most - ranks.begin())].name +
                   " has " + std::to_string(*most) +
                   " ranks, and the limit of one host is " +
                   std::to_string(kMaxLocalRanks) + ": give more hosts");
  }
  return Invalid("-np " + std::to_string(o.ranks) + " on " +
                 std::to_string(o.nodes) + " node(s) puts " +
                 std::to_string(*most) + " ranks on one, and the limit is " +
                 std::to_string(kMaxLocalRanks) + ": raise --nodes");
}

Status CheckCoordinator(const Options& o) {
  if (o.running_agents &&
      !(o.coordinator.empty() && o.networks.empty() && o.interfaces.empty())) {
    return Invalid(
        "--agent uses maypole-workers that run already, with the coordinator "
        "and the network they were started with: leave --coordinator, "
        "--network-addresses and --network-interfaces out");
  }
  if (!o.secret_file.empty() && o.coordinator.empty()) {
    return Invalid(
        "--secret-file goes with --coordinator; the embedded coordinator "
        "makes its own secret");
  }
  if (o.coordinator.empty()) return Status();
  if (Status status = CheckAddress(o.coordinator); !status.ok()) return status;
  for (const Host& host : o.hosts) {
    if (host.here || !IsLoopback(o.coordinator)) continue;
    return Invalid("--coordinator " + o.coordinator +
                   " is this machine alone: give an address that " + host.name +
                   " can reach");
  }
  return Status();
}

// What the ranks would read if we did not tell them.
Status ReadStartTimeout(const Surroundings& around, Options* o) {
  for (const char* name : {"MAYPOLE_START_TIMEOUT", "HOROVOD_START_TIMEOUT"}) {
    const char* text = around.variable(name);
    if (text == nullptr || *text == 0) continue;
    return ParseCount(name, text, kMaxStartTimeout, &o->start_timeout_s);
  }
  return Status();
}

Status CheckTogether(const Given& given, Options* o) {
  Status status = ChooseHosts(given, o);
  if (!status.ok()) return status;
  if (o->command.empty()) {
    return Invalid(
        "say what to run after the options, for example: maypolerun -np " +
        std::to_string(o->ranks) + " python3 train.py");
  }
  if (o->nodes > o->ranks) {
    return Invalid("--nodes " + std::to_string(o->nodes) +
                   " needs at least as many ranks, but -np is " +
                   std::to_string(o->ranks));
  }
  status = CheckLocalRanks(*o);
  if (!status.ok()) return status;
  if (!o->networks.empty() &&
      o->networks.size() != static_cast<size_t>(o->nodes)) {
    return Invalid(
        "--network-addresses has " + std::to_string(o->networks.size()) +
        " address(es) for " + (o->hosts.empty() ? "--nodes " : "hosts: ") +
        std::to_string(o->nodes) + ": give one per node, separated by commas");
  }
  if (!o->networks.empty() && !o->interfaces.empty()) {
    return Invalid(
        "give either --network-addresses or --network-interfaces, not both");
  }
  return CheckCoordinator(*o);
}

}  // namespace

Status ParseOptions(const std::vector<std::string>& args,
                    const Surroundings& around, Options* out) {
  std::vector<std::string> copy = args;
  std::vector<char*> argv = {const_cast<char*>("maypolerun")};
  for (std::string& arg : copy) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(argv.size()) - 1;

  *out = Options();
  Given given;
  optind = 0;  // start anew, also when called a second time
  opterr = 0;
  int flag;
  // '+': options end at the first word that is none, the command.
  // ':': a missing value is told apart from an unknown option.
  while ((flag = getopt_long_only(argc, argv.data(), "+:", kFlags, nullptr)) !=
         -1) {
    if (flag == '?' || flag == ':') {
      std::string word = argv[optind - 1];
      if (std::string_view count = AttachedCount(word); !count.empty()) {
        Status status = Apply(kRanks, std::string(count), around, &given, out);
        if (!status.ok()) return status;
        continue;
      }
      return Invalid(flag == ':' ? "option '" + word + "' needs a value"
                                 : "option '" + word +
                                       "' is unknown, ambiguous or takes no "
                                       "value; maypolerun --help lists all");
    }
    Status status =
        Apply(flag, optarg == nullptr ? "" : optarg, around, &given, out);
    if (!status.ok()) return status;
    if (out->help || out->version || out->check_build) return Status();
  }
  out->command.assign(argv.begin() + optind, argv.end() - 1);
  if (!given.start_timeout) {
    if (Status s = ReadStartTimeout(around, out); !s.ok()) return s;
  }
  return CheckTogether(given, out);
}

std::vector<int> RanksByNode(const Options& o) {
  if (o.hosts.empty()) return SpreadEvenly(o.ranks, o.nodes);
  std::vector<int> ranks;
  for (const Host& host : o.hosts) ranks.push_back(host.ranks);
  return ranks;
}

}  // namespace maypole::launcher
