#include "client/launcher/job/job_launcher.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/node/node_protocol.h"
#include "client/launcher/process/function_files.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// For the rest of the output, which a pager may read slowly.
constexpr EndLimit kFinishLimit{std::chrono::hours(24), milliseconds(50)};
// The exit code of a job that went well, but whose output is incomplete.
constexpr int kLostOutputCode = 1;
constexpr size_t kPrefixBytes = 12;  // "maypolerun: "

// The space for a line on the terminal; 0: the descriptor is no terminal.
size_t TerminalWidth(int fd) {
  winsize size = {};
  if (isatty(fd) == 0 || ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col > 2 * kPrefixBytes ? size.ws_col - kPrefixBytes - 1 : 0;
}

// Only at the start is a script that cannot run an error of the command line.
Status CheckScript(const LauncherOptions& options) {
  if (!options.elastic || options.elastic->discovery_script.empty()) {
    return Status();
  }
  std::string program;
  std::vector<std::string> arguments;
  const Status status =
      FindDiscovery(options.elastic->discovery_script, &program, &arguments);
  if (status.ok()) return status;
  return Status(status.code(),
                "cannot run --host-discovery-script " + status.message());
}

ElasticDriver::Settings DriverSettings(const LauncherOptions& options) {
  if (!options.elastic) {
    return {
        .first_size = options.ranks, .max_size = options.ranks, .fixed = true};
  }
  const ElasticOptions& elastic = *options.elastic;
  return {.first_size = options.ranks,
          .min_size = elastic.min_size,
          .max_size = elastic.max_size,
          .patience = seconds(elastic.timeout_s),
          .reset_limit = elastic.reset_limit,
          .shortest_cooldown = seconds(elastic.cooldown_s[0]),
          .longest_cooldown = seconds(elastic.cooldown_s[1])};
}

}  // namespace

JobLauncher::JobLauncher(const LauncherOptions& options,
                         const Supervised& where)
    : options_(options),
      where_(where),
      output_(&loop_, options),
      nodes_(&loop_, options, where, &output_, this),
      ranks_(options_.elastic ? "process" : "rank"),
      supervision_(0, seconds(options_.stop_timeout_s)),
      leavers_(options_.elastic ? 0 : options_.ranks),
      progress_(TerminalWidth(2)) {}

int JobLauncher::Run() {
  const Status status = Start();
  starting_ = false;
  if (status.ok()) {
    while (!Over()) Round(supervision_.deadline());
  }
  End();
  output_.ReportLostFiles();
  Report(status);
  ShowRest();
  if (!status.ok() && !supervision_.interrupted()) return 1;
  const int code = supervision_.exit_code();
  return code == 0 && output_.lost() ? kLostOutputCode : code;
}

// --- The start ---------------------------------------------------------------

Status JobLauncher::Start() {
  Status status = output_.Open();
  if (status.ok()) {
    status = nodes_.Prepare([this](const auto& info) { OnSignal(info); });
    // Not before signals are handled: printing the error may block on a slow
    // reader.
    handles_signals_ = status.ok();
  }
  const Time deadline = Now() + seconds(options_.start_timeout_s);
  if (status.ok()) status = CheckScript(options_);
  if (status.ok()) status = nodes_.StartCoordinator();
  if (!options_.elastic) progress_.Begin(Now());
  if (status.ok()) {
    status = WaitFor([this] { return nodes_.coordinator_ready(); }, deadline);
  }
  if (status.ok() && options_.elastic) status = nodes_.WriteEndpoints();
  if (!status.ok()) return status;
  if (options_.elastic) starting_ = false;
  StartJob();
  if (!options_.elastic) {
    status = WaitFor([this] { return job_->ending(); }, deadline);
  }
  if (!status.ok()) output_.PrintProgress(progress_.End(""));
  return status;
}

