#include "client/launcher/job/job_launcher.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "client/launcher/process/function_files.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

// How long another host may take for what node_core.h describes, plus the delay
// of the network.
constexpr EndLimit kHostLimit{milliseconds(7000), milliseconds(400)};
// From the order to kill ranks until the host reports their end.
constexpr EndLimit kAnswerLimit{milliseconds(5000), milliseconds(150)};
// For the rest of the output, which a pager may read slowly.
constexpr EndLimit kFinishLimit{std::chrono::hours(24), milliseconds(50)};
constexpr size_t kMaxSuspects = 4;  // named in the last line
// Of a job that went well, but whose output is incomplete.
constexpr int kLostOutputCode = 1;
// Smaller ids belong to ranks.
constexpr int kFirstDaemonStream = 1 << 29;

constexpr size_t kPrefixBytes = 12;  // "maypolerun: "

Time Now() { return std::chrono::steady_clock::now(); }

// The space for a line on the terminal; 0: the descriptor is none.
size_t TerminalWidth(int fd) {
  winsize size = {};
  if (isatty(fd) == 0 || ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col > 2 * kPrefixBytes ? size.ws_col - kPrefixBytes - 1 : 0;
}

std::optional<Time> Earlier(std::optional<Time> a, std::optional<Time> b) {
  if (!a) return b;
  if (!b) return a;
  return std::min(*a, *b);
}

}  // namespace

JobLauncher::JobLauncher(Settings settings)
    : settings_(std::move(settings)),
      options_(settings_.options),
      here_(&loop_, {.directory = settings_.where.directory,
                     .gives_stdin = true,
                     .terminal_group = settings_.where.guard_group,
                     .others =
                         [this] {
                           std::set<pid_t> pids;
                           for (const RemoteNode* remote : Remotes()) {
                             if (!remote->ended()) pids.insert(remote->pid());
                           }
                           if (elastic_) pids.insert(elastic_->script());
                           return pids;
                         },
                     .others_ended = [this] { return !AwaitsHosts(); },
                     .events = EventsOf("")}),
      supervision_(options_.elastic ? 0 : options_.ranks,
                   std::chrono::seconds(options_.stop_timeout_s)),
      leavers_(options_.elastic ? 0 : options_.ranks),
      start_(TerminalWidth(2)) {}

JobLauncher::~JobLauncher() = default;

int JobLauncher::Run() {
  Status status = Prepare();
  if (status.ok() && options_.elastic) {
    status = StartElastic();
  } else if (status.ok()) {
    status = StartNodes();
    if (status.ok()) status = StartRanks();
  }
  if (status.ok()) {
    while (!Over()) Round(supervision_.deadline());
  }
  End();
  if (lost_files_ > 1) {
    Say(std::to_string(lost_files_) + " files in " + options_.output_directory +
        " end early: they could not be written");
  }
  if (!status.ok()) {
    Say(status.message());
  } else {
    Report();
  }
  WriteOutcome(status);
  ShowRest();
  if (!status.ok() && !supervision_.interrupted()) return 1;
  const int code = supervision_.exit_code();
  const bool lost = !out_.lost().empty() || !err_.lost().empty();
  return code == 0 && lost ? kLostOutputCode : code;
}

std::vector<RemoteNode*> JobLauncher::Remotes() const {
  if (elastic_) return elastic_->remotes();
  std::vector<RemoteNode*> remotes;
  for (const auto& remote : remotes_) remotes.push_back(remote.get());
  return remotes;
}

void JobLauncher::ForEachStream(const std::function<void(OutputStream&)>& f) {
  for (const auto& rank : ranks_) {
    if (!rank->out) continue;
    f(*rank->out);
    f(*rank->err);
  }
  for (auto& [name, log] : daemon_logs_) f(log);
}

void JobLauncher::Round(std::optional<Time> deadline) {
  deadline = Earlier(deadline, leavers_.deadline());
  deadline = Earlier(deadline, start_.deadline());
  deadline = Earlier(deadline, answer_by_);
  deadline = Earlier(deadline, here_.deadline());
  if (elastic_) deadline = Earlier(deadline, elastic_->deadline());
  ForEachStream([&](OutputStream& stream) {
    deadline = Earlier(deadline, stream.deadline());
  });
  loop_.Poll(deadline);
  Time now = Now();
  here_.OnTime(now);
  if (elastic_) elastic_->Continue(now);
  ForEachStream([&](OutputStream& stream) { stream.OnTime(now); });
  int signal = supervision_.OnTime(now);
  if (signal == SIGTERM) Say("the other ranks did not end: sending SIGTERM");
  SignalRanks(signal, false);
  GiveUpSilentHosts(now);
  TellLostOutput();
  ShowStart(now);
  if (std::string line = leavers_.TakeLine(now); !line.empty()) Say(line);
}

