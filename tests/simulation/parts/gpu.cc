#include "tests/simulation/parts/gpu.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/board/gpu_place.h"
#include "common/gpu/runner/make_operation.h"

namespace maypole::simulation {
namespace {

void ExecuteAndCount(Stage* stage, const std::vector<NodePart>& parts) {
  ++stage->counts.gpu_operations;
  if (Gathers(parts.front().operation->kind)) ++stage->counts.gathered_on_gpus;
  ExecuteOnGpus(stage, parts);
}

}  // namespace

// --- The executor's side -----------------------------------------------------

SimulatedGpus::SimulatedGpus(Stage* stage, Callbacks callbacks)
    : stage_(stage),
      callbacks_(std::move(callbacks)),
      turn_(&stage->scheduler, [this] { EndNext(); }) {}

void SimulatedGpus::Open(GpuMemoryId id,
                         const session::GpuMemoryRequest& request, Fd) {
  const GpuMemory memory =
      std::move(stage_->gpu_memories.extract(request.proof).mapped());
  stage_->scheduler.After(
      stage_->MessageDelay(), life_, [this, id, memory, gpu = request.uuid[0]] {
        if (stage_->random.OneIn(stage_->off_gpu)) {
          return callbacks_.on_opened(id,
                                      Status(Code::kUnavailable, "refused"));
        }
        memories_[id] = memory;
        callbacks_.on_opened(id, OpenedGpuMemory{.gpu = gpu});
      });
}

void SimulatedGpus::Close(uint32_t local) {
  std::erase_if(memories_,
                [&](const auto& m) { return m.first.local == local; });
}

void SimulatedGpus::Run(GpuRun run) {
  if (aborted_) {
    return callbacks_.on_ended(run, Status(Code::kAborted, "aborted"));
  }
  if (run.communicator != 0) {
    together_.push_back(std::move(run));
    if (together_.size() == 1) BeginTogether();
    return;
  }
  running_.push_back(std::move(run));
  turn_.Ask(stage_->SoonDelay(), life_);
}

void SimulatedGpus::EndNext() {
  const GpuRun run = std::move(running_.front());
  running_.pop_front();
  const bool open = AreOpen(run);
  if (open) ExecuteAndCount(stage_, {PartOf(run.operations.front())});
  callbacks_.on_ended(run,
                      open ? Status() : Status(Code::kUnavailable, "closed"));
  if (!running_.empty()) turn_.Ask(stage_->SoonDelay(), life_);
}

bool SimulatedGpus::AreOpen(const GpuRun& run) const {
  for (const GpuOperation& operation : run.operations) {
    for (const maypole::GpuTensor& tensor : operation.tensors) {
      if (!memories_.contains(tensor.memory)) return false;
    }
  }
  return true;
}

NodePart SimulatedGpus::PartOf(const GpuOperation& operation) const {
  NodePart part{.operation = &operation};
  for (const maypole::GpuTensor& t : operation.tensors) {
    part.tensors.push_back({memories_.at(t.memory).get(), t.offset, t.result});
  }
  return part;
}

// --- Communicators -----------------------------------------------------------

SimulatedGpus::~SimulatedGpus() { Leave(); }

void SimulatedGpus::MakeCommunicatorId(uint32_t number) {
  const std::string id =
      "communicator " + std::to_string(stage_->communicators.size());
  stage_->communicators[id] = std::make_shared<SimulatedCommunicator>();
  stage_->scheduler.After(stage_->SoonDelay(), life_, [this, number, id] {
    callbacks_.on_communicator_id(number, id);
  });
}

void SimulatedGpus::Connect(GpuCommunicator c, std::string id) {
  const auto& all = stage_->communicators.at(id);
  all->size = c.size;
  members_[c.number] = {static_cast<uint32_t>(c.gpus.size()), all, c.first};
  all->connected += static_cast<uint32_t>(c.gpus.size());
  BeginTogether();
}

void SimulatedGpus::BeginTogether() {
  if (together_.empty() || begun_ || aborted_) return;
  const auto it = members_.find(together_.front().communicator);
  if (it == members_.end()) return;  // Connect() will come
  begun_ = true;
  Member& member = it->second;
  member.all->here[member.first] = this;
  member.all->gpus_here += member.gpus;
  if (member.all->gpus_here < member.all->size) return;
  stage_->scheduler.After(stage_->SoonDelay(), stage_->Forever(),
                          [stage = stage_, all = member.all] {
                            ExecuteTogether(stage, all.get());
                          });
}

// Nothing happens if one has left meanwhile: the others wait for ever, as
// NCCL's kernels do, until they are aborted.
void SimulatedGpus::ExecuteTogether(Stage* stage, SimulatedCommunicator* all) {
  if (all->gpus_here < all->size) return;
  const auto here = std::exchange(all->here, {});
  all->gpus_here = 0;
  ++stage->counts.nccl_runs;
  bool open = true;
  const GpuRun& first = here.begin()->second->together_.front();
  for (const auto& [rank, gpus] : here) {
    open = open && gpus->AreOpen(gpus->together_.front());
    if (gpus->together_.front().operations.size() != first.operations.size()) {
      return stage->Found("two nodes run different operations together");
    }
  }
  for (size_t i = 0; open && i < first.operations.size(); ++i) {
    std::vector<NodePart> parts;
    for (const auto& [rank, gpus] : here) {
      parts.push_back(gpus->PartOf(gpus->together_.front().operations[i]));
    }
    ExecuteAndCount(stage, parts);
  }
  for (const auto& [rank, gpus] : here) {
    stage->scheduler.After(stage->SoonDelay(), gpus->life_, [gpus, open] {
      gpus->EndTogether(open ? Status() : Status(Code::kUnavailable, "closed"));
    });
  }
}

void SimulatedGpus::EndTogether(Status status) {
  if (aborted_) return;
  const GpuRun run = std::move(together_.front());
  together_.pop_front();
  begun_ = false;
  callbacks_.on_ended(run, status);
  BeginTogether();
}

void SimulatedGpus::Leave() {
  for (auto& [number, member] : members_) {
    const auto it = member.all->here.find(member.first);
    if (it == member.all->here.end() || it->second != this) continue;
    member.all->here.erase(it);
    member.all->gpus_here -= member.gpus;
  }
}

void SimulatedGpus::Abort() {
  if (aborted_) return;
  aborted_ = true;
  Leave();
  stage_->scheduler.After(stage_->SoonDelay(), life_, [this] {
    for (const GpuRun& run : std::exchange(together_, {})) {
      callbacks_.on_ended(run, Status(Code::kAborted, "aborted"));
    }
  });
}

// --- A rank's side -----------------------------------------------------------

// Only the root of a broadcast has one.
bool GpuTensor::HasInput() const {
  const Signature& s = record_->operation->signature;
  return s.kind != Kind::kBroadcast || s.root == record_->rank;
}

void GpuTensor::WriteInput() {
  if (!HasInput()) return;
  std::copy(record_->input.begin(), record_->input.end(),
            memory_->begin() + static_cast<std::ptrdiff_t>(offset_));
}

// Sets the operation's memory on the host; returns that of the result.
std::vector<std::byte>& GpuTensor::GiveMemory(Operation* op) {
  op->input = record_->input.data();
  std::vector<std::byte>& result =
      record_->planned->in_place ? record_->input : record_->output;
  if (!Gathers(op->signature.kind)) op->output = result.data();
  return result;
}

Status GpuTensor::BringToHost(Operation* op, bool* done) {
  if (!std::exchange(copying_, true)) {
    stage_->scheduler.After(stage_->SoonDelay(), life_, [this] {
      copied_ = true;
      on_host_();
    });
  }
  *done = copied_;
  if (!copied_) return Status();
  ++stage_->counts.brought_to_host;
  if (HasInput()) {
    std::copy_n(memory_->begin() + static_cast<std::ptrdiff_t>(offset_),
                record_->input.size(), record_->input.begin());
  }
  GiveMemory(op);
  return Status();
}

void GpuTensor::ResultOnGpu(uint64_t offset) {
  if (run_ == nullptr) CopyResult(offset);  // else it comes later
}

void GpuTensor::CopyResult(uint64_t offset) {
  Operation& op = *record_->operation;
  const auto from =
      memory_->begin() + static_cast<std::ptrdiff_t>(offset_ + offset);
  if (Gathers(op.signature.kind)) {
    op.gathered.reset(
        static_cast<std::byte*>(std::malloc(op.gathered_bytes + 1)));
    std::copy_n(from, op.gathered_bytes, op.gathered.get());
    return;
  }
  std::vector<std::byte>& result = GiveMemory(&op);
  std::copy_n(from, result.size(), result.begin());
}

std::shared_ptr<RankRun> GpuTensor::BeginOnRank(
    const RankPart& part, const std::vector<Operation*>& operations) {
  if (rank_gpu_ == nullptr) return nullptr;
  std::vector<SimulatedRankGpu::Part> parts;
  for (const Operation* op : operations) {
    parts.push_back(static_cast<GpuTensor&>(*op->staged).PartOf(part));
  }
  const auto run = rank_gpu_->Begin(part.communicator, std::move(parts));
  for (const Operation* op : operations) {
    static_cast<GpuTensor&>(*op->staged).run_ = run;
  }
  return run;
}

// As RankGpus::Describe(). A reducescatter's result is a part of the tensor.
SimulatedRankGpu::Part GpuTensor::PartOf(const RankPart& part) {
  const Operation& op = *record_->operation;
  SimulatedRankGpu::Part out{
      MakeOperation(op.signature, op.set->ranks, part.rows), memory_, offset_};
  GpuOperation& o = out.operation;
  if (!o.members.empty()) o.members[part.position].tensor = 0;
  if (Gathers(o.kind)) {
    result_at_ = GpuResultAt(op.signature.Bytes());
    out.result = offset_ + result_at_;
  } else if (o.kind == Kind::kReducescatter) {
    for (uint32_t i = 0; i < part.position; ++i) {
      result_at_ += o.counts[i] * SizeOf(o.dtype);
    }
  }
  return out;
}

// As Staging::AwaitEnd().
bool GpuTensor::Fetch(const Board& board, Status* error) {
  if (run_ == nullptr) return true;
  RankRun::State state = RankRun::State::kWaiting;
  const Status s = run_->Poll(&state);
  if (s.ok() && state == RankRun::State::kEnded) {
    CopyResult(result_at_);
    return true;
  }
  if (s.ok() || !board.aborted()) return false;
  *error = record_->operation->Explain(board.AbortStatus());
  return true;
}

}  // namespace maypole::simulation
