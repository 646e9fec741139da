#include "client/ctl/options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace maypole::ctl {
namespace {

using Commands = std::vector<Command>;

struct Flag {
  const char* name;
  std::string Options::*text;
  int Options::*number;
  bool Options::*on;
  Commands commands;  // empty: all
};

const std::vector<Flag>& Flags() {
  static const auto* flags = new std::vector<Flag>{
      {"coordinator", &Options::coordinator, nullptr, nullptr, {}},
      {"secret_file", &Options::secret_file, nullptr, nullptr, {}},
      {"tls_ca", &Options::tls_ca, nullptr, nullptr, {}},
      {"tls_cert", &Options::tls_cert, nullptr, nullptr, {}},
      {"tls_key", &Options::tls_key, nullptr, nullptr, {}},
      {"tls_server_name", &Options::tls_server_name, nullptr, nullptr, {}},
      {"timeout", nullptr, &Options::timeout_s, nullptr, {}},
      {"json", nullptr, nullptr, &Options::json, {}},
      {"help", nullptr, nullptr, &Options::help, {}},
      {"version", nullptr, nullptr, &Options::version, {}},
      {"each", nullptr, nullptr, &Options::each, {Command::kRanks}},
      {"follow", nullptr, nullptr, &Options::follow, {Command::kEvents}},
      {"last", nullptr, &Options::last, nullptr, {Command::kEvents}},
      {"reason", &Options::reason, nullptr, nullptr, {Command::kAbort}},
      {"undo", nullptr, nullptr, &Options::undo, {Command::kDrain}},
      {"wait", nullptr, nullptr, &Options::wait, {Command::kDrain}},
  };
  return *flags;
}

const std::vector<std::pair<std::string, Command>>& Names() {
  static const auto* names = new std::vector<std::pair<std::string, Command>>{
      {"status", Command::kStatus}, {"jobs", Command::kJobs},
      {"ranks", Command::kRanks},   {"events", Command::kEvents},
      {"abort", Command::kAbort},   {"drain", Command::kDrain}};
  return *names;
}

const Flag* FindFlag(std::string name) {
  // Horovod's and our other programs' spelling.
  std::replace(name.begin(), name.end(), '-', '_');
  for (const Flag& flag : Flags()) {
    if (name == flag.name) return &flag;
  }
  return nullptr;
}

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; see --help"));
}

// Reads the flag at args[*i], and its value if it stands behind it.
absl::Status ReadFlag(const std::vector<std::string>& args, size_t* i,
                      Options* out, std::vector<const Flag*>* given) {
  absl::string_view text = args[*i];
  if (text == "-h") text = "--help";
  if (text == "-f") text = "--follow";
  if (text == "-n") text = "--last";
  absl::ConsumePrefix(&text, "--");
  const size_t equals = text.find('=');
  const std::string name(text.substr(0, equals));
  const Flag* flag = FindFlag(name);
  if (flag == nullptr) return Bad(absl::StrCat("there is no flag ", args[*i]));
  given->push_back(flag);
  const bool has_value = equals != absl::string_view::npos;
  if (flag->on != nullptr) {
    if (has_value) return Bad(absl::StrCat("--", name, " takes no value"));
    out->*flag->on = true;
    return absl::OkStatus();
  }
  if (!has_value && *i + 1 == args.size()) {
    return Bad(absl::StrCat("--", name, " needs a value"));
  }
  const std::string value =
      has_value ? std::string(text.substr(equals + 1)) : args[++*i];
  if (flag->text != nullptr) {
    out->*flag->text = value;
  } else if (!absl::SimpleAtoi(value, &(out->*flag->number)) ||
             out->*flag->number < 1) {
    return Bad(
        absl::StrCat("--", name, "=", value, " is not a number from 1 on"));
  }
  return absl::OkStatus();
}

