#include "client/launcher/node_runner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "client/launcher/options.h"
#include "client/launcher/own_addresses.h"
#include "client/launcher/placement.h"
#include "client/launcher/private_directory.h"
#include "client/launcher/rank_start.h"
#include "common/unix_socket.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

constexpr int kWrongUsage = 2;
// How long the end may take, in its parts; shorter when the head is
// interrupted, because it must be over within 2 s.
constexpr milliseconds kDrainLimit{1000}, kDrainLimitInHurry{100};
constexpr milliseconds kDaemonLimit{3000}, kDaemonLimitInHurry{200};
constexpr milliseconds kKillLimit{1000}, kKillLimitInHurry{100};
constexpr milliseconds kFinishLimit{2000}, kFinishLimitInHurry{50};
constexpr milliseconds kConnectLimit{2000};  // to the coordinator
constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMaxOutputBytes = 64 * 1024;  // of a frame

Time Now() { return std::chrono::steady_clock::now(); }

// "10.0.0.1 50000 10.0.0.2 22": from, to.
std::string HeadAddress() {
  const char* connection = getenv("SSH_CONNECTION");
  if (connection == nullptr) return "";
  std::string text = connection;
  return text.substr(0, text.find(' '));
}

// The head's variables become ours, and so our ranks' and our agent's.
void TakeEnvironment(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    size_t equals = entry.find('=');
    if (equals == 0 || equals == entry.npos) continue;
    setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
}

Status Enter(const std::string& directory) {
  if (chdir(directory.c_str()) == 0) {
    setenv("PWD", directory.c_str(), 1);
    return Status();
  }
  return Status(Code::kFailedPrecondition,
                "cannot enter " + directory + ": " + strerror(errno) +
                    "; ranks run in the directory that maypolerun is started "
                    "in, so it must be there on each host");
}

Status CheckJob(const NodeJob& job) {
  bool good = job.protocol == kNodeProtocol && job.nodes >= 1 &&
              job.nodes <= kMaxHosts && job.node >= 0 && job.node < job.nodes &&
              job.local_size >= 1 && job.local_size <= kMaxLocalRanks &&
              job.first_rank >= 0 && job.ranks <= kMaxRanks &&
              job.first_rank <= job.ranks - job.local_size &&
              !job.command.empty();
  if (good) return Status();
  return Status(Code::kInvalidArgument, "the job's description is wrong");
}

}  // namespace

NodeRunner::NodeRunner(Supervised where)
    : where_(std::move(where)),
      // Not the number 1: it must not become another's if the head is gone.
      head_(Fd(fcntl(1, F_DUPFD_CLOEXEC, 3)), kMaxPendingOutput) {}

NodeRunner::~NodeRunner() = default;

int NodeRunner::Run() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Status status = Prepare();
  if (!status.ok()) Refuse(status.message());
  while (!ending_) Round(std::nullopt);
  EndRanks();
  EndDaemons();
  head_.Finish(hurry_ ? kFinishLimitInHurry : kFinishLimit);
  return refused_ ? 1 : 0;
}

Status NodeRunner::Prepare() {
  Status status = loop_.Init({&head_});
  if (!status.ok()) return status;
  head_.SendBytes(Preamble());
  head_.Send(NodeHello{.head_address = HeadAddress()});
  getrlimit(RLIMIT_NOFILE, &files_);
  rlimit most = {.rlim_cur = files_.rlim_max, .rlim_max = files_.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
  sigset_t set = EndingSignals();
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "signalfd");
  loop_.Watch(EventLoop::kControl, signals_.get(), [this] { OnSignals(); });
  fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
  input_watch_ = loop_.Watch(EventLoop::kControl, 0, [this] { OnInput(); });
  return Status();
}

void NodeRunner::Round(std::optional<Time> deadline) {
  loop_.Poll(deadline);
  if (daemons_) daemons_->OnTime(Now());
  bool ready = !daemons_ || daemons_->all_ready();
  if (!job_ || ending_ || told_ready_ || !ready) return;
  told_ready_ = true;
  std::string agent = agent_.empty() ? "" : "socket=" + agent_;
  if (daemons_) agent = daemons_->Summary().front();
  head_.Send(NodeReady{.agent = agent});
}

