// JobOutput: writes a job's output: lines of ranks and daemons, maypolerun's
// own lines, and the files of --output-filename.
//
// Purpose: owns an OutputStream for each rank and daemon, and the two
// descriptors to which they are written. If both are one file or terminal,
// everything goes through one Sink, so lines keep their order. Losses of output
// are reported once, where they can still be seen.
//
//   JobOutput output(&loop, options);
//   Status s = output.Open();
//   if (s.ok()) s = output.AddRank(0, true);
//   output.Take(0, false, "loss 0.5\n");
//   ... in each round: output.OnTime(now), not later than output.deadline()
//   output.Flush();                   // unfinished lines
//   while (!output.WriteRest()) ...   // the reader may be slow
//
// Thread contract: not synchronized; all writing is done in an OutputLoop.
//
// Invariant: a job's only rank writes to our descriptors itself (raw()), unless
// it runs on another host: then its bytes are passed on unchanged.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_OUTPUT_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_OUTPUT_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "client/launcher/command/options.h"
#include "client/launcher/job/supervision.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/output_stream.h"
#include "client/launcher/output/sink.h"

namespace maypole::launcher {

class JobOutput {
 public:
  JobOutput(OutputLoop* loop, const LauncherOptions& options)
      : loop_(loop), options_(options) {}

  Status Open();
  bool raw() const;
  // For the stderr of other programs, such as ssh.
  Sink* err() { return err_sink_; }

  // Creates the rank's files, if there are any. here: on this machine.
  Status AddRank(int rank, bool here);
  void Take(int rank, bool is_err, std::string_view bytes);
  // The rank has ended: shows its unfinished lines, and returns what its last
  // lines say about its end.
  Clues EndRank(int rank);
  // Closes its files and drops its lines, because a job may have any number of
  // processes, one after the other.
  void RemoveRank(int rank) { ranks_.erase(rank); }
  // Prints the rank's last lines, unless they are the last lines on the screen.
  void ShowLastWords(int rank, const std::string& who);

  void TakeLog(const std::string& daemon, std::string_view bytes);
  // A line of maypolerun itself.
  void Print(const std::string& line);
  // A line about the start's progress; on a terminal, the next one overwrites
  // it.
  void PrintProgress(const std::optional<LinePiece>& line);

  std::optional<Time> deadline();
  void OnTime(Time now);
  void Flush() { OnTime(Time::max()); }
  // Writes without blocking; returns true when everything is written or lost.
  bool WriteRest();
  // Reports how many output files could not be written, if there are several;
  // the first one was reported when it happened.
  void ReportLostFiles();
  // Some line could not be written to standard output or error.
  bool lost() const { return !out_.lost().empty() || !err_.lost().empty(); }

 private:
  struct Streams {
    OutputStream out, err;
  };

  void ForEach(const std::function<void(OutputStream&)>& f);
  void OnFileLost(const std::string& what);
  void ReportLoss();

  OutputLoop* const loop_;
  const LauncherOptions& options_;
  Sink out_{1}, err_{2};
  Sink* err_sink_ = &err_;  // out_ if both are one file or terminal
  std::map<int, Streams> ranks_;
  std::map<std::string, OutputStream> daemons_;
  size_t lost_files_ = 0;
  bool loss_reported_ = false;  // of out_ or err_
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_OUTPUT_H_