absl::Status TakeWords(std::vector<std::string> words, Options* out) {
  if (words.empty()) return Bad("say what to do: status, jobs, ranks, ...");
  const auto& names = Names();
  const auto it =
      std::find_if(names.begin(), names.end(),
                   [&](const auto& name) { return name.first == words[0]; });
  if (it == names.end()) {
    return Bad(absl::StrCat("there is no command '", words[0], "'"));
  }
  out->command = it->second;
  const bool takes =
      out->command != Command::kStatus && out->command != Command::kJobs;
  const bool wants =
      out->command == Command::kAbort || out->command == Command::kDrain;
  if (wants && words.size() < 2) {
    return Bad(absl::StrCat(words[0], " needs the name of a ",
                            out->command == Command::kDrain ? "node" : "job"));
  }
  if (words.size() > (takes ? 2 : 1)) {
    return Bad(absl::StrCat("'", words[takes ? 2 : 1], "' is too much after ",
                            words[0]));
  }
  if (words.size() < 2) return absl::OkStatus();
  if (words[1].empty()) return Bad(absl::StrCat(words[0], " '': a name is ''"));
  (out->command == Command::kDrain ? out->node : out->job) = words[1];
  return absl::OkStatus();
}

absl::Status Check(const Options& o, const std::vector<const Flag*>& given) {
  for (const Flag* flag : given) {
    const Commands& for_these = flag->commands;
    if (for_these.empty() || std::find(for_these.begin(), for_these.end(),
                                       o.command) != for_these.end()) {
      continue;
    }
    return Bad(absl::StrCat("--", flag->name, " is not for this command"));
  }
  if (o.timeout_s > kMaxTimeout) {
    return Bad(absl::StrCat("--timeout: at most ", kMaxTimeout, " seconds"));
  }
  if (o.undo && o.wait) return Bad("--undo and --wait contradict each other");
  if (o.reason.size() > kMaxReasonBytes) {
    return Bad(absl::StrCat("--reason has ", o.reason.size(), " bytes; ",
                            kMaxReasonBytes, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Options> ParseOptions(
    const std::vector<std::string>& args,
    const std::function<std::string(const std::string&)>& variable) {
  Options out;
  const std::pair<const char*, std::string Options::*> from_environment[] = {
      {"MAYPOLE_COORDINATOR", &Options::coordinator},
      {"MAYPOLE_SECRET_FILE", &Options::secret_file}};
  for (const auto& [name, field] : from_environment) {
    if (std::string value = variable(name); !value.empty()) out.*field = value;
  }
  std::vector<std::string> words;
  std::vector<const Flag*> given;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].size() < 2 || args[i][0] != '-') {
      words.push_back(args[i]);
      continue;
    }
    absl::Status status = ReadFlag(args, &i, &out, &given);
    if (!status.ok()) return status;
  }
  if (out.help || out.version) return out;
  absl::Status status = TakeWords(std::move(words), &out);
  if (status.ok()) status = Check(out, given);
  if (!status.ok()) return status;
  return out;
}

std::string Usage() {
  return R"(maypolectl: asks a Maypole coordinator about its jobs, and ends or keeps away
those that should not be.

usage: maypolectl [flags] COMMAND

commands
  status                what the coordinator knows, and what is wrong
  jobs                  a line for each job
  ranks [JOB]           which rank is where, and who is late
  events [JOB]          what has happened
  abort JOB             ends the job: its ranks get an error that says who
                        asked and why, and it cannot start again as it is
  drain NODE            the node keeps the jobs that it has and gets no others

flags of a command
  ranks   --each        a line for each rank, instead of those alike together
  events  --follow, -f  and what happens from now on, until you press Ctrl-C
          --last N, -n  of what has happened only the last N
  abort   --reason TEXT for the error that the ranks get
  drain   --undo        it gets jobs again
          --wait        returns when no job is left there

flags of all
  --coordinator HOST:PORT  default: $MAYPOLE_COORDINATOR, else 127.0.0.1:4001
  --secret_file PATH       the cluster secret, as the coordinator has it;
                           default: $MAYPOLE_SECRET_FILE, else none
  --tls_ca PATH, --tls_cert PATH, --tls_key PATH
                           if the coordinator has TLS: its CA, and an
                           operator's certificate and key
  --tls_server_name NAME   the name in the coordinator's certificate, if it is
                           not HOST
  --timeout SECONDS        for an answer; default: 10
  --json                   for programs: an object, or one a line for events
  --help, --version

examples
  maypolectl --coordinator head:4001 --secret_file /etc/maypole/secret status
  maypolectl events --follow train-7
  maypolectl abort train-7 --reason 'the node is needed'
  maypolectl drain node12 --wait && reboot-node node12

Exit status: 0 done, 1 not done (a line says why), 2 wrong arguments.
)";
}

}  // namespace maypole::ctl