void JobLauncher::OnSignal(const signalfd_siginfo& info) {
  if (getppid() != settings_.where.guard) {
    here_.Hurry();
    return SignalRanks(supervision_.OnLauncherLost(), false);
  }
  const int number = static_cast<int>(info.ssi_signo);
  if (IsPassedOn(number)) return SignalRanks(number, false);
  const bool first = !supervision_.interrupted();
  leavers_.Stop();
  StopStart();
  if (elastic_) elastic_->Stop();
  const int signal = supervision_.OnSignal(number, Now());
  if (first) {
    here_.Hurry();
    for (RemoteNode* const remote : Remotes()) {
      if (!options_.verbose) remote->Mute();
      remote->Hurry();
    }
    const std::string grace =
        number == SIGTERM && !supervision_.ranks_ended()
            ? "; ranks have " + std::to_string(options_.stop_timeout_s) +
                  " s to end (--stop-timeout)"
            : "";
    Say("got signal " + std::to_string(number) + " (" + strsignal(number) +
        "): stopping the job" + grace);
  }
  // The guard sets the value if the signal came from the terminal.
  SignalRanks(signal, info.ssi_int == 1);
}

NodeEvents JobLauncher::EventsOf(const std::string& host) {
  NodeEvents events = {
      .on_rank_started = [this](int rank,
                                pid_t pid) { OnRankStarted(rank, pid); },
      .on_rank_output =
          [this](int rank, int stream, std::string_view bytes) {
            const auto& r = ranks_[static_cast<size_t>(rank)];
            const auto& out = stream == 0 ? r->out : r->err;
            if (out) out->Take(bytes);  // elastic: until its end
          },
      .on_rank_joined = [this](int rank) { OnRankJoined(rank); },
      .on_rank_result =
          [this](int rank, std::string_view bytes) { OnResult(rank, bytes); },
      .on_rank_ended =
          [this](int rank, Exit exit) {
            OnRankEnded(ranks_[static_cast<size_t>(rank)].get(), exit);
          },
      .on_daemon_log =
          [this](const std::string& daemon, std::string_view bytes) {
            OnDaemonLog(daemon, bytes);
          },
      .on_daemon_lost =
          [this, host](const std::string& what, bool returns) {
            OnDaemonLost(host.empty() ? what : host + ": " + what, returns);
          }};
  // A job's only rank inherits our stdout and stderr.
  if (host.empty() && RawOutput()) events.on_rank_output = {};
  return events;
}

void JobLauncher::OnRankStarted(int rank, pid_t pid) {
  ranks_[static_cast<size_t>(rank)]->pid = pid;
  if (options_.verbose) Say(Who(rank) + " started");
}

void JobLauncher::OnRankEnded(Rank* rank, Exit exit) {
  if (!rank->alive) return;
  rank->alive = false;
  StopStart();
  Clues clues;
  if (rank->err) {
    // All output has been read; show unfinished lines too.
    rank->out->Flush();
    rank->err->Flush();
    const Tail& tail = rank->err->tail();
    clues = {.last_traceback = tail.last_traceback(),
             .maypole_error = tail.maypole_error()};
  }
  if (elastic_ && !elastic_->OnProcessEnd(rank->place.rank, exit)) {
    CloseOutput(rank);
    if (!exit.clean()) return supervision_.OnRankReplaced();
  }
  bool first = !supervision_.first_failure();
  SignalRanks(supervision_.OnRankExit(rank->place.rank, exit, Now(), clues),
              false);
  if (!supervision_.interrupted() && !elastic_) {
    leavers_.OnRankExit(rank->place.rank, exit.clean(), Now());
  }
  if (first && supervision_.first_failure() && !supervision_.ranks_ended()) {
    Say(Who(rank->place.rank) + " " + Describe(exit) +
        "; waiting up to 5 s for the other ranks to end");
  }
}

void JobLauncher::OnResult(int rank, std::string_view bytes) {
  if (options_.function_directory.empty()) return;  // another host is wrong
  const Status status =
      AppendPrivately(ResultFile(options_.function_directory, rank), bytes);
  if (!status.ok()) Say(status.message());
}

