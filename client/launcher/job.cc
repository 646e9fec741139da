#include "client/launcher/job.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

// How long the end may take, in its parts; shorter after a signal, because
// within 2 s of it everything must be over (kInterruptGrace is spent first).
constexpr milliseconds kDrainLimit{1000}, kDrainLimitInterrupted{100};
constexpr milliseconds kDaemonLimit{3000}, kDaemonLimitInterrupted{200};
constexpr milliseconds kKillLimit{1000}, kKillLimitInterrupted{100};
constexpr milliseconds kFinishLimitInterrupted{50};
// Another host does the same as we do, and has a way to go.
constexpr milliseconds kHostLimit{6000}, kHostLimitInterrupted{300};
// From the order to kill to the news that it was done.
constexpr milliseconds kAnswerLimit{5000}, kAnswerLimitInterrupted{150};
constexpr size_t kMaxSuspects = 4;                      // named
constexpr milliseconds kFinishLimit{24 * 3600 * 1000};  // a pager may wait

Time Now() { return std::chrono::steady_clock::now(); }

std::optional<Time> Earlier(std::optional<Time> a, std::optional<Time> b) {
  if (!a) return b;
  if (!b) return a;
  return std::min(*a, *b);
}

}  // namespace

Job::Job(Settings settings)
    : settings_(std::move(settings)),
      options_(settings_.options),
      supervision_(settings_.options.ranks),
      leavers_(settings_.options.ranks) {}

Job::~Job() = default;

int Job::Run() {
  // What ranks leave behind comes to us, and can be ended.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Status status = Prepare();
  if (status.ok()) status = StartNodes();
  if (status.ok()) status = StartRanks();
  if (status.ok()) {
    while (!supervision_.ranks_ended()) Round(supervision_.deadline());
  }
  EndRanks();
  EndDaemons();
  if (lost_files_ > 1) {
    Say(std::to_string(lost_files_) + " files in " + options_.output_directory +
        " end early: they could not be written");
  }
  if (!status.ok()) {
    Say(status.message());
  } else {
    Report();
  }
  ShowRest();
  if (!status.ok() && !supervision_.interrupted()) return 1;
  return supervision_.exit_code();
}

void Job::Round(std::optional<Time> deadline) {
  deadline = Earlier(deadline, leavers_.deadline());
  deadline = Earlier(deadline, answer_by_);
  if (daemons_) deadline = Earlier(deadline, daemons_->deadline());
  for (const auto& remote : remotes_) {
    deadline = Earlier(deadline, remote->deadline());
  }
  for (const auto& rank : ranks_) {
    if (!rank->out) continue;
    deadline = Earlier(deadline, rank->out->deadline());
    deadline = Earlier(deadline, rank->err->deadline());
  }
  loop_.Poll(deadline);
  Time now = Now();
  if (daemons_) daemons_->OnTime(now);
  for (const auto& remote : remotes_) remote->OnTime(now);
  for (const auto& rank : ranks_) {
    if (!rank->out) continue;
    rank->out->OnTime(now);
    rank->err->OnTime(now);
  }
  int signal = supervision_.OnTime(now);
  if (signal == SIGTERM) Say("the other ranks did not end: SIGTERM");
  SignalRanks(signal, false);
  GiveUpSilentHosts(now);
  if (std::string line = leavers_.TakeLine(now); !line.empty()) Say(line);
}

void Job::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      ReapOrphans(KnownProcesses());
    } else if (getppid() != settings_.where.guard) {
      SignalRanks(supervision_.OnLauncherLost(), false);
    } else {
      bool first = !supervision_.interrupted();
      leavers_.Stop();
      int signal =
          supervision_.OnSignal(static_cast<int>(info.ssi_signo), Now());
      if (first) {
        // What they would tell now is that ranks are lost: we know why.
        if (daemons_ && !options_.verbose) daemons_->Mute();
        for (const auto& remote : remotes_) {
          if (!options_.verbose) remote->Mute();
          remote->Hurry();
        }
        Say("got signal " + std::to_string(info.ssi_signo) + " (" +
            strsignal(static_cast<int>(info.ssi_signo)) +
            "): stopping the job");
      }
      // The guard sets the value if the signal came from the terminal.
      SignalRanks(signal, info.ssi_int == 1);
    }
  }
}

void Job::OnRankEnd(Rank* rank) {
  // What it left in its process group has lost its job. Before reaping, while
  // the group's number cannot be another's.
  if (!rank->foreground) kill(-rank->child.pid, SIGKILL);
  std::optional<Exit> exit = Reap(rank->child.pid);
  if (!exit) return;
  loop_.Unwatch(rank->watch);
  rank->child.pidfd.Reset();
  OnRankEnded(rank, *exit);
}

