// An MPS daemon of our own, in the foreground as our child, with its pipes and
// logs in a new directory.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/probe/lab/command.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {
namespace {

constexpr char kControl[] = "nvidia-cuda-mps-control";
constexpr Duration kCommandTimeout = Seconds(5);
constexpr Duration kQuitTimeout = Seconds(10);
constexpr Duration kClientTimeout = Seconds(30);
// A server that starts may refuse clients until it is ready.
constexpr Duration kServerStart = Seconds(10);
constexpr size_t kLogTail = 300;

// What the daemon wrote last, in one line.
std::string LogTail(const std::string& directory) {
  std::string text;
  for (const char* name : {"/output", "/control.log"}) {
    std::ifstream in(directory + name);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  if (text.size() > kLogTail) text.erase(0, text.size() - kLogTail);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text.empty() ? "it wrote no log" : text;
}

// A client of it works, and does not go without it.
absl::Status CheckClient(Lab& lab, Mps& mps) {
  absl::StatusOr<Actor> client = lab.Start("describe");
  if (!client.ok()) return client.status();
  const auto line = client->channel().Expect("machine", kClientTimeout);
  if (!line.ok()) return line.status();
  const auto servers = mps.Servers();
  if (!servers.ok()) return servers.status();
  if (servers->empty()) {
    return absl::UnavailableError("it started no server for a client");
  }
  return client->End(kClientTimeout);
}

// Somebody else's daemon must not serve our actors: they look for one where
// there is none.
std::map<std::string, std::string> WithoutMps() {
  if (getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr &&
      access("/tmp/nvidia-mps/control", F_OK) != 0) {
    return {};
  }
  return {{"CUDA_MPS_PIPE_DIRECTORY", "/tmp/maypole-without-mps"}};
}

absl::StatusOr<std::unique_ptr<Mps>> StartMpsFor(Lab& lab) {
  if (lab.options().fake) {
    return absl::UnavailableError("the fake has no MPS");
  }
  auto mps = Mps::Start();
  if (!mps.ok()) return mps.status();
  lab.SetEnvironment((*mps)->environment());
  const auto deadline = Clock::now() + kServerStart;
  absl::Status status = CheckClient(lab, **mps);
  while (!status.ok() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    status = CheckClient(lab, **mps);
  }
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "MPS does not serve: ", status.message(), "; its log: ",
        LogTail((*mps)->environment().at("CUDA_MPS_LOG_DIRECTORY"))));
  }
  return mps;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mps>> Mps::Start() {
  // In /tmp: the paths of its sockets are limited to 107 bytes.
  char path[] = "/tmp/maypole-mps-XXXXXX";
  if (mkdtemp(path) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make ", path, ": ", strerror(errno)));
  }
  std::unique_ptr<Mps> mps(new Mps(path));
  const absl::Status status = mps->StartDaemon();
  if (!status.ok()) return status;
  return mps;
}

absl::Status Mps::StartDaemon() {
  // To learn that there is no such program from its own words.
  const auto program = RunCommand(
      {{"sh", "-c", absl::StrCat("command -v ", kControl)}}, kCommandTimeout);
  if (!program.ok()) {
    return absl::UnavailableError(
        absl::StrCat("no ", kControl, " on this machine"));
  }
  std::vector<std::string> argv = {*program, "-f"};
  std::vector<std::string> envp = Environment(environment());
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> envp_pointers = Pointers(envp);
  daemon_ = fork();
  if (daemon_ < 0) {
    return absl::UnavailableError(absl::StrCat("fork: ", strerror(errno)));
  }
  if (daemon_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Its servers keep its output open, which may be a pipe to somebody.
    const int log = open((directory_ + "/output").c_str(),
                         O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execve(program->c_str(), argv_pointers.data(), envp_pointers.data());
    _exit(1);
  }
  const auto deadline = Clock::now() + kCommandTimeout;
  for (;;) {
    if (const auto ended = WaitForExit(daemon_, Seconds(0.1))) {
      daemon_ = -1;
      return absl::UnavailableError(absl::StrCat(
          kControl, " -f ", ExitText(*ended), ": ", LogTail(directory_)));
    }
    const auto servers = Servers();
    if (servers.ok()) return absl::OkStatus();
    if (Clock::now() >= deadline) return servers.status();
  }
}

std::map<std::string, std::string> Mps::environment() const {
  return {{"CUDA_MPS_PIPE_DIRECTORY", directory_},
          {"CUDA_MPS_LOG_DIRECTORY", directory_}};
}

absl::StatusOr<std::vector<pid_t>> Mps::Servers() {
  const auto text = RunCommand({{kControl}, environment(), "get_server_list\n"},
                               kCommandTimeout);
  if (!text.ok()) return text.status();
  std::vector<pid_t> out;
  for (const absl::string_view word :
       absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(word, &pid)) out.push_back(pid);
  }
  servers_ = out;
  return out;
}

Mps::~Mps() {
  if (daemon_ > 0) {
    Servers().IgnoreError();
    RunCommand({{kControl}, environment(), "quit -t 2\n"}, kQuitTimeout)
        .IgnoreError();
    const bool ended = WaitForExit(daemon_, kQuitTimeout).has_value();
    // A server that waits for a client that hangs goes with the daemon.
    for (const pid_t server : servers_) kill(server, SIGKILL);
    if (!ended) {
      kill(daemon_, SIGKILL);
      WaitForExit(daemon_, kQuitTimeout);
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void WithoutAndWithMps(Lab& lab,
                       const std::function<void(const std::string&)>& measure,
                       const std::function<void(const std::string&)>& missing) {
  lab.SetEnvironment(WithoutMps());
  measure("no MPS");
  const auto mps = StartMpsFor(lab);
  if (mps.ok()) {
    lab.report().SetMachine("MPS", "yes");
    measure("MPS");
  } else {
    lab.report().SetMachine("MPS",
                            absl::StrCat("no: ", mps.status().message()));
    missing(std::string(mps.status().message()));
  }
  lab.SetEnvironment({});
}

}  // namespace maypole::probe
