#include "tests/simulation/parts/rank_gpu.h"

#include <string>
#include <utility>

namespace maypole::simulation {

class SimulatedRankGpu::Run : public RankRun {
 public:
  Run(uint32_t c, std::vector<Part> p) : communicator(c), parts(std::move(p)) {}
  Status Poll(State* state) override {
    *state = executed   ? State::kEnded
             : enqueued ? State::kEnqueued
                        : State::kWaiting;
    return status;
  }

  const uint32_t communicator;
  const std::vector<Part> parts;
  bool enqueued = false;
  bool executed = false;
  Status status;
};

void SimulatedRankGpu::Connect(const session::ConnectGpu& connect) {
  auto& all =
      stage_->rank_communicators[std::string(connect.id, connect.id_bytes)];
  if (all == nullptr) all = std::make_shared<SimulatedRankCommunicator>();
  all->size = connect.size;
  members_[connect.number] = {all, connect.rank};
  enqueue_.Ask(stage_->SoonDelay(), life_);
}

std::shared_ptr<RankRun> SimulatedRankGpu::Begin(uint32_t communicator,
                                                 std::vector<Part> parts) {
  runs_.push_back(std::make_shared<Run>(communicator, std::move(parts)));
  const std::shared_ptr<Run> run = runs_.back();
  run->status =
      aborted_ ? Status(Code::kAborted, "the epoch is over") : failure_;
  enqueue_.Ask(stage_->SoonDelay(), life_);
  return run;
}

// The first that is not on the stream.
SimulatedRankGpu::Run* SimulatedRankGpu::NextToEnqueue() const {
  for (const auto& run : runs_) {
    if (!run->enqueued) return run.get();
  }
  return nullptr;
}

bool SimulatedRankGpu::awaits_connect() const {
  const Run* const next = NextToEnqueue();
  return next != nullptr && !members_.contains(next->communicator);
}

void SimulatedRankGpu::EnqueueNext() {
  Run* const next = NextToEnqueue();
  if (next == nullptr || awaits_connect() || aborted_ || !failure_.ok()) return;
  next->enqueued = true;
  if (may_fail_ && stage_->random.OneIn(64)) {
    stage_->scheduler.After(stage_->SoonDelay(), life_,
                            [this] { Fail(Code::kInternal, kFailure); });
  }
  changed_();
  BeginNext();
  if (NextToEnqueue() != nullptr) enqueue_.Ask(stage_->SoonDelay(), life_);
}

void SimulatedRankGpu::BeginNext() {
  if (runs_.empty() || begun_ || aborted_ || !failure_.ok() ||
      !runs_.front()->enqueued) {
    return;
  }
  begun_ = true;
  const Member& member = members_.at(runs_.front()->communicator);
  member.all->here[member.rank] = this;
  if (member.all->here.size() < member.all->size) return;
  stage_->scheduler.After(
      stage_->SoonDelay(), stage_->Forever(),
      [stage = stage_, all = member.all] { Execute(stage, all.get()); });
}

// Nothing happens if one has left meanwhile: the others wait for ever, as
// NCCL's kernels do, until they are aborted.
void SimulatedRankGpu::Execute(Stage* stage, SimulatedRankCommunicator* all) {
  if (all->here.size() < all->size) return;
  const auto here = std::exchange(all->here, {});
  ++stage->counts.runs_of_ranks;
  const std::vector<Part>& first = here.begin()->second->runs_.front()->parts;
  for (size_t i = 0; i < first.size(); ++i) {
    if (Gathers(first[i].operation.kind)) ++stage->counts.gathered_by_ranks;
    std::vector<NodePart> parts;
    for (const auto& [rank, gpu] : here) {
      const std::vector<Part>& of_rank = gpu->runs_.front()->parts;
      if (of_rank.size() != first.size()) {
        return stage->Found("two ranks run different operations together");
      }
      const Part& p = of_rank[i];
      parts.push_back({&p.operation, {{p.memory.get(), p.offset, p.result}}});
    }
    ExecuteOnGpus(stage, parts);
  }
  for (const auto& [rank, gpu] : here) {
    stage->scheduler.After(stage->SoonDelay(), gpu->life_,
                           [gpu = gpu] { gpu->EndFirst(); });
  }
}

void SimulatedRankGpu::EndFirst() {
  if (aborted_ || !failure_.ok()) return;
  runs_.front()->executed = true;
  runs_.pop_front();
  begun_ = false;
  changed_();
  BeginNext();
}

void SimulatedRankGpu::Fail(Code code, const char* text) {
  if (aborted_ || !failure_.ok() || runs_.empty()) return;
  failure_ = Status(code, text);
  ++stage_->counts.nccl_failures;
  stage_->Trace("NCCL of a rank says: ", text);
  Leave();
  for (const auto& run : runs_) run->status = failure_;
  changed_();
}

// Those that wait for this rank may hear of it from NCCL.
void SimulatedRankGpu::Leave() {
  for (auto& [number, member] : members_) {
    auto& here = member.all->here;
    const auto it = here.find(member.rank);
    if (it != here.end() && it->second == this) here.erase(it);
    for (const auto& [rank, other] : here) {
      if (other == this || !stage_->random.OneIn(4)) continue;
      stage_->scheduler.After(
          stage_->SoonDelay(), other->life_,
          [other = other] { other->Fail(Code::kUnavailable, kPeerIsLost); });
    }
  }
}

void SimulatedRankGpu::Abort() {
  if (std::exchange(aborted_, true)) return;
  Leave();
  stage_->scheduler.After(stage_->SoonDelay(), life_, [this] {
    for (const auto& run : runs_) {
      run->status = Status(Code::kAborted, "the epoch is over");
    }
    changed_();
  });
}

}  // namespace maypole::simulation
