// Actions: all that the coordinator's core can ask of its shell.
//
// Purpose: the core is a pure state machine; the shell (coordinator/service/,
// or a simulation) feeds it events with the time they happened at and carries
// out, in order, the actions it answers.
//
// Thread contract: values.
#ifndef MAYPOLE_COORDINATOR_CORE_ACTIONS_H_
#define MAYPOLE_COORDINATOR_CORE_ACTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/types.h"
#include "coordinator/core/limits.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// Since a moment of the shell's choice; never goes back.
using Time = std::chrono::nanoseconds;
// A gRPC stream, numbered by the shell; 0 is none.
using StreamId = uint64_t;
// An executor, over all its streams; numbered by the core.
using SessionId = uint64_t;

struct Config {
  Time start_timeout = std::chrono::seconds(120);
  Time resume_timeout = std::chrono::seconds(3);
  uint64_t fusion_threshold = uint64_t{64} << 20;  // bytes; 0: no fusion
  Time fusion_age = std::chrono::milliseconds(5);  // longest that one waits
  // Nobody has come or gone for so long: an elastic job's epoch may start with
  // fewer ranks than it may have.
  Time elastic_settle = std::chrono::seconds(1);
  // Stragglers are reported after, and end the epoch after; 0: never. Of a job
  // whose ranks say nothing.
  Time stall_check = std::chrono::seconds(5);
  Time stall_shutdown{};
  size_t operations = kMaxOperations;  // at most that
};

// Write the message to the stream.
struct Send {
  StreamId stream;
  proto::CoordinatorMessage message;
};

// End the stream with this status once what was sent before is out. The core
// has forgotten the stream.
struct Close {
  StreamId stream;
  absl::Status status;
};

enum class Level { kInfo, kWarning, kError };
struct Log {
  Level level;
  std::string line;  // key=value
};

// What is counted; the metrics' facts.
struct OperationIssued {
  Kind kind;
  uint64_t bytes;
  Time negotiation;  // from the first node's presence until now
};
struct RunIssued {
  size_t operations;
};
// Why (a part of) a bucket runs; see buckets.h.
enum class BucketEnd { kComplete, kUrgent, kAge, kForgotten };
struct BucketRan {
  BucketEnd end;
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
};
struct ErrorCounted {
  ErrorKind kind;
};
struct Reconnected {};
// Others have waited for a node so long, more than was told before.
struct StragglerNode {
  std::string job;
  std::string node;
  Time time{};
};

using Action =
    std::variant<Send, Close, Log, OperationIssued, RunIssued, BucketRan,
                 ErrorCounted, Reconnected, StragglerNode>;
using Actions = std::vector<Action>;

// What a job asks for: messages go to sessions (which number and keep them),
// facts straight to the shell.
struct JobOutput {
  std::vector<std::pair<SessionId, proto::CoordinatorMessage>> messages;
  Actions facts;

  void Info(std::string line) {
    facts.emplace_back(Log{Level::kInfo, std::move(line)});
  }
  void Warn(std::string line) {
    facts.emplace_back(Log{Level::kWarning, std::move(line)});
  }
  void Count(ErrorKind kind) { facts.emplace_back(ErrorCounted{kind}); }
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ACTIONS_H_