void NodeRunner::OnInput() {
  char buffer[kReadBytes];
  ssize_t n = read(0, buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    loop_.Unwatch(input_watch_);
    ending_ = true;
    return;
  }
  frames_.Feed(std::string_view(buffer, static_cast<size_t>(n)));
  std::optional<NodeMessage> message;
  while (!ending_) {
    Status status = frames_.Next(&message);
    if (!status.ok()) return Refuse(status.message());
    if (!message) return;
    OnMessage(&*message);
  }
}

void NodeRunner::OnMessage(NodeMessage* message) {
  if (auto* job = std::get_if<NodeJob>(message); job != nullptr && !job_) {
    job_ = std::move(*job);
    Status status = TakeJob();
    if (!status.ok()) Refuse(status.message());
  } else if (std::holds_alternative<launcher::StartRanks>(*message) &&
             told_ready_ && ranks_.empty()) {
    Status status = StartRanks();
    if (!status.ok()) Refuse(status.message());
  } else if (auto* signal = std::get_if<SignalRanks>(message)) {
    hurry_ = hurry_ || signal->hurry;
    for (const auto& rank : ranks_) {
      if (rank->alive) kill(-rank->child.pid, signal->signal);
    }
  } else {
    Refuse("a message out of turn came through ssh");
  }
}

void NodeRunner::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      ReapOrphans(KnownProcesses());
    } else {
      // By hand, by the system's end, or our guard is gone.
      Refuse("maypolerun there got signal " + std::to_string(info.ssi_signo) +
             " (" + strsignal(static_cast<int>(info.ssi_signo)) + ")");
    }
  }
}

void NodeRunner::Refuse(const std::string& why) {
  if (!std::exchange(refused_, true)) head_.Send(NodeRefused{.why = why});
  ending_ = true;
}

Status NodeRunner::TakeJob() {
  Status status = CheckJob(*job_);
  if (!status.ok()) return status;
  TakeEnvironment(job_->environment);
  status = Enter(job_->directory);
  if (!status.ok()) return status;
  status = FindProgram(job_->command[0], &program_);
  if (!status.ok()) {
    return Status(status.code(), "cannot run " + status.message());
  }
  if (job_->running_agent) {
    agent_ = job_->agent_socket;
    return FindRunningAgent(&agent_);
  }
  return job_->start_agent ? StartAgent() : Status();
}

Status NodeRunner::StartAgent() {
  std::string coordinator;
  std::string network = job_->network;
  std::string secret;
  Status status;
  if (job_->coordinators.size() == 1) {
    coordinator = job_->coordinators[0];
  } else {
    status = FirstThatAccepts(job_->coordinators, kConnectLimit, &coordinator);
    if (!status.ok()) return status;
  }
  if (!job_->interfaces.empty()) {
    status = AddressOfInterface(job_->interfaces, &network);
    if (!status.ok()) return status;
  }
  if (!job_->secret.empty()) {
    secret = where_.directory + "/secret";
    status = WriteSecretFile(secret, job_->secret);
    if (!status.ok()) return status;
  }
  std::string name = NodeName(job_->node);
  agent_ = where_.directory + "/" + name + ".sock";
  daemons_ = std::make_unique<Daemons>(
      &loop_, Daemons::Settings{.raw_log =
                                    [this](std::string_view bytes) {
                                      SendOutput(kLogOfTheNode, 0, bytes);
                                    },
                                .files = {.rlim_cur = files_.rlim_max,
                                          .rlim_max = files_.rlim_max},
                                .on_lost =
                                    [this](const std::string& what) {
                                      head_.Send(DaemonLost{.what = what});
                                    }});
  return daemons_->Start(
      name, WorkerArguments({.node = name,
                             .host = job_->host,
                             .socket = agent_,
                             .coordinator = coordinator,
                             .secret_file = secret,
                             .network = network,
                             .start_timeout_s = job_->start_timeout_s,
                             .verbose = job_->verbose}));
}

Status NodeRunner::StartRanks() {
  JobEnvironment job;
  job.ranks = job_->ranks;
  job.nodes = job_->nodes;
  job.job = job_->job;
  job.token = job_->token;
  job.start_timeout_s = job_->start_timeout_s;
  job.usable_cores = UsableCores();
  job.ranks_here = job_->local_size;
  if (!agent_.empty()) {
    job.agents.resize(static_cast<size_t>(job.nodes));
    job.agents[static_cast<size_t>(job_->node)] = agent_;
  }
  for (int local = 0; local < job_->local_size; ++local) {
    Status status = StartRank(job, {.rank = job_->first_rank + local,
                                    .node = job_->node,
                                    .local_rank = local,
                                    .local_size = job_->local_size});
    if (!status.ok()) return status;
  }
  return Status();
}

