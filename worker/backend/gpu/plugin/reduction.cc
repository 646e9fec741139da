#include "worker/backend/gpu/plugin/reduction.h"

#include <string>
#include <vector>

#include "worker/backend/gpu/plugin/ranges.h"

namespace maypole::gpu::plugin {
namespace {

void CheckCount(uint32_t count, const char* what) {
  if (count >= 1 && count <= kMaxBuffers) return;
  throw InvalidArgument("the reduction has " + std::to_string(count) + " " +
                        what + "; it must have 1 to " +
                        std::to_string(kMaxBuffers));
}

void CheckOp(uint8_t op) {
  const Op known = static_cast<Op>(op);
  if (known == Op::kSum || known == Op::kMin || known == Op::kMax) return;
  throw InvalidArgument("operation " + std::to_string(op) +
                        " is not supported; use sum, min or max");
}

std::vector<Range> RangesOf(const uint64_t* addresses, uint32_t count,
                            uint64_t elements, uint64_t element) {
  std::vector<Range> ranges;
  for (uint32_t i = 0; i < count; ++i) {
    ranges.push_back(RangeOf(addresses[i], elements, element));
  }
  return ranges;
}

// An output may be identical to an input; other overlaps are not allowed.
void CheckOverlaps(const std::vector<Range>& inputs,
                   const std::vector<Range>& outputs) {
  for (size_t j = 0; j < outputs.size(); ++j) {
    for (const Range& input : inputs) {
      if (input.begin != outputs[j].begin) CheckDisjoint(input, outputs[j]);
    }
    for (size_t other = 0; other < j; ++other) {
      CheckDisjoint(outputs[other], outputs[j]);
    }
  }
}

}  // namespace

uint64_t ElementBytes(uint8_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    default:
      throw InvalidArgument("element type " + std::to_string(dtype) +
                            " is not supported; use float16, bfloat16, "
                            "float32 or float64");
  }
}

ReduceTask TaskOf(const MaypoleGpuReduction& reduction) {
  CheckCount(reduction.input_count, "inputs");
  CheckCount(reduction.output_count, "outputs");
  CheckOp(reduction.op);
  const uint64_t element = ElementBytes(reduction.dtype);
  CheckOverlaps(RangesOf(reduction.inputs, reduction.input_count,
                         reduction.elements, element),
                RangesOf(reduction.outputs, reduction.output_count,
                         reduction.elements, element));
  ReduceTask task = {};
  uint64_t low_bits = 0;
  for (uint32_t i = 0; i < reduction.input_count; ++i) {
    task.inputs[i] = reinterpret_cast<const std::byte*>(reduction.inputs[i]);
    low_bits |= reduction.inputs[i];
  }
  for (uint32_t i = 0; i < reduction.output_count; ++i) {
    task.outputs[i] = reinterpret_cast<std::byte*>(reduction.outputs[i]);
    low_bits |= reduction.outputs[i];
  }
  task.input_count = reduction.input_count;
  task.output_count = reduction.output_count;
  task.elements = reduction.elements;
  task.scale = reduction.scale;
  task.vectors = low_bits % kVectorBytes == 0;
  return task;
}

}  // namespace maypole::gpu::plugin