void JobLauncher::OnDaemonLog(const std::string& daemon,
                              std::string_view bytes) {
  // After a signal the log only reports ranks that we stopped.
  if (supervision_.interrupted() && !options_.verbose) return;
  const auto [it, added] = daemon_logs_.try_emplace(daemon);
  if (added) {
    // Open() can only fail if there is a file.
    (void)it->second.Open(
        {.id = kFirstDaemonStream + static_cast<int>(daemon_logs_.size()),
         .prefix = "[" + daemon + "] ",
         .sink = err_sink_});
  }
  it->second.Take(bytes);
}

void JobLauncher::OnHostLost(const RemoteNode& remote, const std::string& why) {
  if (!supervision_.interrupted()) Say(remote.host().name + ": " + why);
  for (const auto& rank : ranks_) {
    if (remote.Owns(rank->place.rank)) OnRankEnded(rank.get(), {.lost = true});
  }
}

// Gives up hosts that were told to kill their ranks and have not reported the
// end in time.
void JobLauncher::GiveUpSilentHosts(Time now) {
  if (!answer_by_ || now < *answer_by_) return;
  if (loop_.OutletsFull() && !supervision_.interrupted()) {
    // We do not read from hosts while our own output is blocked, by a pager for
    // example: allow more time.
    answer_by_ = now + kAnswerLimit.normal;
    return;
  }
  answer_by_ = std::nullopt;
  for (RemoteNode* const remote : Remotes()) {
    auto waits = [&](const auto& rank) {
      return rank->alive && remote->Owns(rank->place.rank);
    };
    if (std::any_of(ranks_.begin(), ranks_.end(), waits)) {
      remote->GiveUp("it does not answer");
    }
  }
}

void JobLauncher::OnDaemonLost(const std::string& what, bool returns) {
  if (elastic_) return OnElasticDaemonLost(what);
  // Ranks of several nodes would wait for the coordinator, and those that have
  // not joined, until their time is over.
  const bool needed = options_.nodes > 1 || awaited_ > 0;
  if (here_.CoordinatorIsLost() && needed && !ranks_.empty()) {
    Say(what + "; stopping the job");
    return SignalRanks(supervision_.OnJobFailed(Now()), false);
  }
  if (!returns && lost_daemon_.empty()) lost_daemon_ = what;
  Say(what);
}

// Prints a line for the first file only: a full disk affects all of them.
void JobLauncher::OnFileLost(const std::string& what) {
  if (++lost_files_ > 1) return;
  Say(what + "; nothing more goes there, and the job goes on");
}

// Once, on the other of the two; if both are one file or lost, the exit status
// must do.
void JobLauncher::TellLostOutput() {
  if (told_lost_output_ || (out_.lost().empty() && err_.lost().empty())) return;
  told_lost_output_ = true;
  const bool is_out = !out_.lost().empty();
  Sink* const other = is_out ? &err_ : &out_;
  if (!other->lost().empty() || err_sink_ == &out_) return;
  other->screen().WriteLine(
      kOwnStream, "maypolerun: ",
      std::string("cannot write to standard ") + (is_out ? "output" : "error") +
          ": " + (is_out ? out_ : err_).lost() +
          "; lines of ranks are missing there, and the job goes on");
}

void JobLauncher::SignalRanks(int signal, bool from_terminal) {
  if (signal == 0) return;
  here_.SignalRanks(signal, from_terminal);
  ToNode message;
  message.mutable_signal_ranks()->set_signal(signal);
  message.mutable_signal_ranks()->set_hurry(supervision_.interrupted());
  for (RemoteNode* const remote : Remotes()) remote->Send(message);
  if (signal == SIGKILL && !answer_by_) {
    answer_by_ = Now() + here_.core().Within(kAnswerLimit);
  }
}

bool JobLauncher::AwaitsHosts() const {
  const std::vector<RemoteNode*> remotes = Remotes();
  return std::any_of(remotes.begin(), remotes.end(),
                     [](const auto& remote) { return !remote->ended(); });
}

// Afterwards no process of the job is alive, and all its output has been read.
void JobLauncher::End() {
  if (elastic_) elastic_->Stop();
  const std::vector<RemoteNode*> remotes = Remotes();
  for (RemoteNode* const remote : remotes) remote->Finish();
  const Time asked = Now();
  if (!here_.End()) Say("some processes of the ranks could not be killed");
  for (const auto& rank : ranks_) {
    if (rank->here) rank->alive = false;
  }
  auto deadline = [&] { return asked + here_.core().Within(kHostLimit); };
  while (!here_.core().ended() || (AwaitsHosts() && Now() < deadline())) {
    Round(AwaitsHosts() ? std::optional<Time>(deadline()) : std::nullopt);
  }
  if (AwaitsHosts()) KillDescendants({}, kKillLimit.normal);
  remotes_.clear();
  ForEachStream([](OutputStream& stream) { stream.Flush(); });
}

