// The beginning of a job: what it needs, and its ranks.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "client/launcher/job.h"
#include "client/launcher/rank_start.h"

namespace maypole::launcher {
namespace {

// Open files: maypolerun has pipes and a pidfd per process it starts; daemons
// have their servers and a few per rank or node.
constexpr rlim_t kOwnFiles = 32, kFilesPerRank = 4, kFilesPerNode = 4;
constexpr rlim_t kDaemonFiles = 64;

// Before anything is started: running out of them halfway says less.
Status CheckOpenFiles(const Options& o, rlim_t limit) {
  if (!StartsDaemons(o) && o.hosts.empty()) return Status();
  rlim_t ours = kOwnFiles;
  int most = o.nodes;
  const std::vector<int> ranks = RanksByNode(o);
  for (int node = 0; node < o.nodes; ++node) {
    ours += kFilesPerNode;
    if (!NodeIsHere(o, node)) continue;
    ours += kFilesPerRank * static_cast<rlim_t>(ranks[node]);
    most = std::max(most, ranks[node]);
  }
  rlim_t daemons = kDaemonFiles + kFilesPerRank * static_cast<rlim_t>(most);
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

  sigset_t set = EndingSignals();
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "signalfd");
  loop_.Watch(EventLoop::kControl, signals_.get(), [this] { OnSignals(); });
  // Not before we hear signals: the error may wait for who reads it.
  return CheckOpenFiles(options_, most.rlim_max);
}

Status Job::StartRanks() {
  for (const auto& remote : remotes_) remote->Send(launcher::StartRanks());
  for (const Place& place : PlaceRanks(RanksByNode(options_))) {
    ranks_.push_back(std::make_unique<Rank>());
    Rank* rank = ranks_.back().get();
    rank->place = place;
    for (const auto& remote : remotes_) {
      if (remote->node() == place.node) rank->remote = remote.get();
    }
    Status status = StartRank(rank);
    if (!status.ok()) return status;
  }
  return Status();
}

Status Job::StartRank(Rank* rank) {
  Fd out, err;
  Status status = OpenOutput(rank, &out, &err);
  if (!status.ok()) return status;
  rank->alive = true;
  if (rank->remote) return Status();
  SpawnSpec spec =
      RankSpec(settings_.program, options_.command, environment_, rank->place);
  spec.files = files_;
  if (out.valid()) spec.stdout_fd = out.get();
  if (err.valid()) spec.stderr_fd = err.get();
  if (rank->place.rank == 0) {
    spec.stdin_fd = 0;
    // Only the terminal's foreground group may read from it.
    rank->foreground = isatty(0) != 0;
    if (rank->foreground) spec.group = settings_.where.guard_group;
  }
  status = Spawn(spec, &rank->child);
  rank->alive = status.ok();
  if (!status.ok()) return status;
  rank->pid = rank->child.pid;
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

Status Job::OpenOutput(Rank* rank, Fd* out, Fd* err) {
  // A rank of its own writes where we do.
  if (RawOutput() && !rank->remote) return Status();
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
        .raw = RawOutput()
                   ? [sink](std::string_view
                                bytes) { sink->screen().WriteBytes(bytes); }
                   : std::function<void(std::string_view)>(),
        .file = directory.empty() ? "" : directory + "/" + name,
        .on_file_lost = [this](const std::string& what) { OnFileLost(what); }};
  };
  rank->out = std::make_unique<OutputStream>(&loop_);
  rank->err = std::make_unique<OutputStream>(&loop_);
  auto open = [&](OutputStream* stream, OutputStream::Settings s, Fd* writer) {
    return rank->remote ? stream->Open(std::move(s))
                        : stream->Open(std::move(s), writer);
  };
  Status status = open(rank->out.get(), settings(2 * r, "stdout", &out_), out);
  if (!status.ok()) return status;
  return open(rank->err.get(), settings(2 * r + 1, "stderr", err_sink_), err);
}

}  // namespace maypole::launcher
