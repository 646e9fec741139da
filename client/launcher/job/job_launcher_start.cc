// JobLauncher, the start of a job: checks its resources and starts its ranks.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "client/launcher/job/job_launcher.h"

namespace maypole::launcher {
namespace {

// Open files: maypolerun has pipes and a pidfd per process it starts; daemons
// have their listening sockets and a few files per rank or node.
constexpr rlim_t kOwnFiles = 32, kFilesPerRank = 4, kFilesPerNode = 4;
constexpr rlim_t kDaemonFiles = 64;
// Not kOwnStream, so that our other lines do not overwrite the line of a start.
constexpr int kStartStream = kOwnStream - 1;

// Checked before anything is started, because an error in the middle of the
// start would say less.
Status CheckOpenFiles(const LauncherOptions& o, rlim_t limit) {
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
          ", but this job needs " + std::to_string(needed) +
          ": raise it (as root: ulimit -Hn " + std::to_string(needed) +
          "; permanently: nofile in /etc/security/limits.conf, or "
          "LimitNOFILE= of the service), or start fewer ranks");
}

std::string RankDirectory(const LauncherOptions& options, int rank) {
  size_t width = std::to_string(options.ranks - 1).size();
  std::string number = std::to_string(rank);
  number.insert(0, width - number.size(), '0');
  return options.output_directory + "/rank." + number;
}

}  // namespace

Status JobLauncher::Prepare() {
  struct stat out, err;
  if (fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev &&
      out.st_ino == err.st_ino) {
    err_sink_ = &out_;  // the same file, so lines keep their order
  }
  Status status = out_.Open(&loop_);
  if (status.ok()) status = err_.Open(&loop_);
  if (status.ok()) {
    status = here_.Prepare([this](const auto& info) { OnSignal(info); });
  }
  if (!status.ok()) return status;
  // Not before signals are handled: printing the error may block on a slow
  // reader.
  hears_signals_ = true;
  return CheckOpenFiles(options_, here_.files().rlim_max);
}

Status JobLauncher::StartRanks() {
  for (const Place& place : PlaceRanks(RanksByNode(options_))) {
    Rank* const rank = &ranks_[place.rank];
    rank->place = place;
    rank->here = NodeIsHere(options_, place.node);
    if (!options_.hosts.empty()) {
      rank->host = options_.hosts[static_cast<size_t>(place.node)].name;
    }
    Status status = OpenOutput(rank);
    if (!status.ok()) return status;
  }
  for (auto& [number, rank] : ranks_) rank.alive = true;
  awaited_ = static_cast<int>(ranks_.size());
  ToNode message;
  message.mutable_start_ranks();
  for (const auto& remote : remotes_) remote->Send(message);
  return here_.StartRanks();
}

// The first rank that has called init() waits for the others from now on. (If
// none does, they need not be programs that use Maypole.)
void JobLauncher::OnRankJoined(int number) {
  Rank& rank = ranks_.at(number);
  if (awaited_ == 0 || std::exchange(rank.joined, true)) return;
  start_.Begin(std::chrono::steady_clock::now());
  if (--awaited_ > 0) return;
  EndStart("all " + std::to_string(options_.ranks) +
           " ranks have called init()");
}

void JobLauncher::ShowStart(Time now) {
  if (!start_.due(now)) return;
  const auto piece = start_.Take(DescribeStart(), now);
  if (piece) err_sink_->screen().Write(kStartStream, "maypolerun: ", *piece);
}

void JobLauncher::EndStart(const std::string& text) {
  const auto piece = start_.End(text);
  if (piece) err_sink_->screen().Write(kStartStream, "maypolerun: ", *piece);
}

// A rank has ended, or the job is being stopped: the others' wait has another
// reason.
void JobLauncher::StopStart() {
  awaited_ = 0;
  EndStart("");
}

// "the ranks are not started yet; waiting for h3 (no answer through ssh)", then
// "12 of 16 ranks have called init(); waiting for h3 (ranks 12-15)".
std::string JobLauncher::DescribeStart() const {
  if (ranks_.empty()) {
    return "the ranks are not started yet; waiting for " + FirstOf(NotReady());
  }
  std::map<int, std::vector<int>> ranks;  // by node
  for (const auto& [number, rank] : ranks_) {
    if (!rank.joined) ranks[rank.place.node].push_back(number);
  }
  std::vector<std::string> nodes;
  for (const auto& [node, missing] : ranks) {
    nodes.push_back((options_.hosts.empty()
                         ? NodeName(node)
                         : options_.hosts[static_cast<size_t>(node)].name) +
                    (missing.size() == 1 ? " (rank " : " (ranks ") +
                    RankGroups(missing) + ")");
  }
  return std::to_string(options_.ranks - awaited_) + " of " +
         std::to_string(options_.ranks) +
         " ranks have called init(); waiting for " + FirstOf(nodes);
}

bool JobLauncher::RawOutput() const {
  return options_.ranks == 1 && !options_.elastic &&
         options_.output_directory.empty();
}

Status JobLauncher::OpenOutput(Rank* rank) {
  // A job's only rank inherits our stdout and stderr.
  if (RawOutput() && rank->here) return Status();
  const int r = rank->place.rank;
  const bool prefix =
      options_.prefix && (options_.ranks > 1 || options_.elastic);
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
  auto open = [&](int id, const std::string& name, Sink* sink,
                  OutputStream* stream) {
    return stream->Open(
        {.id = id,
         .prefix = prefix ? "[" + std::to_string(r) + "]<" + name + ">:" : "",
         .timestamps = options_.timestamps,
         .sink = sink,
         .raw = RawOutput()
                    ? [sink](std::string_view
                                 bytes) { sink->screen().WriteBytes(bytes); }
                    : std::function<void(std::string_view)>(),
         .file = directory.empty() ? "" : directory + "/" + name,
         .on_file_lost = [this](const std::string& what) {
           OnFileLost(what);
         }});
  };
  rank->out = std::make_unique<OutputStream>();
  rank->err = std::make_unique<OutputStream>();
  Status status = open(2 * r, "stdout", &out_, rank->out.get());
  return status.ok() ? open(2 * r + 1, "stderr", err_sink_, rank->err.get())
                     : status;
}

}  // namespace maypole::launcher