Status JobLauncher::WaitFor(const std::function<bool()>& done, Time deadline) {
  while (true) {
    if (supervision_.interrupted()) {
      return Status(Code::kCancelled, "stopped before the ranks were started");
    }
    if (!not_started_.ok()) return not_started_;
    if (done()) return Status();
    if (Now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    FirstOf(nodes_.NotReady()) + " not ready after " +
                        std::to_string(options_.start_timeout_s) +
                        " s (--start-timeout); --verbose shows its log");
    }
    Round(deadline);
  }
}

void JobLauncher::StartJob() {
  job_.emplace(DriverSettings(options_), Hands());
  if (options_.elastic && !options_.elastic->discovery_script.empty()) {
    discovery_.emplace(
        &loop_,
        HostDiscovery::Settings{
            .script = options_.elastic->discovery_script,
            .slots_per_host = options_.elastic->slots_per_host,
            .is_here = IsThisMachine,
            .on_hosts =
                [this](const auto& hosts) { job_->OnHosts(hosts, Now()); },
            .say = [this](const std::string& line) { output_.Print(line); }});
    discovery_->OnTime(Now());
  } else {
    job_->OnHosts(HostsOf(options_), Now());
  }
  job_->Continue(Now());
}

ElasticJob::Launcher JobLauncher::Hands() {
  return {
      .start_node =
          [this](int node, const Host& host) {
            auto on_lost = [this, node, here = host.here](const auto& why) {
              if (here && !options_.elastic) return FailJob(why);
              job_->OnNodeLost(node, why);
            };
            return nodes_.StartNode(node, host, on_lost);
          },
      // WaitFor() limits the start of a job that is not elastic.
      .start_limit = seconds(options_.elastic ? options_.start_timeout_s
                                              : 2 * kMaxStartTimeout),
      .add_process = [this](int process, const Host& host,
                            int node) { return AddRank(process, host, node); },
      .lose_process =
          [this](int process) {
            EndRank(process, {.lost = true}, !options_.elastic);
          },
      .say = [this](const std::string& line) { output_.Print(line); },
      .fail = [this](const std::string& why) { FailJob(why); }};
}

Status JobLauncher::AddRank(int rank, const Host& host, int node) {
  const bool has_name = options_.elastic || AnyElsewhere(options_.hosts);
  ranks_.Add(rank, {.node = node, .host = has_name ? host.name : ""});
  supervision_.OnRankStart();
  if (options_.elastic) return output_.AddRank(rank, host.here);
  return rank == 0 ? BeginRanks() : Status();
}

// All nodes are ready. Starts no rank if the output files of one cannot be
// created.
Status JobLauncher::BeginRanks() {
  output_.PrintProgress(progress_.End(""));
  if (options_.verbose) {
    for (const std::string& line : nodes_.Summary()) output_.Print(line);
  }
  Status status = nodes_.WriteEndpoints();
  int rank = 0;
  for (const Host& host : options_.hosts) {
    for (int slot = 0; status.ok() && slot < host.slots; ++slot) {
      status = output_.AddRank(rank++, host.here);
    }
  }
  awaits_ranks_ = status.ok();
  return status;
}

void JobLauncher::FailJob(const std::string& why) {
  if (starting_) {
    if (not_started_.ok()) not_started_ = Status(Code::kUnavailable, why);
    return;
  }
  output_.Print(why + "; stopping the job");
  nodes_.SignalRanks(supervision_.OnJobFailed(Now()), false);
}

void JobLauncher::ShowProgress(Time now) {
  if (!progress_.due(now)) return;
  std::string text = "the ranks are not started yet; waiting for " +
                     FirstOf(nodes_.NotReady());
  if (!starting_) text = ranks_.DescribeAwaited();
  output_.PrintProgress(progress_.Take(text, now));
}

void JobLauncher::StopProgress() {
  awaits_ranks_ = false;
  output_.PrintProgress(progress_.End(""));
}

// --- Events ------------------------------------------------------------------

