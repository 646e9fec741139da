// FileWriter: writes a timeline's file from a thread of its own.
//
// Purpose: the file may be on a disk that is slow or hangs (NFS), and the
// executor's loop must not wait for it.
//
// Thread contract: one thread calls Write(), Close() and the destructor; the
// callback of Close() comes from the writer's thread.
//
// MakeFileOf() makes a new file in the working directory of another process of
// the same user.
//
// Invariants: at most kMaxWaiting bytes wait to be written. After the first
// error, or if more would wait, nothing more is written, and Close() reports
// the error.
#ifndef MAYPOLE_WORKER_EXECUTOR_FILE_WRITER_H_
#define MAYPOLE_WORKER_EXECUTOR_FILE_WRITER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/system/fd.h"
#include "worker/executor/executor_system.h"

namespace maypole::worker {

class FileWriter : public TimelineFile {
 public:
  static constexpr size_t kMaxWaiting = 64 << 20;
  // How long the destructor waits for the rest.
  static constexpr auto kEndTime = std::chrono::seconds(3);

  explicit FileWriter(Fd file);
  // The writer's thread opens the file. If it cannot be opened, that thread
  // calls failed(), unless Close() was called before.
  FileWriter(std::function<Status(Fd*)> open,
             std::function<void(Status)> failed);
  ~FileWriter() override;

  void Write(std::string text) override;
  void Close(std::function<void(Status)> done) override;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  // Shared with the thread, which outlives this object if the disk hangs.
  const std::shared_ptr<State> state_;
};

// pid: in our PID namespace; 0: unknown. An existing file is an error, and so
// is a name with a slash: other users who may write to the directory must not
// choose the file that is written.
Status MakeFileOf(int pid, const std::string& name, Fd* file);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_FILE_WRITER_H_
