// ChildProcess: a process that was started here: its pipes and its end.
//
// Purpose: ranks, daemons and ssh are all started, read and reaped in this one
// way. When it has ended, what it had written is taken first, then on_end is
// called; what processes that it has left behind write is taken after that.
//
// Thread contract: not synchronized; driven by an OutputLoop. Callbacks may do
// anything but destroy the ChildProcess.
//
// Invariants: it dies with us, whatever kills us; no signal is sent to its
// process id once it was reaped.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_CHILD_PROCESS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "client/launcher/job/supervision.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/pipe_reader.h"
#include "client/launcher/process/announcement.h"
#include "common/system/spawn.h"

namespace maypole::launcher {

class ChildProcess {
 public:
  struct Settings {
    // Without program and descriptors. Its death signal must be set.
    SpawnOptions spawn;
    // Take what it writes to stdout and stderr. Without out it writes where we
    // do; without err its stderr is its stdout.
    PipeReader::Take out = {}, err = {};
    PipeReader::Take announce = {};  // what it writes to kAnnounceFd
    // It leads a process group of its own; what it leaves in it ends with it.
    bool owns_group = false;
    std::function<void(Exit)> on_end;
  };

  ChildProcess(OutputLoop* loop, Settings settings);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Returns after the program runs; an error if it could not be run.
  Status Start(const std::string& program, int stdin_fd = kDevNull);
  // To it, or to its group if it owns one.
  void Signal(int signal) const;
  // It was reaped elsewhere: on_end is not called.
  void Forget();
  // From now on its output is taken even while an outlet is full.
  void NeverPause();
  // Takes no more of its output.
  void CloseOutput();

  bool running() const { return end_.valid(); }
  bool output_ended() const { return !out_.open() && !err_.open(); }
  pid_t pid() const { return pid_; }  // 0: not started

 private:
  Status MakePipe(PipeReader* reader, int number, std::vector<Fd>* writers);
  void OnEnd();

  OutputLoop* loop_;
  Settings settings_;
  PipeReader out_, err_, announce_;
  pid_t pid_ = 0;
  WatchedFd end_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_CHILD_PROCESS_H_
