#include "coordinator/core/directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

// --- Jobs --------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<JobEntry>> Directory::Admit(
    const proto::ExecutorHello& hello) {
  std::lock_guard lock(mutex_);
  if (stopped_) {
    return absl::UnavailableError(
        "the coordinator was stopped by its operator");
  }
  if (absl::Status able = CheckDrained(hello); !able.ok()) return able;
  if (places_ >= kMaxSessions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator serves ", kMaxSessions,
        " executors already, which is its limit; try again later"));
  }
  auto it = jobs_.find(hello.job());
  if (it == jobs_.end()) {
    if (jobs_.size() >= kMaxJobs) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the coordinator serves ", kMaxJobs,
                       " jobs already, which is its limit; try again later"));
    }
    it = jobs_.emplace(hello.job(), Job()).first;
    it->second.entry = std::make_shared<JobEntry>(++last_number_, hello,
                                                  config_, incarnation_);
  }
  it->second.nodes.insert(hello.node());
  ++places_;
  return it->second.entry;
}

bool Directory::Release(const std::string& job, const std::string& node) {
  std::lock_guard lock(mutex_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return false;  // after Stop()
  it->second.nodes.erase(it->second.nodes.find(node));
  --places_;
  if (!it->second.nodes.empty()) return false;
  for (auto& [drained, kept] : drained_) kept.erase(job);
  jobs_.erase(it);
  return true;
}

std::shared_ptr<JobEntry> Directory::Find(const std::string& job) const {
  std::lock_guard lock(mutex_);
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : it->second.entry;
}

std::vector<std::shared_ptr<JobEntry>> Directory::All() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<JobEntry>> all;
  for (const auto& [id, job] : jobs_) all.push_back(job.entry);
  return all;
}

absl::Status Directory::UnknownJob(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto name = [](const auto& job) { return job.first; };
  const auto more = [](size_t n) { return absl::StrCat(" and ", n, " more"); };
  return absl::NotFoundError(
      absl::StrCat("there is no job ", LogValue(Cut(id, kMaxJobBytes)),
                   jobs_.empty() ? "; there are no jobs now" : "; there are: ",
                   ListText(jobs_, 8, ", ", name, more)));
}

std::vector<std::shared_ptr<JobEntry>> Directory::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  std::vector<std::shared_ptr<JobEntry>> all;
  for (const auto& [id, job] : jobs_) all.push_back(job.entry);
  jobs_.clear();
  places_ = 0;
  return all;
}

// --- Streams -----------------------------------------------------------------

Directory::Stream Directory::Find(StreamId stream) const {
  std::lock_guard lock(mutex_);
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return {};
  return {false, it->second};
}

void Directory::Bind(StreamId stream, std::shared_ptr<JobEntry> job) {
  std::lock_guard lock(mutex_);
  streams_[stream] = std::move(job);
}

void Directory::Close(StreamId stream) { Bind(stream, nullptr); }

void Directory::Forget(StreamId stream) {
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

// --- Drained nodes -----------------------------------------------------------

absl::StatusOr<Directory::Drained> Directory::Drain(const std::string& node,
                                                    bool undo) {
  std::lock_guard lock(mutex_);
  Drained out;
  for (const auto& [id, job] : jobs_) {
    if (job.nodes.contains(node)) out.jobs.push_back(id);
  }
  const bool was = drained_.contains(node);
  if (!undo && !was && drained_.size() >= kMaxDrained) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxDrained,
                     " nodes are drained already, which is the limit; undo "
                     "the drain of nodes that no longer exist"));
  }
  out.changed = was == undo;
  if (undo) {
    drained_.erase(node);
  } else if (!was) {
    drained_[node] = {out.jobs.begin(), out.jobs.end()};
  }
  return out;
}

std::vector<std::string> Directory::DrainedNodes() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> nodes;
  for (const auto& [node, kept] : drained_) nodes.push_back(node);
  return nodes;
}

absl::Status Directory::CheckDrained(const proto::ExecutorHello& hello) const {
  const auto it = drained_.find(hello.node());
  if (it == drained_.end() || it->second.contains(hello.job())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "node '", hello.node(),
      "' has been drained by an operator and takes no new jobs; start job '",
      hello.job(), "' on other nodes, or ask for: maypolectl drain ",
      hello.node(), " --undo"));
}

}  // namespace maypole::coordinator
