// Directory: the existing jobs, their streams, and the drained nodes.
//
// Purpose: the state that all jobs share. Its lock is held only for look-ups,
// never while a job handles an event; no other lock is taken under it.
//
//   absl::StatusOr<std::shared_ptr<JobEntry>> job = directory.Admit(hello);
//   if (!job.ok()) ...refuse...
//   ...                        // under (*job)->mutex: open the session
//   directory.Bind(stream, *job);
//   if (directory.Release("job", "n0")) ...the job is forgotten...
//
//   state of a stream   reached by                   its messages
//   new                 (unknown)                    the first must be a hello
//   bound               Bind()                       go to the job
//   closed              Close()                      are dropped
//   (forgotten)         Forget(), after it has ended -
//
// Thread contract: any thread may call any method.
//
// Invariants: a job exists here as long as it has places that were admitted and
// not released. The places on a node are counted here, so that a drain can list
// a node's jobs without locking them.
#ifndef MAYPOLE_COORDINATOR_CORE_DIRECTORY_H_
#define MAYPOLE_COORDINATOR_CORE_DIRECTORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/job_shard.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// A job with its lock.
struct JobEntry {
  JobEntry(uint64_t number, const proto::ExecutorHello& first,
           const Config& config, const std::string& incarnation)
      : number(number),
        shard(first.job(), first.token(), config, incarnation) {}

  const uint64_t number;  // counts all jobs that have existed
  std::mutex mutex;
  // Under the mutex:
  JobShard shard;
  std::optional<Time> deadline;  // as deadlines.h knows it
};

class Directory {
 public:
  Directory(const Config& config, std::string incarnation)
      : config_(config), incarnation_(std::move(incarnation)) {}

  const std::string& incarnation() const { return incarnation_; }

  // --- Jobs ------------------------------------------------------------------
  // Reserves a place for the executor that sent this (already checked) hello;
  // creates the job if it does not exist. Returns an error if the coordinator
  // cannot admit the executor now.
  absl::StatusOr<std::shared_ptr<JobEntry>> Admit(
      const proto::ExecutorHello& hello);
  // Releases the place of one executor of the node. True if it was the job's
  // last place; then the job is removed.
  bool Release(const std::string& job, const std::string& node);
  // Null if there is no such job.
  std::shared_ptr<JobEntry> Find(const std::string& job) const;
  // All jobs, in the order of their ids.
  std::vector<std::shared_ptr<JobEntry>> All() const;
  // The error for a job that does not exist.
  absl::Status UnknownJob(const std::string& job) const;
  // Admits no executor from now on. Returns all jobs.
  std::vector<std::shared_ptr<JobEntry>> Stop();

  // --- Streams ---------------------------------------------------------------
  struct Stream {
    bool is_new = true;
    std::shared_ptr<JobEntry> job;  // null: new, or closed
  };
  Stream Find(StreamId stream) const;
  void Bind(StreamId stream, std::shared_ptr<JobEntry> job);
  void Close(StreamId stream);
  void Forget(StreamId stream);

  // --- Drained nodes ---------------------------------------------------------
  struct Drained {
    std::vector<std::string> jobs;  // jobs that have ranks on the node
    bool changed = false;           // false: the node was in this state already
  };
  // Drains the node, or undoes that. A drained node keeps the jobs that it has
  // now, even if their executors reconnect; executors of other jobs are
  // refused.
  absl::StatusOr<Drained> Drain(const std::string& node, bool undo);
  std::vector<std::string> DrainedNodes() const;

 private:
  struct Job {
    std::shared_ptr<JobEntry> entry;
    std::multiset<std::string> nodes;  // places
  };

  absl::Status CheckDrained(const proto::ExecutorHello& hello) const;

  const Config config_;
  const std::string incarnation_;
  mutable std::mutex mutex_;
  std::map<std::string, Job> jobs_;
  size_t places_ = 0;  // of all jobs
  uint64_t last_number_ = 0;
  bool stopped_ = false;
  std::unordered_map<StreamId, std::shared_ptr<JobEntry>> streams_;
  // By drained node: the jobs that it keeps.
  std::map<std::string, std::set<std::string>> drained_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_DIRECTORY_H_