// Writes the rest of the output after all processes have ended. The reader,
// such as a pager, may be slow; a signal or the death of our guard ends the
// wait.
void JobLauncher::ShowRest() {
  for (Sink* sink : {&out_, &err_}) sink->screen().EndLine();
  if (!hears_signals_) here_.Hurry();
  const Time since = Now();
  auto deadline = [&] { return since + here_.core().Within(kFinishLimit); };
  do {
    out_.Flush();
    TellLostOutput();
    err_.Flush();
    if (out_.idle() && err_.idle()) return;
    loop_.Poll(deadline());
  } while (Now() < deadline());
}

void JobLauncher::Report() {
  if (supervision_.interrupted()) return;
  const auto& failure = supervision_.first_failure();
  if (!failure) {
    if (!lost_daemon_.empty())
      Say("all ranks exited with code 0, but " + lost_daemon_);
    return;
  }
  if (!lost_daemon_.empty()) Say("before that, " + lost_daemon_);
  ShowLastWords(failure->rank);
  Say(Cause());
}

std::string JobLauncher::Cause() const {
  const auto& failure = supervision_.first_failure();
  if (!failure || supervision_.interrupted()) return {};
  return Who(failure->rank) + " " + Describe(failure->exit) + AlsoKilled() +
         (failure->maypole_error ? Suspects() : Leavers());
}

// Of several ranks that were killed at once, each may be the one to look at.
std::string JobLauncher::AlsoKilled() const {
  std::string text;
  const std::vector<Supervision::Failure> killed = supervision_.also_killed();
  for (size_t i = 0; i < killed.size(); ++i) {
    if (i == kMaxSuspects) {
      return text + "; " + std::to_string(killed.size() - i) +
             " more were killed by signals";
    }
    text += "; " + Who(killed[i].rank) + " " + Describe(killed[i].exit);
  }
  return text;
}

void JobLauncher::WriteOutcome(const Status& start) {
  if (options_.function_directory.empty()) return;
  Outcome outcome{.cause = start.ok() ? Cause() : start.message()};
  if (start.ok() && !outcome.cause.empty()) {
    outcome.rank = supervision_.first_failure()->rank;
  }
  const Status status =
      launcher::WriteOutcome(options_.function_directory, outcome);
  if (!status.ok()) Say(status.message());
}

// Prints the rank's last lines, unless they are the last lines on the screen.
void JobLauncher::ShowLastWords(int rank) {
  const auto& err = ranks_[rank]->err;
  if (!err || err->tail().empty()) return;
  Screen& screen = err_sink_->screen();
  if (screen.LastLinesAre(err->id(), err->tail().telling_lines())) return;
  Say(Who(rank) + ": its last lines of stderr:");
  for (const std::string& line : err->tail().Lines()) {
    screen.WriteLine(kOwnStream, err->prefix(), line);
  }
}

// If the failed rank got a Maypole error: the ranks that may have caused it.
std::string JobLauncher::Suspects() const {
  std::string text;
  // A lost daemon, which Report() has named, is the likely cause.
  if (!lost_daemon_.empty()) return text;
  std::vector<Supervision::Suspect> suspects = supervision_.suspects();
  for (size_t i = 0; i < suspects.size(); ++i) {
    text += i == 0
                ? " after a Maypole error, which another rank may have caused: "
                : ", ";
    if (i == kMaxSuspects) {
      return text + std::to_string(suspects.size() - i) + " more";
    }
    text += Who(suspects[i].rank) + (suspects[i].exited_well
                                         ? " exited with code 0"
                                         : " had to be stopped");
  }
  return text;
}

// Ranks that left long before, for which the failed rank may have waited.
std::string JobLauncher::Leavers() const {
  std::string text;
  const std::vector<int>& ranks = leavers_.told();
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += i == 0 ? "; long before, " : ", ";
    if (i == kMaxSuspects) {
      text += std::to_string(ranks.size() - i) + " more";
      break;
    }
    text += Who(ranks[i]);
  }
  return text + (ranks.empty() ? "" : " had exited with code 0");
}

std::string JobLauncher::Who(int rank) const {
  const Rank& r = *ranks_[rank];
  return (elastic_ ? "process " : "rank ") + std::to_string(rank) + " (" +
         (r.pid == 0 ? "" : "pid " + std::to_string(r.pid) + ", ") +
         (r.host.empty() ? NodeName(r.place.node) : "host " + r.host) + ")";
}

void JobLauncher::Say(const std::string& line) {
  err_sink_->screen().WriteLine(kOwnStream, "maypolerun: ", line);
}

}  // namespace maypole::launcher
