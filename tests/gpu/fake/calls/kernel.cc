// The driver's functions for modules and kernels.
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/fake/calls/enqueue.h"
#include "tests/gpu/fake/calls/entry_points.h"
#include "tests/gpu/fake/fake_kernels.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

constexpr uint64_t kMostThreads = 1024;  // of a block
constexpr uint64_t kMostSharedBytes = 48
                                      << 10;  // unless a kernel asks for more

bool BeginsWith(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

// The text after white space and comments.
const char* SkipComments(const char* text) {
  while (true) {
    text += std::strspn(text, " \t\r\n");
    if (!BeginsWith(text, "//")) return text;
    text += std::strcspn(text, "\n");
  }
}

bool IsImage(const char* image) {
  return BeginsWith(image,
                    "\x7f"
                    "ELF") ||                          // a cubin
         BeginsWith(image, "\x50\xed\x55\xba") ||      // a fatbin
         BeginsWith(SkipComments(image), ".version");  // PTX
}

// A launch's own copies of its arguments.
struct Arguments {
  Arguments(const FakeKernel& kernel, void** from) {
    for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
      const auto* first = static_cast<const std::byte*>(from[i]);
      values.emplace_back(first, first + kernel.argument_bytes[i]);
      pointers.push_back(values.back().data());
    }
  }

  std::vector<std::vector<std::byte>> values;
  std::vector<void*> pointers;
};

// The regions that the addresses among the arguments are in.
std::vector<Range> UsedRegions(FakeMemory& memory, const Arguments& arguments) {
  std::vector<Range> uses;
  for (const auto& value : arguments.values) {
    CUdeviceptr address = 0;
    if (value.size() != sizeof(address)) continue;
    std::memcpy(&address, value.data(), sizeof(address));
    const auto it = memory.Containing(address);
    if (it != memory.regions().end()) {
      uses.push_back({it->first, it->second.bytes});
    }
  }
  return uses;
}

std::vector<Range> Uses(FakeMemory& memory, const FakeKernel& kernel,
                        Arguments& arguments) {
  if (kernel.arrays == nullptr) return UsedRegions(memory, arguments);
  std::vector<Range> uses;
  for (const DeviceArray& a : kernel.arrays(arguments.pointers.data())) {
    uses.push_back({a.address, a.bytes});
  }
  return uses;
}

bool IsLaunchable(std::initializer_list<unsigned> grid,
                  std::initializer_list<unsigned> block,
                  unsigned shared_bytes) {
  uint64_t threads = 1;
  for (const unsigned size : block) threads *= std::min(size, 1u << 20);
  for (const unsigned size : grid) {
    if (size == 0) return false;
  }
  return threads > 0 && threads <= kMostThreads &&
         shared_bytes <= kMostSharedBytes;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return InContext("cuModuleLoadData", InCapture::kUnsafe, [&](Call& call) {
    if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsImage(static_cast<const char*>(image))) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
    *module = call.process.NewHandle<CUmodule>();
    call.process.modules.insert(*module);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                             const char* name) {
  return InContext("cuModuleGetFunction", InCapture::kAllowed, [&](Call& call) {
    if (!call.process.modules.contains(module)) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const FakeKernel* const kernel = FindKernel(name);
    if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(const_cast<FakeKernel*>(kernel));
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes,
                        CUstream handle, void** arguments, void** extra) {
  return InStream(
      "cuLaunchKernel", handle,
      [&](Call& call, std::shared_ptr<Stream>& stream) {
        if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (extra != nullptr ||
            !IsLaunchable({grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                          shared_bytes)) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        const auto& kernel = *reinterpret_cast<const FakeKernel*>(function);
        auto own = std::make_shared<Arguments>(kernel, arguments);
        auto uses = Uses(call.process.memory(), kernel, *own);
        return Enqueue(call, *stream,
                       {.work =
                            [=, run = kernel.run] {
                              run(grid_x, block_x, own->pointers.data());
                            },
                        .uses = std::move(uses)});
      });
}

}  // extern "C"

const std::vector<EntryPoint>& KernelEntries() {
  static const auto& entries = *new std::vector<EntryPoint>{
      Entry("cuModuleLoadData", 2000, &Driver::cuModuleLoadData,
            cuModuleLoadData),
      Entry("cuModuleGetFunction", 2000, &Driver::cuModuleGetFunction,
            cuModuleGetFunction),
      Entry("cuLaunchKernel", 4000, &Driver::cuLaunchKernel, cuLaunchKernel),
  };
  return entries;
}

}  // namespace maypole::cuda::fake
