// BoardKeeper: small operations of several nodes, whose inputs ranks have
// copied to pool buffers (client/engine/eager.h).
#include "common/reduce/reduce.h"
#include "worker/executor/board/board_keeper.h"

namespace maypole::worker {
namespace {

using Parts = std::vector<std::vector<std::byte>>;

// The nodes' inputs of one operation, in memory that is aligned for all types.
Parts PartsOf(const FinishSmall& small, const std::string& own, size_t begin,
              size_t bytes) {
  Parts parts;
  for (size_t i = 0; i < small.inputs.size(); ++i) {
    const std::string& from = i == small.self ? own : small.inputs[i];
    const auto* data = reinterpret_cast<const std::byte*>(from.data());
    parts.emplace_back(data + begin, data + begin + bytes);
  }
  return parts;
}

std::vector<const std::byte*> PointersTo(const Parts& parts) {
  std::vector<const std::byte*> out;
  for (const auto& part : parts) out.push_back(part.data());
  return out;
}

}  // namespace

bool BoardKeeper::AllCopied(uint32_t slot, uint32_t generation) const {
  for (const uint32_t local : slots_[slot].set->locals) {
    if (board_->BufferOf(slot, local, generation) < 0) return false;
  }
  return true;
}

std::string BoardKeeper::ReducedCopies(
    const std::vector<SmallOperation>& operations) const {
  std::string all;
  std::vector<std::byte> sum;  // aligned for all types
  for (const SmallOperation& op : operations) {
    if (!IsAllotted(op.slot) || op.bytes() > board_->config().eager_bytes) {
      return "";
    }
    std::vector<const std::byte*> inputs;
    for (const uint32_t local : slots_[op.slot].set->locals) {
      const int buffer = board_->BufferOf(op.slot, local, op.generation);
      if (buffer < 0) return "";  // there was one when the slot was ready
      inputs.push_back(board_->pool(local, static_cast<uint32_t>(buffer)));
    }
    if (op.bytes() == 0) continue;
    sum.resize(op.bytes());
    Reduce(op.signature.dtype, op.signature.op, inputs, sum.data(),
           static_cast<size_t>(op.signature.Elements()), op.finish.on_node);
    all.append(reinterpret_cast<const char*>(sum.data()), sum.size());
  }
  return all;
}

void BoardKeeper::Finish(const FinishSmall& small) {
  const std::string own = ReducedCopies(small.operations);
  size_t begin = 0;
  for (const SmallOperation& op : small.operations) {
    const size_t end = begin + op.bytes();
    // A rank has corrupted the board. The other nodes see that this node's
    // inputs have the wrong size.
    if (own.size() < end) return;
    const auto parts = PartsOf(small, own, begin, op.bytes());
    begin = end;
    if (!board_->ClaimReduction(op.slot, op.generation)) continue;  // aborted
    const uint32_t holder = slots_[op.slot].set->locals.front();
    const int buffer = board_->BufferOf(op.slot, holder, op.generation);
    if (buffer < 0) return;
    if (op.bytes() > 0) {
      const auto inputs = PointersTo(parts);
      Reduce(op.signature.dtype, op.signature.op, inputs,
             board_->pool(holder, static_cast<uint32_t>(buffer)),
             static_cast<size_t>(op.signature.Elements()),
             op.finish.over_nodes);
    }
    const EagerResult result{holder, static_cast<uint32_t>(buffer)};
    if (board_->CommitEager(op.slot, op.generation, result)) {
      Issue(op.slot, op.generation);
    }
  }
}

}  // namespace maypole::worker
