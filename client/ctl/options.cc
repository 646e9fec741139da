#include "client/ctl/options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/command_line/command_line.h"
#include "common/version.h"

namespace maypole::ctl {
namespace {

constexpr char kAbout[] =
    R"(maypolectl: asks a Maypole coordinator about its jobs, aborts jobs and drains
nodes.

Usage:
  maypolectl [options] COMMAND

Examples:
  maypolectl --coordinator head:4001 --secret_file /etc/maypole/secret status
  maypolectl top train-7
  maypolectl events --follow train-7
  maypolectl abort train-7 --reason 'the node is needed'
  maypolectl drain node12 --wait && reboot-node node12
)";

constexpr char kNotes[] =
    "Exit status: 0 success, 1 failure (a line says why), 2 wrong usage.";

void DefineCommands(CtlOptions* o, CommandLine* line) {
  const auto add = [&](Command command, const char* name, const char* help) {
    line->AddCommand(name, help, [o, command] { o->command = command; });
  };
  add(Command::kStatus, "status",
      "the state of the coordinator, and what is wrong");
  add(Command::kJobs, "jobs", "one line per job");
  add(Command::kRanks, "ranks",
      "where each rank runs, and which ranks are late");
  line->AddWord("ranks", NameValue(&o->job, "JOB"), false);
  line->Add({"--each"}, SwitchValue(&o->each),
            "one line per rank; otherwise equal ranks share a line", "ranks");
  add(Command::kTop, "top",
      "what jobs do now: steps, bytes, and the ranks that others wait for");
  line->AddWord("top", NameValue(&o->job, "JOB"), false);
  line->Add({"--interval"},
            IntegerValue(&o->interval_s, 1, kMaxTimeout).WithName("SECONDS"),
            "how often to look", "top");
  line->Add({"--looks"}, IntegerValue(&o->looks, 1).WithDefault("until Ctrl-C"),
            "end after N looks", "top");
  add(Command::kDashboard, "dashboard",
      "print a link to the coordinator's web page; it is valid once, for five "
      "minutes");
  line->Add({"--control"}, SwitchValue(&o->control),
            "the page may also start and stop timelines", "dashboard");
  add(Command::kTimeline, "timeline",
      "start the job's timeline, which records what all ranks do; its file is "
      "in the directory of the first rank");
  line->AddWord("timeline", NameValue(&o->job, "JOB"), true);
  line->Add({"--stop"}, SwitchValue(&o->stop),
            "stop it, whoever has started it", "timeline");
  add(Command::kEvents, "events", "what has happened");
  line->AddWord("events", NameValue(&o->job, "JOB"), false);
  line->Add({"-f", "--follow"}, SwitchValue(&o->follow),
            "continue with new events until Ctrl-C", "events");
  line->Add({"-n", "--last"}, IntegerValue(&o->last, 1).WithDefault("all"),
            "only the last N events", "events");
  add(Command::kAbort, "abort",
      "end the job: its ranks get an error that says who asked and why, and "
      "it cannot start again under its id");
  line->AddWord("abort", NameValue(&o->job, "JOB"), true);
  line->Add({"--reason"}, TextValue(&o->reason, "TEXT"),
            "reason for that error", "abort");
  add(Command::kDrain, "drain", "the node keeps its jobs and gets no new ones");
  line->AddWord("drain", NameValue(&o->node, "NODE"), true);
  line->Add({"--undo"}, SwitchValue(&o->undo),
            "let the node get new jobs again", "drain");
  line->Add({"--wait"}, SwitchValue(&o->wait),
            "return when no job is left on the node", "drain");
}

void DefineOptions(CtlOptions* o, CommandLine* line) {
  line->Add({"--coordinator"}, TextValue(&o->coordinator, "HOST:PORT,..."),
            "address of the coordinator, or of several of which one leads; "
            "the variable $MAYPOLE_COORDINATOR if it is set");
  line->Add({"--secret_file"}, FileValue(&o->secret_file),
            "file with the cluster secret; $MAYPOLE_SECRET_FILE if set");
  line->Add({"--operator_secret_file"}, FileValue(&o->operator_secret_file),
            "file with the secret of the coordinator's operators, if they have "
            "one of their own; $MAYPOLE_OPERATOR_SECRET_FILE if set");
  line->Add({"--tls_ca"}, FileValue(&o->tls_ca),
            "file (PEM) with the CA of a coordinator that uses TLS");
  line->Add({"--tls_cert"}, FileValue(&o->tls_cert),
            "file (PEM) with an operator's certificate of that CA");
  line->Add({"--tls_key"}, FileValue(&o->tls_key),
            "file (PEM, mode 0600) with the certificate's key");
  line->Add({"--tls_server_name"},
            TextValue(&o->tls_server_name, "NAME")
                .WithDefault("the host of --coordinator"),
            "name that the coordinator's certificate must be for");
  line->Add({"--timeout"},
            IntegerValue(&o->timeout_s, 1, kMaxTimeout).WithName("SECONDS"),
            "how long to wait for an answer");
  line->Add({"--json"}, SwitchValue(&o->json),
            "print JSON: one object, or one per line for top and events");
}

absl::Status Check(const CtlOptions& o) {
  if (o.undo && o.wait) {
    return absl::InvalidArgumentError(
        "--undo and --wait contradict each other; see --help");
  }
  if (o.reason.size() > kMaxReasonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--reason has ", o.reason.size(), " bytes; ",
                     kMaxReasonBytes, " are allowed; see --help"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CtlOptions> ParseOptions(
    const std::vector<std::string>& args,
    const std::function<std::string(const std::string&)>& variable) {
  CtlOptions out;
  const std::pair<const char*, std::string CtlOptions::*> from_environment[] = {
      {"MAYPOLE_COORDINATOR", &CtlOptions::coordinator},
      {"MAYPOLE_SECRET_FILE", &CtlOptions::secret_file},
      {"MAYPOLE_OPERATOR_SECRET_FILE", &CtlOptions::operator_secret_file}};
  for (const auto& [name, field] : from_environment) {
    if (std::string value = variable(name); !value.empty()) out.*field = value;
  }
  CommandLine line({.name = "maypolectl",
                    .version = kVersion,
                    .about = kAbout,
                    .notes = kNotes});
  DefineCommands(&out, &line);
  DefineOptions(&out, &line);
  if (Status s = line.Parse(args, &out.answer); !s.ok()) return ToAbsl(s);
  if (absl::Status s = Check(out); !s.ok()) return s;
  return out;
}

}  // namespace maypole::ctl
