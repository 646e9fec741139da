// Actions: everything that the coordinator's core can ask its shell to do.
//
// Purpose: the core is a pure state machine. The shell (coordinator/service/,
// or a simulation) passes it events with their times, and carries out the
// actions that it returns, in order.
//
// Thread contract: values.
#ifndef MAYPOLE_COORDINATOR_CORE_ACTIONS_H_
#define MAYPOLE_COORDINATOR_CORE_ACTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/checksum/checksum_mode.h"
#include "common/types.h"
#include "common/wire/versions.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outgoing.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// Time since a moment that the shell chooses; it never goes back.
using Time = std::chrono::nanoseconds;

// The earliest of several deadlines; nullopt: there is none.
template <typename... More>
std::optional<Time> Earlier(std::optional<Time> first, const More&... more) {
  for (const std::optional<Time>& other : {std::optional<Time>(more)...}) {
    if (other && (!first || *other < *first)) first = other;
  }
  return first;
}
// A gRPC stream, numbered by the shell; 0 means none.
using StreamId = uint64_t;
// The session of an executor, over all its streams; numbered by the core.
using SessionId = uint64_t;

struct Config {
  Time start_timeout = std::chrono::seconds(120);
  Time resume_timeout = std::chrono::seconds(3);
  uint64_t fusion_threshold = uint64_t{64} << 20;  // bytes; 0: no fusion
  // The longest that an operation waits for others of its bucket.
  Time fusion_age = std::chrono::milliseconds(5);
  // When no rank has come or gone for this long, an elastic job's epoch may
  // start with fewer ranks than max_size.
  Time elastic_settle = std::chrono::seconds(1);
  // Stragglers are reported after stall_check and end the epoch after
  // stall_shutdown; 0: never. For jobs whose ranks set neither.
  Time stall_check = std::chrono::seconds(5);
  Time stall_shutdown{};
  // Whether results are compared; the ranks set it.
  ChecksumMode checksums = ChecksumMode::kOff;
  size_t operations = kMaxOperations;  // names per job, up to kMaxOperations
  // The frozen tier: in a job of up to this many nodes, each tells all others
  // when it is ready for a run; in a larger job, each tells its parent in a
  // tree with `fan_out` children per node. 0: no job uses the frozen tier.
  size_t frozen_nodes = 64;
  // Nodes of jobs of up to this many nodes send the inputs of small operations
  // before these are ordered.
  size_t eager_nodes = 16;
  // In jobs of more nodes, executors relay what is sent to all, in a tree
  // (relays.h). 0: never.
  size_t relay_nodes = 64;
  // Children per node, in both trees.
  uint32_t fan_out = 32;
  VersionRange versions = kProtocolVersions;  // that it speaks with executors
};

// Write the message to the stream.
struct Send {
  StreamId stream;
  Outgoing message;
};

// End the stream with this status after writing all messages sent before. The
// core has forgotten the stream already.
struct Close {
  StreamId stream;
  absl::Status status;
};

enum class Level { kInfo, kWarning, kError };
inline constexpr const char* kLevelNames[] = {"info", "warning", "error"};
struct Log {
  Level level;
  std::string line;  // key=value
};

// Facts for the metrics.
struct OperationIssued {
  Kind kind;
  uint64_t bytes;
  Time negotiation;  // from the first node's presence until now
};
struct RunIssued {
  size_t operations;
};
// Why a bucket, or a part of it, runs; see buckets.h.
enum class BucketEnd { kComplete, kUrgent, kAge, kForgotten };
struct BucketRan {
  BucketEnd end;
};
// A job's nodes have begun, or ended, to execute their steps without the
// coordinator.
struct ScheduleBegun {};
struct ScheduleOver {
  proto::ScheduleEnd why;
  uint64_t runs = 0;  // executed
  uint64_t operations = 0;
};
enum class ErrorKind {
  kMismatch,
  kRankLost,
  kRankLeft,
  kExecutorLost,
  kStartTimeout,
  kBadMessage,
  kStalled,
  kDeadlock,
  kResultsDiffer,
};
struct ErrorCounted {
  ErrorKind kind;
};
// Operations whose results were compared by their checksums, or could not be
// compared because records were lost.
struct ResultsCompared {
  uint64_t equal = 0;
  uint64_t different = 0;
  uint64_t unchecked = 0;
};
struct Reconnected {};
// A message to many nodes was given to one of them, which relays it.
struct MessageRelayed {};
// Other nodes have waited for this node for `time`, in addition to what was
// reported before.
struct StragglerNode {
  std::string job;
  std::string node;
  Time time{};
};

using Action =
    std::variant<Send, Close, Log, OperationIssued, RunIssued, BucketRan,
                 ScheduleBegun, ScheduleOver, ErrorCounted, ResultsCompared,
                 Reconnected, MessageRelayed, StragglerNode>;
using Actions = std::vector<Action>;

// A job's output: messages go to sessions (which number and keep them), facts
// directly to the shell.
struct JobOutput {
  std::vector<std::pair<SessionId, Outgoing>> messages;
  Actions facts;
};

// Adds to a job's output; log lines have the job and its epoch.
class JobLog {
 public:
  // `output` must outlive this object.
  JobLog(std::string job, uint64_t epoch, JobOutput* output)
      : output_(*output), epoch_(epoch), job_(std::move(job)) {}
  JobLog(const JobLog&) = delete;
  JobLog& operator=(const JobLog&) = delete;

  const std::string& job() const { return job_; }
  uint64_t epoch() const { return epoch_; }
  JobOutput* output() { return &output_; }

  // `fields`: " key=", value, ...
  template <typename... Fields>
  void Info(absl::string_view event, const Fields&... fields) {
    Write(Level::kInfo, event, fields...);
  }
  template <typename... Fields>
  void Warn(absl::string_view event, const Fields&... fields) {
    Write(Level::kWarning, event, fields...);
  }
  void Report(Action fact) { output_.facts.push_back(std::move(fact)); }
  void Count(ErrorKind kind) { Report(ErrorCounted{kind}); }

 protected:
  JobOutput& output_;
  uint64_t epoch_;

 private:
  template <typename... Fields>
  void Write(Level level, absl::string_view event, const Fields&... fields) {
    Report(Log{level, absl::StrCat("event=", event, " job=", job_,
                                   " epoch=", epoch_, fields...)});
  }

  const std::string job_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ACTIONS_H_
