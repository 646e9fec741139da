// RunEnds: the runs that have begun, and how each ends.
//
// Purpose: a run ends when its parts have ended, one for each of its GPUs; or
// earlier, when the GPUs may no longer be waited for.
//
//   RunEnds ends(on_ended);
//   const uint64_t id = ends.Begin(run, /*parts=*/2);
//   ends.PartEnded(id, status);
//   ends.PartEnded(id, status);      // on_ended(run, the first error)
//
// Thread contract: one thread uses it. on_ended is called from within the
// functions.
//
// Invariants: on_ended is called once for each run.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_RUN_ENDS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_RUN_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/gpu/runner/gpu_run.h"
#include "common/status.h"

namespace maypole {

class RunEnds {
 public:
  using OnEnded = std::function<void(const GpuRun&, Status)>;

  using OnEnqueued = std::function<void(const GpuRun&)>;

  // on_enqueued may be null.
  explicit RunEnds(OnEnded on_ended, OnEnqueued on_enqueued = nullptr)
      : on_ended_(std::move(on_ended)), on_enqueued_(std::move(on_enqueued)) {}
  RunEnds(const RunEnds&) = delete;
  RunEnds& operator=(const RunEnds&) = delete;

  // `parts` is at least 1.
  uint64_t Begin(GpuRun run, size_t parts) {
    run.times.begun = GpuRunNow();
    begun_.emplace(++last_, Begun{std::move(run), parts, {}});
    return last_;
  }
  // Ends a run that has not begun.
  void Refuse(const GpuRun& run, const Status& why) { on_ended_(run, why); }
  // All parts are on the GPUs' streams.
  void Enqueued(uint64_t id) {
    const auto it = begun_.find(id);
    if (it == begun_.end()) return;
    it->second.run.times.launched = GpuRunNow();
    if (it->second.error.ok() && on_enqueued_) on_enqueued_(it->second.run);
  }
  void PartEnded(uint64_t id, const Status& status) {
    const auto it = begun_.find(id);
    if (it == begun_.end()) return;  // ended by EndAll()
    it->second.error.Update(status);
    if (--it->second.parts > 0) return;
    Begun ended = std::move(begun_.extract(it).mapped());
    ended.run.times.ended = GpuRunNow();
    on_ended_(ended.run, ended.error);
  }
  // All runs that have begun will end with this error, unless they have
  // another.
  void FailAll(const Status& why) {
    for (auto& [id, begun] : begun_) begun.error.Update(why);
  }
  // Ends all runs now.
  void EndAll() {
    const std::map<uint64_t, Begun> all = std::exchange(begun_, {});
    for (const auto& [id, begun] : all) on_ended_(begun.run, begun.error);
  }
  bool empty() const { return begun_.empty(); }

 private:
  struct Begun {
    GpuRun run;
    size_t parts;  // that have not ended
    Status error;
  };

  const OnEnded on_ended_;
  const OnEnqueued on_enqueued_;
  uint64_t last_ = 0;
  std::map<uint64_t, Begun> begun_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_RUN_ENDS_H_
