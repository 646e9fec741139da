#include "common/gpu/kernels/testing/host_kernels.h"

#include <atomic>

#include "common/gpu/kernels/testing/cuda_shim.h"
// The shim must come first.
#include "common/gpu/kernels/copy.cu"
#include "common/gpu/kernels/reduce_floats.cu"
#include "common/gpu/kernels/reduce_halves.cu"
#include "common/gpu/kernels/reduce_integers.cu"

namespace maypole::cuda {
namespace {

std::atomic<HostAddress> host_address;

// VisitArrays(arguments, visit) calls visit(&address, bytes) for each array
// that a kernel with these arguments uses.
template <typename E, typename Visit>
void VisitArrays(ReduceArguments& a, const Visit& visit) {
  const uint64_t bytes = a.elements * sizeof(typename E::Stored);
  for (unsigned k = 0; k < a.input_count; ++k) visit(&a.inputs[k], bytes);
  for (unsigned k = 0; k < a.output_count; ++k) visit(&a.outputs[k], bytes);
}

template <typename Visit>
void VisitArrays(CopyArguments& a, const Visit& visit) {
  for (uint64_t p = 0; p < a.count; ++p) {
    visit(&a.pieces[p].from, a.pieces[p].bytes);
    visit(&a.pieces[p].to, a.pieces[p].bytes);
  }
}

void Translate(uint64_t* address, uint64_t bytes) {
  const HostAddress host = host_address;
  if (host == nullptr || bytes == 0) return;
  *address = reinterpret_cast<uint64_t>(host(*address, bytes));
}

// A visitor that appends to the list.
auto AppendTo(std::vector<DeviceArray>& list) {
  return [&list](const uint64_t* address, uint64_t bytes) {
    if (bytes != 0) list.push_back({*address, bytes});
  };
}

template <auto kKernel, typename E>
void RunReduce(unsigned grid_x, unsigned block_x, void** arguments) {
  auto a = *static_cast<const ReduceArguments*>(arguments[0]);
  VisitArrays<E>(a, Translate);
  shim::RunGrid(grid_x, block_x, kKernel, a);
}

template <typename E>
std::vector<DeviceArray> ReduceArrays(void** arguments) {
  std::vector<DeviceArray> list;
  VisitArrays<E>(*static_cast<ReduceArguments*>(arguments[0]), AppendTo(list));
  return list;
}

void RunCopy(unsigned grid_x, unsigned block_x, void** arguments) {
  auto a = *static_cast<const CopyArguments*>(arguments[0]);
  VisitArrays(a, Translate);
  shim::RunGrid(grid_x, block_x, maypole_copy_pieces, a);
}

std::vector<DeviceArray> CopyArrays(void** arguments) {
  std::vector<DeviceArray> list;
  VisitArrays(*static_cast<CopyArguments*>(arguments[0]), AppendTo(list));
  return list;
}

void RunWriteWord(unsigned grid_x, unsigned block_x, void** arguments) {
  uint64_t address = *static_cast<const uint64_t*>(arguments[0]);
  const uint64_t value = *static_cast<const uint64_t*>(arguments[1]);
  Translate(&address, sizeof(value));
  shim::RunGrid(grid_x, block_x, maypole_write_word, address, value);
}

std::vector<DeviceArray> WrittenWord(void** arguments) {
  return {{*static_cast<const uint64_t*>(arguments[0]), sizeof(uint64_t)}};
}

#define MAYPOLE_HOST_REDUCE(group, name, E) \
  {"maypole_reduce_" #name,                 \
   group,                                   \
   1,                                       \
   {sizeof(ReduceArguments)},               \
   &RunReduce<maypole_reduce_##name, E>,    \
   &ReduceArrays<E>},
#define MAYPOLE_HOST_FLOATS(name, E, O) \
  MAYPOLE_HOST_REDUCE(KernelGroup::kReduceFloats, name, E)
#define MAYPOLE_HOST_HALVES(name, E, O) \
  MAYPOLE_HOST_REDUCE(KernelGroup::kReduceHalves, name, E)
#define MAYPOLE_HOST_INTEGERS(name, E, O) \
  MAYPOLE_HOST_REDUCE(KernelGroup::kReduceIntegers, name, E)

constexpr HostKernel kHostKernels[] = {
    {kCopyKernel,
     KernelGroup::kCopy,
     1,
     {sizeof(CopyArguments)},
     &RunCopy,
     &CopyArrays},
    {kWriteWordKernel,
     KernelGroup::kCopy,
     2,
     {8, 8},
     &RunWriteWord,
     &WrittenWord},
    MAYPOLE_REDUCE_FLOATS(MAYPOLE_HOST_FLOATS)
        MAYPOLE_REDUCE_HALVES(MAYPOLE_HOST_HALVES)
            MAYPOLE_REDUCE_INTEGERS(MAYPOLE_HOST_INTEGERS)};

}  // namespace

void SetHostAddress(HostAddress host) { host_address = host; }

std::span<const HostKernel> HostKernels() { return kHostKernels; }

const HostKernel* FindHostKernel(std::string_view name) {
  for (const HostKernel& kernel : kHostKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace maypole::cuda