Status NodeRunner::StartRank(const JobEnvironment& job, const Place& place) {
  SpawnSpec spec = RankSpec(program_, job_->command, job, place);
  spec.files = files_;
  auto rank = std::make_unique<Rank>();
  rank->rank = place.rank;
  Fd writers[2];
  int stream = 0;
  for (auto* output : {&rank->out, &rank->err}) {
    *output = std::make_unique<OutputStream>(&loop_);
    Status status = (*output)->Open(
        {.raw =
             [this, number = place.rank, stream](std::string_view bytes) {
               SendOutput(number, stream, bytes);
             }},
        &writers[stream]);
    if (!status.ok()) return status;
    ++stream;
  }
  spec.stdout_fd = writers[0].get();
  spec.stderr_fd = writers[1].get();
  Status status = Spawn(spec, &rank->child);
  if (!status.ok()) return status;
  rank->alive = true;
  Rank* r = rank.get();
  rank->watch = loop_.Watch(EventLoop::kControl, rank->child.pidfd.get(),
                            [this, r] { OnRankEnd(r); });
  head_.Send(RankStarted{.rank = place.rank, .pid = rank->child.pid});
  ranks_.push_back(std::move(rank));
  return Status();
}

void NodeRunner::SendOutput(int rank, int stream, std::string_view bytes) {
  for (; !bytes.empty();) {
    std::string_view part = bytes.substr(0, kMaxOutputBytes);
    bytes.remove_prefix(part.size());
    head_.Send(
        RankOutput{.rank = rank, .stream = stream, .bytes = std::string(part)});
  }
}

void NodeRunner::OnRankEnd(Rank* rank) {
  // What it left in its process group has lost its job (see Job::OnRankEnd).
  kill(-rank->child.pid, SIGKILL);
  std::optional<Exit> exit = Reap(rank->child.pid);
  if (!exit) return;
  loop_.Unwatch(rank->watch);
  rank->child.pidfd.Reset();
  rank->alive = false;
  rank->out->Drain();
  rank->err->Drain();
  head_.Send(RankEnded{
      .rank = rank->rank, .signaled = exit->signaled, .value = exit->value});
}

std::set<pid_t> NodeRunner::KnownProcesses() const {
  std::set<pid_t> known;
  if (daemons_) known = daemons_->pids();
  for (const auto& rank : ranks_) {
    if (rank->alive) known.insert(rank->child.pid);
  }
  return known;
}

void NodeRunner::EndRanks() {
  std::set<pid_t> keep;
  if (daemons_) keep = daemons_->pids();
  KillDescendants(keep, hurry_ ? kKillLimitInHurry : kKillLimit);
  Time deadline = Now() + (hurry_ ? kDrainLimitInHurry : kDrainLimit);
  auto ended = [](const auto& rank) {
    return rank->out->ended() && rank->err->ended();
  };
  while (!std::all_of(ranks_.begin(), ranks_.end(), ended) &&
         Now() < deadline) {
    Round(deadline);
  }
  for (const auto& rank : ranks_) {
    rank->out->Close();
    rank->err->Close();
  }
}

void NodeRunner::EndDaemons() {
  if (!daemons_) return;
  daemons_->Stop(SIGTERM);
  Time deadline = Now() + (hurry_ ? kDaemonLimitInHurry : kDaemonLimit);
  while (!daemons_->all_ended() && Now() < deadline) Round(deadline);
  // Also executors that a killed agent has left.
  KillDescendants({}, kKillLimit);
}

int RunNodeOfJob() {
  struct stat in;
  if (fstat(0, &in) != 0 || !(S_ISFIFO(in.st_mode) || S_ISSOCK(in.st_mode))) {
    fputs(
        "maypolerun: --node-of-job is for maypolerun itself, which starts it "
        "on other hosts by ssh\n",
        stderr);
    return kWrongUsage;
  }
  return RunGuarded(
      true, [](const Supervised& where) { return NodeRunner(where).Run(); });
}

}  // namespace maypole::launcher