void JobLauncher::Round(std::optional<Time> deadline) {
  deadline = Earlier(deadline, leavers_.deadline());
  deadline = Earlier(deadline, progress_.deadline());
  deadline = Earlier(deadline, nodes_.deadline());
  deadline = Earlier(deadline, output_.deadline());
  if (job_) deadline = Earlier(deadline, job_->deadline());
  const auto searches = [&] { return discovery_ && !job_->ending(); };
  if (searches()) deadline = Earlier(deadline, discovery_->deadline());
  loop_.Poll(deadline);
  const Time now = Now();
  nodes_.OnTime(now);
  if (searches()) discovery_->OnTime(now);
  if (job_) job_->Continue(now);
  output_.OnTime(now);
  const int signal = supervision_.OnTime(now);
  if (signal == SIGTERM) {
    output_.Print("the other ranks did not end: sending SIGTERM");
  }
  nodes_.SignalRanks(signal, false);
  ShowProgress(now);
  if (std::string line = leavers_.TakeLine(now); !line.empty()) {
    output_.Print(line);
  }
}

void JobLauncher::OnSignal(const signalfd_siginfo& info) {
  if (getppid() != where_.guard) {
    nodes_.Hurry();
    return nodes_.SignalRanks(supervision_.OnLauncherLost(), false);
  }
  const int number = static_cast<int>(info.ssi_signo);
  if (IsPassedOn(number)) return nodes_.SignalRanks(number, false);
  const bool first = !supervision_.interrupted();
  leavers_.Stop();
  StopProgress();
  if (job_) job_->Stop();
  if (discovery_) discovery_->Stop();
  const int signal = supervision_.OnSignal(number, Now());
  if (first) {
    nodes_.Hurry();
    const std::string grace =
        number == SIGTERM && !supervision_.ranks_ended()
            ? "; ranks have " + std::to_string(options_.stop_timeout_s) +
                  " s to end (--stop-timeout)"
            : "";
    output_.Print("got signal " + std::to_string(number) + " (" +
                  strsignal(number) + "): stopping the job" + grace);
  }
  // The guard sets the value if the signal came from the terminal.
  nodes_.SignalRanks(signal, info.ssi_int == 1);
}

void JobLauncher::OnRank(const FromNode& message) {
  switch (message.kind_case()) {
    case FromNode::kRankStarted: {
      const RankStarted& started = message.rank_started();
      ranks_.OnStart(started.rank(), started.pid());
      if (!options_.verbose) return;
      return output_.Print(ranks_.Who(started.rank()) + " started");
    }
    case FromNode::kRankJoined:
      return OnJoined(message.rank_joined().rank());
    case FromNode::kRankOutput:
      return OnOutput(message.rank_output());
    case FromNode::kRankEnded: {
      const int rank = message.rank_ended().rank();
      const Exit exit = ExitOf(message.rank_ended());
      return EndRank(rank, exit, job_->OnProcessEnd(rank, exit, Now()));
    }
    default:
      return;  // not about a rank
  }
}

// The first rank that has called init() waits for the others from now on. (If
// none does, the programs need not use Maypole.)
void JobLauncher::OnJoined(int rank) {
  if (!ranks_.OnJoin(rank) || !awaits_ranks_) return;
  progress_.Begin(Now());
  if (ranks_.awaited() > 0) return;
  awaits_ranks_ = false;
  output_.PrintProgress(progress_.End("all " + std::to_string(options_.ranks) +
                                      " ranks have called init()"));
}

void JobLauncher::OnOutput(const RankOutput& output) {
  if (output.stream() != RankOutput::RESULT) {
    return output_.Take(output.rank(), output.stream() == RankOutput::STDERR,
                        output.bytes());
  }
  if (options_.function_directory.empty()) return;  // another host is wrong
  const Status status = AppendPrivately(
      ResultFile(options_.function_directory, output.rank()), output.bytes());
  if (!status.ok()) output_.Print(status.message());
}

