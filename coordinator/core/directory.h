// Directory: which jobs there are, which streams belong to them, and which
// nodes are drained.
//
// Purpose: the little that jobs share. Its lock is held for look-ups only,
// never while a job handles an event, and nobody takes another lock under it.
//
//   absl::StatusOr<std::shared_ptr<JobEntry>> job = directory.Admit(hello);
//   if (!job.ok()) ...refuse...
//   ...                        // under (*job)->mutex: the executor is in it
//   directory.Bind(stream, *job);
//   if (directory.Release("job", "n0")) ...the job is forgotten...
//
//   a stream is   how it gets there            what its messages are
//   new           (unknown)                    the first must be a hello
//   bound         Bind()                       the job's
//   closed        Close()                      dropped
//   (forgotten)   Forget(), when it has ended  -
//
// Thread contract: all methods from any thread.
//
// Invariants: a job is found as long as it has places that were admitted and
// not released; the places on a node are counted here, so that a drain sees who
// is there without a lock of any job.
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

  const uint64_t number;  // of the jobs that there have been
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
  // A place for the executor of a hello that was checked, in a new job if there
  // is none of that id. An error: the coordinator takes it not now.
  absl::StatusOr<std::shared_ptr<JobEntry>> Admit(
      const proto::ExecutorHello& hello);
  // Gives the place of one executor of the node back. True: it was the job's
  // last, and the job is not found any more.
  bool Release(const std::string& job, const std::string& node);
  // Null: there is none.
  std::shared_ptr<JobEntry> Find(const std::string& job) const;
  // In the order of their ids.
  std::vector<std::shared_ptr<JobEntry>> All() const;
  absl::Status UnknownJob(const std::string& job) const;
  // Admits nobody from now on. The jobs that there were.
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
    std::vector<std::string> jobs;  // that are on the node
    bool changed = false;           // it was not so before
  };
  // A drained node keeps the jobs that it has now, also if their executors
  // there come anew, and is refused to others.
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
  // By node: the jobs that it keeps.
  std::map<std::string, std::set<std::string>> drained_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_DIRECTORY_H_
