#include "client/launcher/node/node_runner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "client/launcher/command/options.h"
#include "client/launcher/output/sink.h"
#include "client/launcher/process/function_files.h"
#include "client/launcher/process/private_directory.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

constexpr int kWrongUsage = 2;
// How long to wait until the head has taken the last frames.
constexpr EndLimit kFinishLimit{std::chrono::milliseconds(2000),
                                std::chrono::milliseconds(50)};
constexpr size_t kReadBytes = 64 * 1024;

// The client's address in SSH_CONNECTION: "10.0.0.1 50000 10.0.0.2 22" has the
// client's address and port, then the server's.
std::string HeadAddress() {
  const char* connection = getenv("SSH_CONNECTION");
  if (connection == nullptr) return "";
  std::string text = connection;
  return text.substr(0, text.find(' '));
}

// Sets the head's variables here; ranks and agent inherit them.
void TakeEnvironment(const NodeJob& job) {
  for (const std::string& entry : job.environment()) {
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
                    "; ranks run in the directory where maypolerun was "
                    "started, so it must exist on every host");
}

Status CheckJob(const NodeJob& job) {
  const bool placed = job.nodes() >= 1 && job.nodes() <= kMaxHosts &&
                      job.node() < job.nodes() && job.first_rank() >= 0 &&
                      job.ranks() <= kMaxRanks &&
                      job.first_rank() <= job.ranks() - job.local_size();
  const bool good =
      (job.elastic() || placed) && job.node() >= 0 && job.local_size() >= 1 &&
      job.local_size() <= kMaxLocalRanks && job.command_size() >= 1 &&
      (!job.start_agent() || job.coordinators_size() >= 1);
  if (good) return Status();
  return Status(Code::kInvalidArgument, "the job's description is invalid");
}

}  // namespace

NodeRunner::NodeRunner(const Supervised& where)
    : directory_(where.directory),
      head_(kMaxPendingOutput),
      node_(&loop_, {.directory = directory_, .listener = this}) {}

int NodeRunner::Run() {
  Status status = Prepare();
  if (!status.ok()) Refuse(status.message());
  while (!ending_) Round();
  node_.End();
  while (!node_.core().ended()) Round();
  const Time deadline = Now() + node_.core().Within(kFinishLimit);
  while (!head_.idle() && Now() < deadline) {
    loop_.Poll(deadline);
  }
  return refused_ ? 1 : 0;
}

Status NodeRunner::Prepare() {
  // Works on copies of descriptors 0 and 1: if the head is gone and the copies
  // are closed, nothing else may get these numbers.
  Status status = head_.Open(&loop_, Fd(fcntl(1, F_DUPFD_CLOEXEC, 3)));
  if (!status.ok()) return status;
  head_.SendBytes(Preamble());
  FromNode hello;
  hello.mutable_hello()->set_head_address(HeadAddress());
  head_.Send(hello);
  status = node_.Prepare([this](const auto& info) { OnSignal(info); });
  if (!status.ok()) return status;
  fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
  return loop_.events()->Watch(Fd(fcntl(0, F_DUPFD_CLOEXEC, 3)),
                               {.readable = [this] { OnInput(); }}, &input_);
}

void NodeRunner::Round() {
  loop_.Poll(node_.deadline());
  node_.OnTime(Now());
  if (!ending_ && node_.AgentIsLost(node_number_)) Refuse(kAgentLost);
  if (state_ != kJob || ending_ || !node_.core().all_ready()) return;
  state_ = kReady;
  FromNode m;
  m.mutable_ready()->set_agent(node_.DescribeAgent());
  head_.Send(m);
}

void NodeRunner::OnInput() {
  char buffer[kReadBytes];
  ssize_t n = read(input_.fd(), buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    input_.Reset();
    ending_ = true;
    return;
  }
  frames_.Feed(std::string_view(buffer, static_cast<size_t>(n)));
  ToNode message;
  bool found = true;
  while (!ending_ && found) {
    Status status = frames_.Next(&message, &found);
    if (!status.ok()) return Refuse(status.message());
    if (found) OnMessage(&message);
  }
}

void NodeRunner::OnMessage(ToNode* message) {
  Status status;
  if (message->has_function_part() && state_ == kNoJob) {
    status = AppendPrivately(FunctionFile(directory_),
                             message->function_part().bytes());
  } else if (message->has_job() && state_ == kNoJob) {
    state_ = kJob;
    status = TakeJob(std::move(*message->mutable_job()));
  } else if (message->has_start_rank() && state_ == kReady) {
    StartProcess(message->start_rank());
  } else if (message->has_signal_ranks()) {
    Signal(message->signal_ranks());
  } else {
    status = Garbled("an unexpected message");
  }
  if (!status.ok()) Refuse(status.message());
}

// If the process cannot be started, the node's other processes are not
// affected.
void NodeRunner::StartProcess(const StartRank& start) {
  const Status status =
      node_.StartProcess(node_number_, start.rank(), start.slot());
  if (status.ok()) return;
  OnRank(OutputOf(start.rank(), RankOutput::STDERR, status.message() + "\n"));
  OnRank(EndOf(start.rank(), kNotStarted));
}

void NodeRunner::Signal(const SignalRanks& m) {
  if (m.hurry()) node_.Hurry();
  if (m.has_only()) return node_.SignalRank(m.only(), m.signal());
  node_.SignalRanks(m.signal(), false);
}

void NodeRunner::OnSignal(const signalfd_siginfo& info) {
  const int number = static_cast<int>(info.ssi_signo);
  if (IsPassedOn(number)) return node_.SignalRanks(number, false);
  // A user has sent the signal, the system shuts down, or our guard has died.
  Refuse("maypolerun there got signal " + std::to_string(number) + " (" +
         strsignal(number) + ")");
}

void NodeRunner::Refuse(const std::string& why) {
  FromNode m;
  m.mutable_refused()->set_why(why);
  if (!std::exchange(refused_, true)) head_.Send(m);
  ending_ = true;
}

Status NodeRunner::TakeJob(NodeJob job) {
  Status status = CheckJob(job);
  if (!status.ok()) return status;
  node_number_ = job.node();
  TakeEnvironment(job);
  if (!job.function().empty()) job.set_function(FunctionFile(directory_));
  status = Enter(job.directory());
  std::string secret;
  if (status.ok() && !job.secret().empty()) {
    secret = directory_ + "/secret";
    status = WriteSecretFile(secret, job.secret());
  }
  return status.ok() ? node_.AddNode(std::move(job), secret) : status;
}

void NodeRunner::OnDaemonLog(const std::string&, std::string_view bytes) {
  head_.Send(OutputOf(0, RankOutput::AGENT_LOG, bytes));
}

void NodeRunner::OnDaemonLost(const std::string& what, bool) {
  FromNode m;
  m.mutable_daemon_lost()->set_what(what);
  head_.Send(m);
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
