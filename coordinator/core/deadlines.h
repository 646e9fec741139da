// Deadlines: the deadlines of all jobs, in order.
//
// Purpose: after every event, the timer needs the first deadline of all jobs;
// the cost must not grow with the number of jobs.
//
// Thread contract: any thread may call any method.
//
// Invariants: each job has at most one entry.
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
  // Changes the job's deadline; nullopt removes it. The caller must hold the
  // job's lock.
  void Move(const std::shared_ptr<JobEntry>& job, std::optional<Time> to) {
    if (job->deadline == to) return;
    std::lock_guard lock(mutex_);
    if (job->deadline) jobs_.erase({*job->deadline, job->number});
    if (to) jobs_.emplace(std::pair(*to, job->number), job);
    job->deadline = to;
  }

  // The first deadline; nullopt if no job has one.
  std::optional<Time> First() const {
    std::lock_guard lock(mutex_);
    if (jobs_.empty()) return std::nullopt;
    return jobs_.begin()->first.first;
  }

  // The jobs whose deadline has passed, the earliest first.
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
