#include "tests/simulation/parts/rank_gpu.h"

#include <string>
#include <utility>

#include "common/reduce/reduce.h"

namespace maypole::simulation {

class SimulatedRankGpu::Run : public RankRun {
 public:
  Run(uint32_t c, std::vector<Part> p) : communicator(c), parts(std::move(p)) {}
  Status Poll(State* state) override {
    *state = executed ? State::kEnded : State::kWaiting;
    return status;
  }

  const uint32_t communicator;
  const std::vector<Part> parts;
  bool executed = false;
  Status status;
};

void SimulatedRankGpu::Connect(const session::ConnectGpu& connect) {
  auto& all =
      stage_->rank_communicators[std::string(connect.id, connect.id_bytes)];
  if (all == nullptr) all = std::make_shared<SimulatedRankCommunicator>();
  all->size = connect.size;
  members_[connect.number] = {all, connect.rank};
  BeginNext();
}

std::shared_ptr<RankRun> SimulatedRankGpu::Begin(uint32_t communicator,
                                                 std::vector<Part> parts) {
  runs_.push_back(std::make_shared<Run>(communicator, std::move(parts)));
  const std::shared_ptr<Run> run = runs_.back();
  if (aborted_) run->status = Status(Code::kAborted, "aborted");
  BeginNext();
  return run;
}

bool SimulatedRankGpu::awaits_connect() const {
  return !runs_.empty() && !members_.contains(runs_.front()->communicator);
}

void SimulatedRankGpu::BeginNext() {
  if (runs_.empty() || begun_ || aborted_ || awaits_connect()) return;
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
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (const auto& [rank, gpu] : here) {
      const std::vector<Part>& parts = gpu->runs_.front()->parts;
      if (parts.size() != first.size() ||
          !Agree(parts[i].signature, first[i].signature)) {
        return stage->Found("two ranks run different operations together");
      }
      inputs.push_back(parts[i].data());
      outputs.push_back(parts[i].data());
    }
    if (stage->Spoils(Sabotage::kWrongSum, 4)) inputs.resize(1);
    const Signature& s = first[i].signature;
    ReduceTo(s.dtype, s.op, inputs, outputs,
             static_cast<uint64_t>(s.Elements()),
             {.divisor = s.op == Op::kAverage ? first[i].ranks : 1,
              .scale = s.postscale});
  }
  for (const auto& [rank, gpu] : here) {
    stage->scheduler.After(stage->SoonDelay(), gpu->life_,
                           [gpu = gpu] { gpu->EndFirst(); });
  }
}

void SimulatedRankGpu::EndFirst() {
  if (aborted_) return;
  runs_.front()->executed = true;
  runs_.pop_front();
  begun_ = false;
  changed_();
  BeginNext();
}

void SimulatedRankGpu::Leave() {
  for (auto& [number, member] : members_) {
    const auto it = member.all->here.find(member.rank);
    if (it != member.all->here.end() && it->second == this) {
      member.all->here.erase(it);
    }
  }
}

void SimulatedRankGpu::Abort() {
  if (std::exchange(aborted_, true)) return;
  Leave();
  stage_->scheduler.After(stage_->SoonDelay(), life_, [this] {
    for (const auto& run : runs_) {
      run->status = Status(Code::kAborted, "aborted");
    }
    changed_();
  });
}

}  // namespace maypole::simulation
