// ChildProcess: a process that we start, its pipes and its end.
//
// Purpose: ranks, daemons and ssh are all started, read and reaped by this
// class. When the process ends, its output is read first, then on_end is
// called. Output of processes that it left behind is read after that.
//
// Thread contract: not synchronized; all work is done in an OutputLoop.
// Callbacks must not destroy the ChildProcess.
//
// Invariants: the process ends when we end, even if we are killed. No signal is
// sent to its process id after it was reaped.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_CHILD_PROCESS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "client/launcher/job/supervision.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/pipe_reader.h"
#include "common/system/spawn.h"

namespace maypole::launcher {

class ChildProcess {
 public:
  struct Settings {
    // Start() sets program and descriptors. death_signal must be set.
    SpawnOptions spawn;
    // Called with what it writes to stdout and stderr. Without `out` it
    // inherits our stdout and stderr; with `out` alone, its stderr goes to
    // `out` too.
    PipeReader::Take out = {}, err = {};
    // Called with what it writes to kAnnounceFd.
    PipeReader::Take announce = {};
    // It leads its own process group. When it ends, the rest of the group is
    // killed.
    bool owns_group = false;
    std::function<void(Exit)> on_end;
  };

  ChildProcess(OutputLoop* loop, Settings settings);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() { std::erase(loop_->children_, this); }

  // Returns once the program runs, or an error if it could not be started.
  Status Start(const std::string& program, int stdin_fd = kDevNull);
  // Signals the process or, if it owns a group, the program that runs there
  // (SignalProgram).
  void Signal(int signal) const;
  // Call this if the process was reaped elsewhere: on_end will not be called.
  void Forget() { end_.Reset(); }
  // From now on its output is read even while an outlet is full.
  void NeverPause();
  // Stops reading its output.
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
  const std::array<PipeReader*, 3> readers_ = {&out_, &err_, &announce_};
  pid_t pid_ = 0;
  WatchedFd end_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_CHILD_PROCESS_H_
