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
#include <string_view>
#include <utility>
#include <vector>

#include "client/launcher/announce.h"
#include "client/launcher/events.h"
#include "client/launcher/output_stream.h"
#include "client/launcher/process.h"
#include "client/launcher/sink.h"
#include "common/status.h"

namespace maypole::launcher {

// Beside maypolerun, then on PATH.
Status FindDaemon(const std::string& name, std::string* path);

class Daemons {
 public:
  struct Settings {
    // Where their log lines go: one of the two (see OutputStream).
    Sink* log = nullptr;
    std::function<void(std::string_view)> raw_log = {};
    int first_stream_id = 0;
    rlimit files = {};
    // Called with a sentence when a daemon ended unasked.
    std::function<void(const std::string&)> on_lost = {};
  };

  Daemons(EventLoop* loop, Settings settings)
      : loop_(loop),
        settings_(std::move(settings)),
        next_stream_id_(settings_.first_stream_id) {}

  // args[0] is the program's name: looked up beside maypolerun, then on PATH.
  Status Start(const std::string& name, const std::vector<std::string>& args);

  // All that were started have announced themselves; so it is if none was (a
  // job with --coordinator), or Start() has failed.
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
  Settings settings_;
  int next_stream_id_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_DAEMONS_H_
