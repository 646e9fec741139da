#include "tests/simulation/parts/gpu_execution.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/reduce/reduce.h"

namespace maypole::simulation {
namespace {

using Bytes = std::vector<std::byte>;

class Execution {
 public:
  Execution(Stage* stage, const std::vector<NodePart>& parts)
      : stage_(*stage),
        parts_(parts),
        first_(*parts.front().operation),
        size_(SizeOf(first_.dtype)) {}

  void Run() {
    if (!FindMembers()) return;
    switch (first_.kind) {
      case Kind::kAllreduce:
      case Kind::kReducescatter:
        return Reduce();
      case Kind::kBroadcast:
        return Broadcast();
      case Kind::kAllgather:
      case Kind::kAlltoall:
        return Gather();
      default:
        stage_.Found("GPUs execute a ", Name(first_.kind));
    }
  }

 private:
  // Without members (allreduce), in the order of the parts.
  bool FindMembers() {
    members_.resize(first_.members.size());
    for (const NodePart& part : parts_) {
      const GpuOperation& o = *part.operation;
      if (o.kind != first_.kind || o.dtype != first_.dtype ||
          o.elements != first_.elements || o.counts != first_.counts ||
          o.root != first_.root || o.members.size() != first_.members.size()) {
        stage_.Found("two nodes execute different operations together");
        return false;
      }
      if (o.kind == Kind::kAllreduce) {
        members_.insert(members_.end(), part.tensors.begin(),
                        part.tensors.end());
        continue;
      }
      for (size_t i = 0; i < members_.size(); ++i) {
        if (o.members[i].tensor == kNoTensor) continue;
        members_[i] = part.tensors.at(o.members[i].tensor);
      }
    }
    for (const TensorMemory& t : members_) {
      if (t.memory != nullptr) continue;
      stage_.Found("a member of an operation on GPUs has no tensor");
      return false;
    }
    return true;
  }

  // `elements` of the memory, from `offset` on.
  std::byte* At(const TensorMemory& t, uint64_t offset, uint64_t elements) {
    if (offset + elements * size_ > t.memory->size()) {
      stage_.Found("a GPU leaves the memory of a tensor");
      scratch_.emplace_back(elements * size_);
      return scratch_.back().data();
    }
    return t.memory->data() + offset;
  }

  void Reduce() {
    std::vector<const std::byte*> inputs;
    for (const TensorMemory& t : members_) {
      inputs.push_back(At(t, t.offset, first_.elements));
    }
    if (stage_.Spoils(Sabotage::kWrongSum, 4)) inputs.resize(1);
    Bytes sum(first_.elements * size_);
    std::byte* const outputs[] = {sum.data()};
    ReduceTo(first_.dtype, first_.op, inputs, outputs, first_.elements,
             {.divisor = first_.divisor, .scale = first_.postscale});
    uint64_t begin = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      const bool all = first_.kind == Kind::kAllreduce;
      const uint64_t bytes = all ? sum.size() : first_.counts[i] * size_;
      std::byte* const tensor =
          At(members_[i], members_[i].offset, first_.elements);
      // The rest is not defined.
      std::memset(tensor, 0xee, sum.size());
      std::memcpy(tensor + begin, sum.data() + begin, bytes);
      if (!all) begin += bytes;
    }
  }

  void Broadcast() {
    const TensorMemory& root = members_.at(first_.root);
    const std::byte* const from = At(root, root.offset, first_.elements);
    for (const TensorMemory& t : members_) {
      std::memmove(At(t, t.offset, first_.elements), from,
                   first_.elements * size_);
    }
  }

  // What member `from` has for member `to`: elements and the first of them.
  std::pair<uint64_t, uint64_t> Sent(size_t from, size_t to) const {
    if (first_.kind == Kind::kAllgather) return {first_.counts[from], 0};
    const auto row = first_.counts.begin() +
                     static_cast<std::ptrdiff_t>(from * members_.size());
    return {row[static_cast<std::ptrdiff_t>(to)],
            std::accumulate(row, row + static_cast<std::ptrdiff_t>(to),
                            uint64_t{0})};
  }

  void Gather() {
    for (size_t to = 0; to < members_.size(); ++to) {
      uint64_t at = members_[to].result;
      for (size_t from = 0; from < members_.size(); ++from) {
        const auto [elements, first] = Sent(from, to);
        const TensorMemory& t = members_[from];
        std::memcpy(At(members_[to], at, elements),
                    At(t, t.offset + first * size_, elements),
                    elements * size_);
        at += elements * size_;
      }
    }
  }

  Stage& stage_;
  const std::vector<NodePart>& parts_;
  const GpuOperation& first_;
  const size_t size_;
  std::vector<TensorMemory> members_;
  std::vector<Bytes> scratch_;
};

}  // namespace

void ExecuteOnGpus(Stage* stage, const std::vector<NodePart>& parts) {
  Execution(stage, parts).Run();
}

}  // namespace maypole::simulation
