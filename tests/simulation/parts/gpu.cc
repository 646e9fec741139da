#include "tests/simulation/parts/gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/reduce/reduce.h"

namespace maypole::simulation {

// --- The executor's side -----------------------------------------------------

SimulatedGpus::SimulatedGpus(Stage* stage, Callbacks callbacks)
    : stage_(stage),
      callbacks_(std::move(callbacks)),
      turn_(&stage->scheduler, [this] { EndNext(); }) {}

void SimulatedGpus::Open(worker::GpuMemoryId id,
                         const session::GpuMemoryRequest& request, Fd) {
  const GpuMemory memory =
      std::move(stage_->gpu_memories.extract(request.proof).mapped());
  stage_->scheduler.After(stage_->MessageDelay(), life_, [this, id, memory] {
    if (stage_->random.OneIn(stage_->off_gpu)) {
      return callbacks_.on_opened(id, absl::UnavailableError("refused"));
    }
    memories_[id] = memory;
    callbacks_.on_opened(
        id, worker::OpenedGpuMemory{.gpu = stage_->random.OneIn(8) ? 1u : 0u});
  });
}

void SimulatedGpus::Close(uint32_t local) {
  std::erase_if(memories_,
                [&](const auto& m) { return m.first.local == local; });
}

void SimulatedGpus::Run(worker::GpuRun run) {
  if (aborted_) return callbacks_.on_ended(run, absl::AbortedError("aborted"));
  if (run.communicator != 0) {
    together_.push_back(std::move(run));
    if (together_.size() == 1) BeginTogether();
    return;
  }
  running_.push_back(std::move(run));
  turn_.Ask(stage_->SoonDelay(), life_);
}

void SimulatedGpus::EndNext() {
  const worker::GpuRun run = std::move(running_.front());
  running_.pop_front();
  const bool open = AreOpen(run);
  if (open) {
    Tensors tensors;
    AddTensors(run.operations.front(), &tensors);
    Execute(stage_, run.operations.front(), std::move(tensors));
  }
  callbacks_.on_ended(
      run, open ? absl::OkStatus() : absl::UnavailableError("closed"));
  if (!running_.empty()) turn_.Ask(stage_->SoonDelay(), life_);
}

bool SimulatedGpus::AreOpen(const worker::GpuRun& run) const {
  for (const worker::GpuOperation& operation : run.operations) {
    for (const worker::GpuTensor& tensor : operation.tensors) {
      if (!memories_.contains(tensor.memory)) return false;
    }
  }
  return true;
}

void SimulatedGpus::AddTensors(const worker::GpuOperation& operation,
                               Tensors* out) const {
  for (const worker::GpuTensor& tensor : operation.tensors) {
    out->outputs.push_back(memories_.at(tensor.memory)->data() + tensor.offset);
    out->inputs.push_back(out->outputs.back());
  }
}

void SimulatedGpus::Execute(Stage* stage, const worker::GpuOperation& r,
                            Tensors tensors) {
  ++stage->counts.gpu_reductions;
  if (stage->Spoils(Sabotage::kWrongSum, 4)) tensors.inputs.resize(1);
  ReduceTo(r.dtype, r.op, tensors.inputs, tensors.outputs, r.elements,
           {.divisor = r.divisor, .scale = r.postscale});
}

// --- Communicators -----------------------------------------------------------

SimulatedGpus::~SimulatedGpus() { Leave(); }

void SimulatedGpus::MakeCommunicatorId(uint32_t number) {
  const std::string id =
      absl::StrCat("communicator ", stage_->communicators.size());
  stage_->communicators[id] = std::make_shared<SimulatedCommunicator>();
  stage_->scheduler.After(stage_->SoonDelay(), life_, [this, number, id] {
    callbacks_.on_communicator_id(number, id);
  });
}

void SimulatedGpus::Connect(worker::GpuCommunicator c, std::string id) {
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
  const worker::GpuRun& first = here.begin()->second->together_.front();
  for (const auto& [rank, gpus] : here) {
    open = open && gpus->AreOpen(gpus->together_.front());
    if (gpus->together_.front().operations.size() != first.operations.size()) {
      return stage->Found("two nodes run different operations together");
    }
  }
  for (size_t i = 0; open && i < first.operations.size(); ++i) {
    Tensors tensors;
    for (const auto& [rank, gpus] : here) {
      const worker::GpuOperation& r = gpus->together_.front().operations[i];
      if (r.elements != first.operations[i].elements ||
          r.dtype != first.operations[i].dtype) {
        return stage->Found("two nodes reduce different tensors together");
      }
      gpus->AddTensors(r, &tensors);
    }
    Execute(stage, first.operations[i], std::move(tensors));
  }
  for (const auto& [rank, gpus] : here) {
    stage->scheduler.After(stage->SoonDelay(), gpus->life_, [gpus, open] {
      gpus->EndTogether(open ? absl::OkStatus()
                             : absl::UnavailableError("closed"));
    });
  }
}

void SimulatedGpus::EndTogether(absl::Status status) {
  if (aborted_) return;
  const worker::GpuRun run = std::move(together_.front());
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
    for (const worker::GpuRun& run : std::exchange(together_, {})) {
      callbacks_.on_ended(run, absl::AbortedError("aborted"));
    }
  });
}

// --- A rank's side -----------------------------------------------------------

void GpuTensor::WriteInput() {
  std::memcpy(memory_->data() + offset_, record_->input.data(),
              record_->input.size());
}

// Sets the operation's memory on the host; returns that of the result.
std::vector<std::byte>& GpuTensor::GiveMemory(Operation* op) {
  op->input = record_->input.data();
  std::vector<std::byte>& result =
      record_->planned->in_place ? record_->input : record_->output;
  op->output = result.data();
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
  std::memcpy(record_->input.data(), memory_->data() + offset_,
              record_->input.size());
  GiveMemory(op);
  return Status();
}

void GpuTensor::ReducedOnGpu() {
  std::vector<std::byte>& result = GiveMemory(record_->operation.get());
  std::memcpy(result.data(), memory_->data() + offset_, result.size());
}

}  // namespace maypole::simulation
