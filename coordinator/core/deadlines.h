// Deadlines: which jobs must be looked at next.
//
// Purpose: a timer asks for the first deadline of all jobs after every event;
// that must not cost more the more jobs there are.
//
// Thread contract: all methods from any thread.
//
// Invariants: a job stands here once, or not at all.
#ifndef MAYPOLE_COORDINATOR_CORE_DEADLINES_H_
#define MAYPOLE_COORDINATOR_CORE_DEADLINES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/core/directory.h"

namespace maypole::coordinator {

class Deadlines {
 public:
  // The job's deadline has become `to`, where none means that it has none. The
  // caller holds the job's lock.
  void Move(const std::shared_ptr<JobEntry>& job, std::optional<Time> to) {
    if (job->deadline == to) return;
    std::lock_guard lock(mutex_);
    if (job->deadline) jobs_.erase({*job->deadline, job->number});
    if (to) jobs_.emplace(std::pair(*to, job->number), job);
    job->deadline = to;
  }

  // None: no job has one.
  std::optional<Time> First() const {
    std::lock_guard lock(mutex_);
    if (jobs_.empty()) return std::nullopt;
    return jobs_.begin()->first.first;
  }

  // Those whose deadline has come, the earliest first.
  std::vector<std::shared_ptr<JobEntry>> Due(Time now) const {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<JobEntry>> due;
    for (auto it = jobs_.begin(); it != jobs_.end() && it->first.first <= now;
         ++it) {
      due.push_back(it->second);
    }
    return due;
  }

 private:
  mutable std::mutex mutex_;
  // By deadline and the job's number.
  std::map<std::pair<Time, uint64_t>, std::shared_ptr<JobEntry>> jobs_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_DEADLINES_H_