void JobLauncher::EndRank(int rank, Exit exit, bool failed) {
  if (!ranks_.OnEnd(rank)) return;
  StopProgress();
  // All output has been read; unfinished lines are shown as well.
  const Clues clues = output_.EndRank(rank);
  if (options_.elastic && !failed) output_.RemoveRank(rank);
  if (!exit.clean() && !failed) return supervision_.OnRankReplaced();
  const bool first = !supervision_.first_failure();
  nodes_.SignalRanks(supervision_.OnRankExit(rank, exit, Now(), clues), false);
  if (!supervision_.interrupted() && !options_.elastic) {
    leavers_.OnRankExit(rank, exit.clean(), Now());
  }
  if (first && supervision_.first_failure() && !supervision_.ranks_ended()) {
    output_.Print(ranks_.Who(rank) + " " + Describe(exit) +
                  "; waiting up to 5 s for the other ranks to end");
  }
}

void JobLauncher::OnDaemonLog(const std::string& daemon,
                              std::string_view bytes) {
  // After a signal the log only reports ranks that we stopped.
  if (supervision_.interrupted() && !options_.verbose) return;
  output_.TakeLog(daemon, bytes);
}

void JobLauncher::OnDaemonLost(const std::string& what, bool returns) {
  // Ranks of several nodes, and ranks that enter an epoch or have not joined,
  // would wait for the coordinator until they time out.
  if (!starting_ && nodes_.coordinator_lost() &&
      (options_.elastic || options_.hosts.size() > 1 || awaits_ranks_)) {
    return job_->OnJobLost(what);
  }
  output_.Print(what);
  if (returns) return;
  if (starting_) FailJob("the job was not started");
  if (!options_.elastic && lost_daemon_.empty()) lost_daemon_ = what;
}

// --- The end -----------------------------------------------------------------

// All ranks have ended, and no more are started.
bool JobLauncher::Over() const {
  return supervision_.ranks_ended() &&
         (job_->ending() || supervision_.interrupted());
}

// Afterwards no process of the job is alive, and all its output has been read.
void JobLauncher::End() {
  if (job_) job_->Stop();
  if (discovery_) discovery_->Stop();
  for (const pid_t pid : nodes_.End()) {
    output_.Print("process " + std::to_string(pid) +
                  " of the ranks has got SIGKILL and has not ended: it may "
                  "hang in the kernel (ps -o stat,wchan " +
                  std::to_string(pid) + ")");
  }
  while (!nodes_.ended(Now())) Round(std::nullopt);
  nodes_.Close();
  output_.Flush();
}

// start: why the job was not started.
void JobLauncher::Report(const Status& start) {
  const auto& failure = supervision_.first_failure();
  Outcome outcome{.cause = start.message()};
  if (!start.ok()) {
    output_.Print(start.message());
  } else if (!supervision_.interrupted() && failure) {
    outcome = {.rank = failure->rank,
               .cause = ranks_.DescribeFailure(supervision_, leavers_,
                                               !lost_daemon_.empty())};
    if (!lost_daemon_.empty()) output_.Print("before that, " + lost_daemon_);
    output_.ShowLastWords(failure->rank, ranks_.Who(failure->rank));
    output_.Print(outcome.cause);
  } else if (!supervision_.interrupted() && !lost_daemon_.empty()) {
    output_.Print("all ranks exited with code 0, but " + lost_daemon_);
  }
  if (options_.function_directory.empty()) return;
  const Status status = WriteOutcome(options_.function_directory, outcome);
  if (!status.ok()) output_.Print(status.message());
}

// Writes the rest of the output after all processes have ended. The reader,
// such as a pager, may be slow; a signal or the death of our guard ends the
// wait.
void JobLauncher::ShowRest() {
  if (!handles_signals_) nodes_.Hurry();
  const Time since = Now();
  const auto deadline = [&] { return since + nodes_.Within(kFinishLimit); };
  while (!output_.WriteRest() && Now() < deadline()) loop_.Poll(deadline());
}

}  // namespace maypole::launcher
