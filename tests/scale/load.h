// Load: the executors of one job, and the measurements with them.
//
//   Load load(options);
//   absl::StatusOr<Start> start = load.Connect();
//   absl::StatusOr<Steps> steps = load.Run(Pattern::kTogether, 10);
//   absl::StatusOr<double> seconds = load.Finish(Ending::kRankDies);
//
// Thread contract: one thread calls the methods.
#ifndef MAYPOLE_TESTS_SCALE_LOAD_H_
#define MAYPOLE_TESTS_SCALE_LOAD_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/scale/executor.h"
#include "tests/scale/usage.h"

namespace maypole::scale {

// How the tensors of a step become ready.
enum class Pattern {
  kTogether,  // all tensors on all nodes at once
  kLate,      // the same, but the last node is late: all others have reported
              // everything and wait for it
  kPaced,     // one after the other during `pace`, as in a backward pass
};

enum class Ending {
  kRankDies,      // the last node reports that its first rank has died
  kStreamBreaks,  // of the last node
  kAllLeave,      // all ranks, cleanly, at once
};

struct LoadOptions {
  std::string address;  // of the coordinator
  pid_t coordinator = 0;
  std::string job = "load";
  size_t nodes = 2;
  size_t ranks_per_node = 8;
  size_t tensors = 161;       // the first ones of ResNet-50
  size_t channels = 4;        // HTTP/2 connections
  size_t address_bytes = 47;  // worker/backend/handshake_io.cc, an IPv4 address
  std::chrono::milliseconds pace{100};
  std::chrono::seconds limit{120};  // for each thing that is awaited
};

struct Traffic {
  uint64_t sent_messages = 0;  // by the executors
  uint64_t sent_bytes = 0;
  uint64_t received_messages = 0;
  uint64_t received_bytes = 0;
};

// What the steps, or the start, cost both programs.
struct Cost {
  double coordinator_cpu = 0;  // seconds
  double load_cpu = 0;
  Traffic traffic;
};

struct Start {
  double welcomed = 0;   // seconds from the first hello to the last Welcome
  double started = 0;    // to the last EpochStart
  double connected = 0;  // to the last Endpoints
  Cost cost;
};

// Milliseconds.
struct Steps {
  size_t steps = 0;
  // Of all steps, without their preparation; with kLate, from when the last
  // node begins to report. The cost, too.
  double seconds = 0;
  // By step: from the last report's write to the last node's last Execute.
  std::vector<double> step_ms;
  // By step and operation: from its last report's write to its last Execute.
  std::vector<double> operation_ms;
  size_t runs = 0;
  Cost cost;
};

class Load {
 public:
  explicit Load(const LoadOptions& options);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  absl::StatusOr<Start> Connect();
  // At least this many steps, for at least this many seconds.
  absl::StatusOr<Steps> Run(Pattern pattern, size_t steps, double seconds = 0);
  // Nothing may follow. Returns the seconds until the last EpochEnd or, of
  // kAllLeave, until the coordinator has acknowledged all.
  absl::StatusOr<double> Finish(Ending ending);
  absl::StatusOr<Memory> CoordinatorMemory() const;

 private:
  absl::Status Step(Pattern pattern, Steps* out);
  absl::Status SubmitAllButOne();
  void Submit(Pattern pattern);
  absl::Status CheckOrder() const;
  void Measure(Steps* out) const;
  // What has been used since the program's start.
  absl::StatusOr<Cost> Used() const;

  const LoadOptions options_;
  Job job_;
  std::vector<std::unique_ptr<proto::Coordinator::Stub>> stubs_;
  std::vector<std::unique_ptr<Executor>> executors_;
  uint32_t step_ = 0;
};

}  // namespace maypole::scale

#endif  // MAYPOLE_TESTS_SCALE_LOAD_H_