void Job::OnRankEnded(Rank* rank, Exit exit) {
  if (!rank->alive) return;
  rank->alive = false;
  Clues clues;
  if (rank->err) {
    for (const auto& stream : {rank->out.get(), rank->err.get()}) {
      stream->Drain();
      // From another host all has come; what is unfinished belongs to the end.
      if (rank->remote) stream->OnTime(Time::max());
    }
    const Tail& tail = rank->err->tail();
    clues = {.last_traceback = tail.last_traceback(),
             .maypole_error = tail.maypole_error()};
  }
  bool first = !supervision_.first_failure();
  SignalRanks(supervision_.OnRankExit(rank->place.rank, exit, Now(), clues),
              false);
  if (!supervision_.interrupted()) {
    leavers_.OnRankExit(rank->place.rank, exit.clean(), Now());
  }
  if (first && supervision_.first_failure() && !supervision_.ranks_ended()) {
    Say(Who(rank->place.rank) + " " + Describe(exit) +
        "; waiting up to 5 s for the other ranks to end");
  }
}

void Job::OnHostLost(const RemoteNode& remote, const std::string& why) {
  if (!supervision_.interrupted()) Say(remote.host().name + ": " + why);
  for (const auto& rank : ranks_) {
    if (rank->remote == &remote) OnRankEnded(rank.get(), {.lost = true});
  }
}

// They were told to kill their ranks, and we cannot wait for ever.
void Job::GiveUpSilentHosts(Time now) {
  if (!answer_by_ || now < *answer_by_) return;
  if (loop_.OutletsFull() && !supervision_.interrupted()) {
    // The answer comes behind output that nobody reads: a pager may wait.
    answer_by_ = now + kAnswerLimit;
    return;
  }
  answer_by_ = std::nullopt;
  for (const auto& rank : ranks_) {
    if (rank->alive && rank->remote) rank->remote->GiveUp("it does not answer");
  }
}

void Job::OnDaemonLost(const std::string& what) {
  if (lost_daemon_.empty()) lost_daemon_ = what;
  Say(what);
}

// One line for all files: with a full disk they go together.
void Job::OnFileLost(const std::string& what) {
  if (++lost_files_ > 1) return;
  Say(what + "; nothing more goes there, and the job goes on");
}

void Job::SignalRanks(int signal, bool from_terminal) {
  if (signal == 0) return;
  for (const auto& rank : ranks_) {
    if (!rank->alive || rank->remote) continue;
    if (!rank->foreground) {
      kill(-rank->child.pid, signal);
    } else if (!from_terminal) {  // else it got the signal as we did
      kill(rank->child.pid, signal);
    }
  }
  for (const auto& remote : remotes_) {
    remote->Send(launcher::SignalRanks{.signal = signal,
                                       .hurry = supervision_.interrupted()});
  }
  if (signal == SIGKILL && !answer_by_) {
    answer_by_ = Now() + (supervision_.interrupted() ? kAnswerLimitInterrupted
                                                     : kAnswerLimit);
  }
}

std::set<pid_t> Job::KnownProcesses() const {
  std::set<pid_t> known;
  if (daemons_) known = daemons_->pids();
  for (const auto& rank : ranks_) {
    if (rank->alive && !rank->remote) known.insert(rank->child.pid);
  }
  for (const auto& remote : remotes_) {
    if (!remote->ended()) known.insert(remote->pid());
  }
  return known;
}

// After this no rank here and nothing it has started lives, and all they wrote
// was taken. Other hosts begin to do the same.
void Job::EndRanks() {
  std::set<pid_t> keep;
  if (daemons_) keep = daemons_->pids();
  for (const auto& remote : remotes_) {
    remote->Finish();
    if (!remote->ended()) keep.insert(remote->pid());
  }
  if (!KillDescendants(keep, supervision_.interrupted() ? kKillLimitInterrupted
                                                        : kKillLimit)) {
    Say("some processes of the ranks could not be ended");
  }
  for (const auto& rank : ranks_) {
    if (!rank->alive || rank->remote) continue;
    // Reaped above: from now on its process id may be another's.
    rank->alive = false;
    loop_.Unwatch(rank->watch);
    rank->child.pidfd.Reset();
  }
  Time deadline = Now() + (supervision_.interrupted() ? kDrainLimitInterrupted
                                                      : kDrainLimit);
  auto ended = [](const auto& rank) {
    return !rank->out || rank->remote ||
           (rank->out->ended() && rank->err->ended());
  };
  while (!std::all_of(ranks_.begin(), ranks_.end(), ended) &&
         Now() < deadline) {
    Round(deadline);
  }
  for (const auto& rank : ranks_) {
    if (!rank->out || rank->remote) continue;
    rank->out->Close();
    rank->err->Close();
  }
}

