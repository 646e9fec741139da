// The beginning of a job: daemons, endpoints, ranks.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "client/launcher/job.h"
#include "client/launcher/private_directory.h"

namespace maypole::launcher {
namespace {

// Open files: maypolerun has pipes and a pidfd per process it starts; daemons
// have their servers and a few per rank or node.
constexpr rlim_t kOwnFiles = 32, kFilesPerRank = 4, kFilesPerDaemon = 4;
constexpr rlim_t kDaemonFiles = 64;

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

// Our environment with these variables replaced.
std::vector<std::string> EnvironmentWith(const Variables& variables) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e;
    std::string name = entry.substr(0, entry.find('='));
    bool replaced = std::any_of(variables.begin(), variables.end(),
                                [&](const auto& v) { return v.first == name; });
    // An agent of a job around ours is not ours.
    if (!replaced && name != "MAYPOLE_AGENT") environment.push_back(entry);
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(name + "=" + value);
  }
  return environment;
}

// Before anything is started: running out of them halfway says less.
Status CheckOpenFiles(const Options& o, rlim_t limit) {
  if (!NeedsDaemons(o)) return Status();
  rlim_t ours = kOwnFiles + kFilesPerRank * o.ranks + kFilesPerDaemon * o.nodes;
  int local = (o.ranks + o.nodes - 1) / o.nodes;
  rlim_t daemons = kDaemonFiles + kFilesPerRank * std::max(local, o.nodes);
  rlim_t needed = std::max(ours, daemons);
  if (limit >= needed) return Status();
  return Status(
      Code::kResourceExhausted,
      "the limit of open files (ulimit -Hn) is " + std::to_string(limit) +
          ", and this job needs " + std::to_string(needed) +
          ": raise it (as root: ulimit -Hn " + std::to_string(needed) +
          "; permanently: nofile in /etc/security/limits.conf, or a "
          "service's LimitNOFILE=), or start fewer ranks");
}

std::string RankDirectory(const Options& options, int rank) {
  size_t width = std::to_string(options.ranks - 1).size();
  std::string number = std::to_string(rank);
  number.insert(0, width - number.size(), '0');
  return options.output_directory + "/rank." + number;
}

}  // namespace

Status Job::Prepare() {
  Status status = loop_.Init({&out_, &err_});
  if (!status.ok()) return status;
  struct stat out, err;
  if (fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev &&
      out.st_ino == err.st_ino) {
    err_sink_ = &out_;  // one place, so one order of lines
  }
  // Ranks get the limit we were given, we and the daemons the most there is.
  getrlimit(RLIMIT_NOFILE, &files_);
  rlimit most = {.rlim_cur = files_.rlim_max, .rlim_max = files_.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
  status = CheckOpenFiles(options_, most.rlim_max);
  if (!status.ok()) return status;

  sigset_t set = EndingSignals();
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "signalfd");
  loop_.Watch(EventLoop::kControl, signals_.get(), [this] { OnSignals(); });
  return Status();
}

Status Job::StartDaemons() {
  daemons_ = std::make_unique<Daemons>(
      &loop_, err_sink_, 2 * options_.ranks,
      rlimit{.rlim_cur = files_.rlim_max, .rlim_max = files_.rlim_max},
      [this](const std::string& what) { OnDaemonLost(what); });
  Time deadline = std::chrono::steady_clock::now() +
                  std::chrono::seconds(options_.start_timeout_s);
  std::string address = options_.coordinator;
  std::string secret = options_.secret_file;
  if (address.empty()) {
    secret = settings_.directory + "/secret";
    Status status = WriteSecretFile(secret, RandomHex());
    if (!status.ok()) return status;
    status = daemons_->Start(
        "coordinator",
        CoordinatorArguments({.secret_file = secret,
                              .start_timeout_s = options_.start_timeout_s,
                              .fusion_threshold = options_.fusion_threshold,
                              .verbose = options_.verbose}));
    if (!status.ok()) return status;
    status = WaitForDaemons(deadline);
    if (!status.ok()) return status;
    address = daemons_->announcement("coordinator").listen;
  }
  for (int node = 0; node < options_.nodes; ++node) {
    std::string name = NodeName(node);
    Status status = daemons_->Start(
        name, WorkerArguments(
                  {.node = name,
                   .socket = settings_.directory + "/" + name + ".sock",
                   .coordinator = address,
                   .secret_file = secret,
                   .network =
                       options_.networks.empty() ? "" : options_.networks[node],
                   .start_timeout_s = options_.start_timeout_s,
                   .verbose = options_.verbose}));
    if (!status.ok()) return status;
  }
  Status status = WaitForDaemons(deadline);
  if (!status.ok()) return status;
  if (options_.verbose) {
    for (const std::string& line : daemons_->Summary()) Say(line);
  }
  return WriteEndpoints();
}

