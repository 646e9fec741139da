// Daemons: the coordinator and the worker agents that maypolerun starts for
// the life of a job.
//
// Purpose: starts them, reads their announcements, passes their log lines on,
// notices when one ends before it was told to.
//
// Thread contract: not synchronized; driven by an EventLoop.
#ifndef MAYPOLE_CLIENT_LAUNCHER_DAEMONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_DAEMONS_H_

#include <sys/resource.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/announce.h"
#include "client/launcher/events.h"
#include "client/launcher/output_stream.h"
#include "client/launcher/process.h"
#include "client/launcher/sink.h"
#include "common/status.h"

namespace maypole::launcher {

class Daemons {
 public:
  // on_lost: called with a sentence when a daemon ended unasked.
  Daemons(EventLoop* loop, Sink* log, int first_stream_id, rlimit files,
          std::function<void(const std::string&)> on_lost)
      : loop_(loop),
        log_(log),
        next_stream_id_(first_stream_id),
        files_(files),
        on_lost_(std::move(on_lost)) {}

  // args[0] is the program's name: looked up beside maypolerun, then on PATH.
  Status Start(const std::string& name, const std::vector<std::string>& args);

  // All that were started have announced themselves.
  bool all_ready() const;
  // The names of those that have not, for a message.
  std::string not_ready() const;
  bool all_ended() const;
  // Sends a signal to all; from now on their end is no loss.
  void Stop(int signal);
  // Shows no more of their lines.
  void Mute();

  std::set<pid_t> pids() const;
  // The announcement of the daemon of that name; it must have been started.
  const Announcement& announcement(const std::string& name) const;
  // "name pid=N metrics=..." of each, for --verbose.
  std::vector<std::string> Summary() const;

  std::optional<Time> deadline() const;
  void OnTime(Time now);

 private:
  struct Daemon {
    std::string name;
    Child child;
    EventLoop::WatchId end_watch = 0;
    EventLoop::WatchId announce_watch = 0;
    Fd announce_pipe;
    std::string announce_text;
    Announcement announcement;
    bool ready = false;
    bool ended = false;
    std::unique_ptr<OutputStream> log;
  };

  void OnAnnounce(Daemon* d);
  void OnEnd(Daemon* d);

  EventLoop* loop_;
  Sink* log_;
  int next_stream_id_;
  rlimit files_;
  std::function<void(const std::string&)> on_lost_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_DAEMONS_H_