void Job::EndDaemons() {
  if (!daemons_ && remotes_.empty()) return;
  if (daemons_) daemons_->Stop(SIGTERM);
  Time asked = Now();
  auto deadline = [&] {
    if (supervision_.interrupted()) {
      return asked + (remotes_.empty() ? kDaemonLimitInterrupted
                                       : kHostLimitInterrupted);
    }
    return asked + (remotes_.empty() ? kDaemonLimit : kHostLimit);
  };
  auto all_ended = [this] {
    return (!daemons_ || daemons_->all_ended()) &&
           std::all_of(remotes_.begin(), remotes_.end(),
                       [](const auto& remote) { return remote->ended(); });
  };
  while (!all_ended() && Now() < deadline()) Round(deadline());
  // Also executors that a killed agent has left.
  KillDescendants({}, kKillLimit);
  for (const auto& rank : ranks_) {
    if (!rank->out || !rank->remote) continue;
    rank->out->Close();
    rank->err->Close();
  }
}

// All processes have ended. A pager may take its time, but a signal or the loss
// of our guard ends the wait. In a loop of its own: a daemon that had to be
// killed is still watched in the other one, always readable: a busy loop.
void Job::ShowRest() {
  EventLoop loop;
  const bool deaf = !loop.Init({&out_, &err_}).ok() || !signals_.valid();
  loop.Watch(EventLoop::kControl, signals_.get(), [this] { OnSignals(); });
  for (Sink* sink : {&out_, &err_}) sink->screen().EndLine();
  bool hurried = deaf || supervision_.interrupted();
  Time deadline = Now() + (hurried ? kFinishLimitInterrupted : kFinishLimit);
  while ((!out_.idle() || !err_.idle()) && Now() < deadline) {
    loop.Poll(deadline);
    if (supervision_.interrupted() && !std::exchange(hurried, true)) {
      deadline = Now() + kFinishLimitInterrupted;
    }
  }
}

void Job::Report() {
  if (supervision_.interrupted()) return;
  const auto& failure = supervision_.first_failure();
  if (!failure) {
    if (!lost_daemon_.empty()) Say("all ranks ended well, but " + lost_daemon_);
    return;
  }
  if (!lost_daemon_.empty()) Say("before that, " + lost_daemon_);
  ShowLastWords(failure->rank);
  Say(Who(failure->rank) + " " + Describe(failure->exit) + Suspects());
}

// The rank's last lines, unless they stand last already.
void Job::ShowLastWords(int rank) {
  const auto& err = ranks_[rank]->err;
  if (!err || err->tail().empty()) return;
  Screen& screen = err_sink_->screen();
  if (screen.LastLinesAre(err->id(), err->tail().telling_lines())) return;
  Say(Who(rank) + ": its last lines of stderr:");
  for (const std::string& line : err->tail().Lines()) {
    screen.WriteLine(kOwnStream, err->prefix(), line);
  }
}

// Whose trouble the failed rank may have had.
std::string Job::Suspects() const {
  std::string text;
  // With a daemon lost, that is the reason.
  if (!lost_daemon_.empty()) return text;
  std::vector<Supervision::Suspect> suspects = supervision_.suspects();
  for (size_t i = 0; i < suspects.size(); ++i) {
    text += i == 0 ? " by Maypole's error, which another rank may have caused: "
                   : ", ";
    if (i == kMaxSuspects) {
      return text + std::to_string(suspects.size() - i) + " more";
    }
    text += Who(suspects[i].rank) + (suspects[i].exited_well
                                         ? " had exited with code 0"
                                         : " did not end by itself");
  }
  return text;
}

std::string Job::Who(int rank) const {
  const Rank& r = *ranks_[rank];
  const auto node = static_cast<size_t>(r.place.node);
  return "rank " + std::to_string(rank) + " (" +
         (r.pid == 0 ? "" : "pid " + std::to_string(r.pid) + ", ") +
         (options_.hosts.empty() ? NodeName(r.place.node)
                                 : "host " + options_.hosts[node].name) +
         ")";
}

void Job::Say(const std::string& line) {
  err_sink_->screen().WriteLine(kOwnStream, "maypolerun: ", line);
}

}  // namespace maypole::launcher
