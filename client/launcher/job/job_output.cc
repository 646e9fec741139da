#include "client/launcher/job/job_output.h"

#include <sys/stat.h>

#include <filesystem>

namespace maypole::launcher {
namespace {

// Ids of streams; smaller ones belong to ranks. The progress line does not use
// kOwnStream, so that our other lines do not overwrite it.
constexpr int kFirstDaemonStream = 1 << 29;
constexpr int kProgressStream = kOwnStream - 1;
constexpr char kOwnPrefix[] = "maypolerun: ";

std::string RankDirectory(const LauncherOptions& options, int rank) {
  size_t width = std::to_string(options.ranks - 1).size();
  std::string number = std::to_string(rank);
  number.insert(0, width - number.size(), '0');
  return options.output_directory + "/rank." + number;
}

}  // namespace

Status JobOutput::Open() {
  struct stat out, err;
  if (fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev &&
      out.st_ino == err.st_ino) {
    err_sink_ = &out_;
  }
  Status status = out_.Open(loop_);
  return status.ok() ? err_.Open(loop_) : status;
}

bool JobOutput::raw() const {
  return options_.ranks == 1 && !options_.elastic &&
         options_.output_directory.empty();
}

Status JobOutput::AddRank(int rank, bool here) {
  if (raw() && here) return Status();
  std::string directory;
  if (!options_.output_directory.empty()) {
    directory = RankDirectory(options_, rank);
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      return Status(Code::kFailedPrecondition,
                    "cannot make " + directory +
                        " (--output-filename): " + error.message());
    }
  }
  const bool prefix =
      options_.prefix && (options_.ranks > 1 || options_.elastic);
  Streams& streams = ranks_[rank];
  for (const bool is_err : {false, true}) {
    const std::string name = is_err ? "stderr" : "stdout";
    OutputStream& stream = is_err ? streams.err : streams.out;
    const Status status = stream.Open(
        {.id = 2 * rank + (is_err ? 1 : 0),
         .prefix =
             prefix ? "[" + std::to_string(rank) + "]<" + name + ">:" : "",
         .timestamps = options_.timestamps,
         .sink = is_err ? err_sink_ : &out_,
         .raw = raw(),
         .file = directory.empty() ? "" : directory + "/" + name,
         .on_file_lost = [this](const std::string& what) {
           OnFileLost(what);
         }});
    if (!status.ok()) return status;
  }
  return Status();
}

void JobOutput::Take(int rank, bool is_err, std::string_view bytes) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  (is_err ? it->second.err : it->second.out).Take(bytes);
}

Clues JobOutput::EndRank(int rank) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return {};
  it->second.out.Flush();
  it->second.err.Flush();
  const Tail& tail = it->second.err.tail();
  return {.last_traceback = tail.last_traceback(),
          .maypole_error = tail.maypole_error()};
}

void JobOutput::ShowLastWords(int rank, const std::string& who) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.err.tail().empty()) return;
  const OutputStream& err = it->second.err;
  Screen& screen = err_sink_->screen();
  if (screen.LastLinesAre(err.id(), err.tail().telling_lines())) return;
  Print(who + ": its last lines of stderr:");
  for (const std::string& line : err.tail().Lines()) {
    screen.WriteLine(kOwnStream, err.prefix(), line);
  }
}

void JobOutput::TakeLog(const std::string& daemon, std::string_view bytes) {
  const auto [it, added] = daemons_.try_emplace(daemon);
  if (added) {
    // Open() can only fail if there is a file.
    (void)it->second.Open(
        {.id = kFirstDaemonStream + static_cast<int>(daemons_.size()),
         .prefix = "[" + daemon + "] ",
         .sink = err_sink_});
  }
  it->second.Take(bytes);
}

void JobOutput::Print(const std::string& line) {
  err_sink_->screen().WriteLine(kOwnStream, kOwnPrefix, line);
}

void JobOutput::PrintProgress(const std::optional<LinePiece>& line) {
  if (line) err_sink_->screen().Write(kProgressStream, kOwnPrefix, *line);
}

void JobOutput::ForEach(const std::function<void(OutputStream&)>& f) {
  for (auto& [number, streams] : ranks_) {
    f(streams.out);
    f(streams.err);
  }
  for (auto& [name, log] : daemons_) f(log);
}

std::optional<Time> JobOutput::deadline() {
  std::optional<Time> first;
  ForEach(
      [&](OutputStream& stream) { first = Earlier(first, stream.deadline()); });
  return first;
}

void JobOutput::OnTime(Time now) {
  ForEach([&](OutputStream& stream) { stream.OnTime(now); });
  ReportLoss();
}

bool JobOutput::WriteRest() {
  for (Sink* sink : {&out_, &err_}) sink->screen().EndLine();
  out_.Flush();
  ReportLoss();
  err_.Flush();
  return out_.idle() && err_.idle();
}

// Prints a line for the first file only: a full disk affects all of them.
void JobOutput::OnFileLost(const std::string& what) {
  if (++lost_files_ > 1) return;
  Print(what + "; nothing more goes there, and the job goes on");
}

void JobOutput::ReportLostFiles() {
  if (lost_files_ < 2) return;
  Print(std::to_string(lost_files_) + " files in " + options_.output_directory +
        " end early: they could not be written");
}

// Reports the loss once, on the other of the two outputs; if both are one file
// or lost, only the exit status shows it.
void JobOutput::ReportLoss() {
  if (!lost() || std::exchange(loss_reported_, true)) return;
  const bool is_out = !out_.lost().empty();
  Sink* const other = is_out ? &err_ : &out_;
  if (!other->lost().empty() || err_sink_ == &out_) return;
  other->screen().WriteLine(
      kOwnStream, kOwnPrefix,
      std::string("cannot write to standard ") + (is_out ? "output" : "error") +
          ": " + (is_out ? out_ : err_).lost() +
          "; lines of ranks are missing there, and the job goes on");
}

}  // namespace maypole::launcher
