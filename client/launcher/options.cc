#include "client/launcher/options.h"

#include <getopt.h>

#include <charconv>
#include <string_view>

namespace maypole::launcher {
namespace {

enum Flag {
  kRanks = 1,
  kNodes,
  kCoordinator,
  kSecretFile,
  kStartTimeout,
  kVerbose,
  kNoPrefix,
  kOutput,
  kEndpoints,
  kNetworks,
  kHosts,
  kHostFile,
  kHelp,
  kVersionFlag,
};

constexpr option kFlags[] = {
    {"np", required_argument, nullptr, kRanks},
    {"n", required_argument, nullptr, kRanks},
    {"num-proc", required_argument, nullptr, kRanks},
    {"nodes", required_argument, nullptr, kNodes},
    {"coordinator", required_argument, nullptr, kCoordinator},
    {"secret-file", required_argument, nullptr, kSecretFile},
    {"start-timeout", required_argument, nullptr, kStartTimeout},
    {"verbose", no_argument, nullptr, kVerbose},
    {"no-prefix", no_argument, nullptr, kNoPrefix},
    {"output-filename", required_argument, nullptr, kOutput},
    {"endpoints-file", required_argument, nullptr, kEndpoints},
    {"network-addresses", required_argument, nullptr, kNetworks},
    {"H", required_argument, nullptr, kHosts},
    {"hosts", required_argument, nullptr, kHosts},
    {"hostfile", required_argument, nullptr, kHostFile},
    {"host-file", required_argument, nullptr, kHostFile},
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

Status OtherHosts() {
  return Status(Code::kUnimplemented,
                "-H, --hosts and --hostfile are not there yet: this "
                "version starts ranks on this machine only; use -np N "
                "--nodes M for M executors here");
}

// "localhost:2,127.0.0.1:2": all of it must be this machine.
Status ParseHosts(const std::string& value, const std::string& own_host,
                  int* slots) {
  *slots = 0;
  for (const std::string& entry : SplitCommas(value)) {
    size_t colon = entry.rfind(':');
    std::string host = entry.substr(0, colon);
    if (host != "localhost" && host != "127.0.0.1" && host != own_host) {
      return OtherHosts();
    }
    if (colon == std::string::npos) {
      return Invalid("-H takes HOST:SLOTS, not '" + entry + "'");
    }
    int n = 0;
    Status status =
        ParseCount("-H " + host + ":SLOTS",
                   std::string_view(entry).substr(colon + 1), kMaxRanks, &n);
    if (!status.ok()) return status;
    *slots += n;
  }
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

Status Apply(int flag, const std::string& value, const std::string& own_host,
             Options* out) {
  switch (flag) {
    case kRanks:
      return ParseCount("-np", value, kMaxRanks, &out->ranks);
    case kNodes:
      return ParseCount("--nodes", value, kMaxNodes, &out->nodes);
    case kStartTimeout:
      return ParseCount("--start-timeout", value, kMaxStartTimeout,
                        &out->start_timeout_s);
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
    case kHosts:
      return ParseHosts(value, own_host, &out->slots);
    case kHostFile:
      return OtherHosts();
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

Status CheckTogether(const Options& o) {
  if (o.ranks == 0) {
    return Invalid("say how many ranks to start: -np N");
  }
  if (o.command.empty()) {
    return Invalid(
        "say what to run after the options, for example: maypolerun -np " +
        std::to_string(o.ranks) + " python3 train.py");
  }
  if (o.slots > 0 && o.slots < o.ranks) {
    return Invalid("-H has " + std::to_string(o.slots) +
                   " slot(s), but -np is " + std::to_string(o.ranks) +
                   ": give more slots or start fewer ranks");
  }
  if (o.nodes > o.ranks) {
    return Invalid("--nodes " + std::to_string(o.nodes) +
                   " needs at least as many ranks, but -np is " +
                   std::to_string(o.ranks));
  }
  int most = (o.ranks + o.nodes - 1) / o.nodes;
  if (most > kMaxLocalRanks) {
    return Invalid("-np " + std::to_string(o.ranks) + " on " +
                   std::to_string(o.nodes) + " node(s) puts " +
                   std::to_string(most) + " ranks on one, and the limit is " +
                   std::to_string(kMaxLocalRanks) + ": raise --nodes");
  }
  if (!o.networks.empty() &&
      o.networks.size() != static_cast<size_t>(o.nodes)) {
    return Invalid("--network-addresses has " +
                   std::to_string(o.networks.size()) +
                   " address(es) for --nodes " + std::to_string(o.nodes) +
                   ": give one per node, separated by commas");
  }
  if (!o.secret_file.empty() && o.coordinator.empty()) {
    return Invalid(
        "--secret-file goes with --coordinator; the embedded coordinator "
        "makes its own secret");
  }
  if (!o.coordinator.empty()) return CheckAddress(o.coordinator);
  return Status();
}

}  // namespace

Status ParseOptions(const std::vector<std::string>& args,
                    const std::string& own_host, Options* out) {
  std::vector<std::string> copy = args;
  std::vector<char*> argv = {const_cast<char*>("maypolerun")};
  for (std::string& arg : copy) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(argv.size()) - 1;

  *out = Options();
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
        Status status = Apply(kRanks, std::string(count), own_host, out);
        if (!status.ok()) return status;
        continue;
      }
      return Invalid(flag == ':' ? "option '" + word + "' needs a value"
                                 : "option '" + word +
                                       "' is unknown, ambiguous or takes no "
                                       "value; maypolerun --help lists all");
    }
    Status status = Apply(flag, optarg == nullptr ? "" : optarg, own_host, out);
    if (!status.ok()) return status;
    if (out->help || out->version) return Status();
  }
  out->command.assign(argv.begin() + optind, argv.end() - 1);
  return CheckTogether(*out);
}

}  // namespace maypole::launcher
