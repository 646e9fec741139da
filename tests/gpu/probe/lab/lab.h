// Lab: runs the experiments of the probe.
//
// Purpose: an experiment (facts.h) is a function of the parent process, which
// never touches a GPU, and roles: functions that run in processes of their own,
// started anew for every measurement. So any of them may hang or be killed, and
// the results are those that separate processes see.
//
//   // The parent:
//   auto spinner = lab.Start("spin", {"20"});
//   if (!spinner.ok()) return lab.report().Failed(1, "spin", spinner.status());
//   auto line = spinner->channel().Expect("ready", Seconds(10));
//   spinner->channel().Send("go");
//   spinner->Kill();                                       // or its destructor
//   // The role, in its process:
//   absl::Status Spin(Stage& stage) { ... stage.channel().Send("ready"); ... }
//
// Thread contract: each object from one thread.
//
// Invariants: no wait without a deadline; no actor outlives its Actor; the
// actors' environments differ from the parent's only in what was asked for.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_LAB_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_LAB_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "tests/gpu/probe/lab/report.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::probe {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;
constexpr Duration Seconds(double s) {
  return Duration(static_cast<int64_t>(s * 1e9));
}

struct Options {
  std::string plugin;  // path of libmaypole_gpu.so
  std::string nccl;    // path of libnccl.so.2; empty: the plugin looks for it
  bool fake = false;   // no GPU at all: the measurements mean nothing
  bool quick = false;  // small sizes, few rounds
  std::string device;  // UUID; empty: the first
};

// Lines between the parent and an actor, with descriptors: a SOCK_SEQPACKET
// pair.
class Channel {
 public:
  explicit Channel(Fd socket) : socket_(std::move(socket)) {}
  struct Line {
    std::string text;
    std::vector<Fd> fds;
  };
  absl::Status Send(std::string_view text, std::span<const int> fds = {});
  // Errors: kDeadlineExceeded; kUnavailable: the other end is closed.
  absl::StatusOr<Line> Receive(Duration timeout);
  // Receives a line whose first word is `word`; anything else is an error that
  // cites it ("error ..." is what a role that failed says by itself).
  absl::StatusOr<Line> Expect(std::string_view word, Duration timeout);
  int fd() const { return socket_.get(); }

 private:
  Fd socket_;
};

// A process that plays a role. Killed (SIGKILL) and reaped at the end of its
// life.
class Actor {
 public:
  Actor(pid_t pid, Channel channel) : pid_(pid), channel_(std::move(channel)) {}
  Actor(Actor&& other) noexcept;
  Actor& operator=(Actor&& other) noexcept;
  ~Actor() { Kill(); }

  pid_t pid() const { return pid_; }
  Channel& channel() { return channel_; }
  void Kill();
  // Asks it to end by closing the channel; kills it after the timeout, and says
  // so by kDeadlineExceeded. Otherwise an error says how it ended, if not well.
  absl::Status End(Duration timeout);

 private:
  pid_t pid_ = -1;
  Channel channel_{Fd()};
};

// The environment of a role in its process.
class Stage {
 public:
  Stage(Options options, std::vector<std::string> arguments, Channel channel)
      : options_(std::move(options)),
        arguments_(std::move(arguments)),
        channel_(std::move(channel)) {}
  const Options& options() const { return options_; }
  // Those of Start; a number, or an error of the experiment's author.
  const std::vector<std::string>& arguments() const { return arguments_; }
  int64_t Number(size_t index) const;
  Channel& channel() { return channel_; }
  // The device, opened at the first call; the process ends with an error line
  // to the parent if that fails, so a role may rely on it.
  gpu::Gpu& gpu();
  const gpu::Versions& versions();
  // Sends the answer to the parent and ends the process at once: for a role
  // whose streams may wait for ever, because releasing them would block, too.
  [[noreturn]] void Fail(const absl::Status& status);

 private:
  void Open();

  Options options_;
  std::vector<std::string> arguments_;
  Channel channel_;
  std::unique_ptr<gpu::Driver> driver_;
  std::unique_ptr<gpu::Gpu> gpu_;
};

using Role = absl::Status (*)(Stage& stage);
using RoleTable = std::map<std::string, Role>;
// All roles by name; filled by the facts' files (facts.cc).
const RoleTable& Roles();

// Call first in main(): if this process is an actor, plays its role and returns
// the exit status.
std::optional<int> PlayRole(int argc, char** argv);

// Call before the first actor is started: creates the state that the drivers of
// all processes share. Keep it as long as there are actors.
absl::StatusOr<std::shared_ptr<void>> PrepareDrivers(const Options& options);
// The driver that the options ask for. kUnavailable: no plugin, no driver.
absl::StatusOr<std::unique_ptr<gpu::Driver>> OpenDriver(const Options& options);

class Lab {
 public:
  Lab(Options options, Report* report)
      : options_(std::move(options)), report_(report) {}
  const Options& options() const { return options_; }
  Report& report() { return *report_; }

  // Starts this program as an actor. environment: added, or replaces.
  absl::StatusOr<Actor> Start(
      const std::string& role, std::vector<std::string> arguments = {},
      const std::map<std::string, std::string>& environment = {});

  // Additional variables of actors until it is cleared: an MPS daemon's
  // directories.
  void SetEnvironment(std::map<std::string, std::string> environment) {
    environment_ = std::move(environment);
  }

 private:
  Options options_;
  Report* report_;
  std::map<std::string, std::string> environment_;
};

// An MPS control daemon of our own, with directories of its own, for as long as
// this lives. kUnavailable, with the reason: no such program, or it refused.
class Mps {
 public:
  static absl::StatusOr<std::unique_ptr<Mps>> Start();
  ~Mps();
  Mps(const Mps&) = delete;
  Mps& operator=(const Mps&) = delete;
  // For Lab::SetEnvironment.
  std::map<std::string, std::string> environment() const;
  // The servers that it has started for clients: none, if clients go without
  // MPS, which they do silently.
  absl::StatusOr<std::vector<pid_t>> Servers();

 private:
  explicit Mps(std::string directory) : directory_(std::move(directory)) {}
  absl::Status StartDaemon();

  std::string directory_;
  pid_t daemon_ = -1;
  std::vector<pid_t> servers_;
};

// Runs `measure` with actors outside of MPS ("no MPS"), then under it ("MPS");
// if there is no MPS, calls `missing` with the reason instead of the latter.
void WithoutAndWithMps(Lab& lab,
                       const std::function<void(const std::string&)>& measure,
                       const std::function<void(const std::string&)>& missing);

// --- Small things ------------------------------------------------------------

// A page of host memory in a memfd: mapped here, and by each process that gets
// its fd.
class SharedMemory {
 public:
  static absl::StatusOr<SharedMemory> Create(size_t bytes);
  static absl::StatusOr<SharedMemory> Map(Fd fd, size_t bytes);
  int fd() const { return fd_.get(); }
  void* data() const { return mapping_.data(); }
  size_t bytes() const { return mapping_.size(); }
  // The 64-bit word `index`.
  uint64_t& word(size_t index) const {
    return static_cast<uint64_t*>(data())[index];
  }

 private:
  Fd fd_;
  Mapping mapping_;
};

// Polls Done(stream) until it is true: kDeadlineExceeded after the timeout.
absl::Status WaitDone(gpu::Gpu& gpu, gpu::Stream stream, Duration timeout);

// The p-quantile (0 to 1) of the values, which it sorts; NaN if there are none.
double Quantile(std::vector<double>& values, double p);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_LAB_H_