Status Job::WaitForDaemons(Time deadline) {
  while (!daemons_->all_ready()) {
    if (supervision_.interrupted()) {
      return Status(Code::kCancelled, "stopped before the ranks were started");
    }
    if (!lost_daemon_.empty()) {
      return Status(Code::kUnavailable, "the job was not started");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    daemons_->not_ready() + " not ready after " +
                        std::to_string(options_.start_timeout_s) +
                        " s (--start-timeout); --verbose shows its log");
    }
    Round(deadline);
  }
  return Status();
}

Status Job::WriteEndpoints() {
  if (options_.endpoints_file.empty()) return Status();
  std::string text;
  auto add = [&](const std::string& name) {
    const std::string& metrics = daemons_->announcement(name).metrics;
    if (!metrics.empty()) text += name + "=" + metrics + "\n";
  };
  if (options_.coordinator.empty()) add("coordinator");
  for (int node = 0; node < options_.nodes; ++node) add(NodeName(node));
  // Renamed into place: whoever waits for the file finds it complete.
  std::string partial =
      options_.endpoints_file + "." + std::to_string(getpid());
  FILE* file = fopen(partial.c_str(), "we");
  bool written = file != nullptr && fputs(text.c_str(), file) >= 0;
  written = file != nullptr && fclose(file) == 0 && written;
  if (!written ||
      rename(partial.c_str(), options_.endpoints_file.c_str()) != 0) {
    return ErrnoStatus(errno, "cannot write " + options_.endpoints_file +
                                  " (--endpoints-file)");
  }
  return Status();
}

Status Job::StartRanks() {
  JobEnvironment job;
  job.ranks = options_.ranks;
  job.nodes = options_.nodes;
  job.job = RandomHex().substr(0, 16);
  job.token = RandomHex();
  job.start_timeout_s = options_.start_timeout_s;
  job.usable_cores = UsableCores();
  if (daemons_) {
    for (int node = 0; node < options_.nodes; ++node) {
      job.agents.push_back(daemons_->announcement(NodeName(node)).socket);
    }
  }
  for (const Place& place : PlaceRanks(options_.ranks, options_.nodes)) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->place = place;
    Status status = StartRank(job, ranks_.back().get());
    if (!status.ok()) return status;
  }
  return Status();
}

Status Job::StartRank(const JobEnvironment& job, Rank* rank) {
  SpawnSpec spec;
  spec.program = settings_.program;
  spec.argv = options_.command;
  spec.environment = EnvironmentWith(RankVariables(
      job, rank->place,
      [](const std::string& name) { return getenv(name.c_str()) != nullptr; }));
  spec.death_signal = SIGKILL;
  spec.files = files_;
  if (rank->place.rank == 0) {
    spec.stdin_fd = 0;
    // Only the terminal's foreground group may read from it.
    rank->foreground = isatty(0) != 0;
    if (rank->foreground) spec.group = settings_.guard_group;
  }
  Fd out, err;
  Status status = OpenOutput(rank, &out, &err, &spec);
  if (!status.ok()) return status;
  status = Spawn(spec, &rank->child);
  if (!status.ok()) return status;
  rank->alive = true;
  rank->watch = loop_.Watch(EventLoop::kControl, rank->child.pidfd.get(),
                            [this, rank] { OnRankEnd(rank); });
  if (options_.verbose) {
    Say(Who(rank->place.rank) + " started");
  }
  return Status();
}

bool Job::RawOutput() const {
  return options_.ranks == 1 && options_.output_directory.empty();
}

Status Job::OpenOutput(Rank* rank, Fd* out, Fd* err, SpawnSpec* spec) {
  if (RawOutput()) return Status();  // a rank of its own writes where we do
  int r = rank->place.rank;
  bool prefix = options_.prefix && options_.ranks > 1;
  std::string directory;
  if (!options_.output_directory.empty()) {
    directory = RankDirectory(options_, r);
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      return Status(Code::kFailedPrecondition,
                    "cannot make " + directory +
                        " (--output-filename): " + error.message());
    }
  }
  auto settings = [&](int id, const std::string& name, Sink* sink) {
    return OutputStream::Settings{
        .id = id,
        .prefix = prefix ? "[" + std::to_string(r) + "]<" + name + ">:" : "",
        .sink = sink,
        .file = directory.empty() ? "" : directory + "/" + name,
        .on_file_lost = [this](const std::string& what) { OnFileLost(what); }};
  };
  rank->out = std::make_unique<OutputStream>(&loop_);
  rank->err = std::make_unique<OutputStream>(&loop_);
  Status status = rank->out->Open(settings(2 * r, "stdout", &out_), out);
  if (!status.ok()) return status;
  status = rank->err->Open(settings(2 * r + 1, "stderr", err_sink_), err);
  spec->stdout_fd = out->get();
  spec->stderr_fd = err->get();
  return status;
}

}  // namespace maypole::launcher
