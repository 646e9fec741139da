#include "tests/simulation/parts/gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
    if (stage_->random.OneIn(8)) {
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

void SimulatedGpus::Reduce(worker::GpuReduction reduction) {
  running_.push_back(std::move(reduction));
  turn_.Ask(stage_->SoonDelay(), life_);
}

void SimulatedGpus::EndNext() {
  const worker::GpuReduction reduction = std::move(running_.front());
  running_.pop_front();
  const bool open = std::all_of(
      reduction.tensors.begin(), reduction.tensors.end(),
      [&](const auto& tensor) { return memories_.contains(tensor.memory); });
  if (open) Execute(reduction);
  callbacks_.on_reduced(
      reduction, open ? absl::OkStatus() : absl::UnavailableError("closed"));
  if (!running_.empty()) turn_.Ask(stage_->SoonDelay(), life_);
}

void SimulatedGpus::Execute(const worker::GpuReduction& r) {
  ++stage_->counts.gpu_reductions;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const worker::GpuRange& tensor : r.tensors) {
    outputs.push_back(memories_.at(tensor.memory)->data() + tensor.offset);
    inputs.push_back(outputs.back());
  }
  if (stage_->Spoils(Sabotage::kWrongSum, 4)) inputs.resize(1);
  ReduceTo(r.dtype, r.op, inputs, outputs, r.elements,
           {.divisor = r.divisor, .scale = r.postscale});
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
