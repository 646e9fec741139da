// The executor's side of shared GPU memory, for tests: a process of its own,
// because a process cannot open its own IPC handles.
//
//   gpu_memory_executor BEHAVIOUR     descriptor 3 is the rank's connection
//
// BEHAVIOUR: good, wrong-proof, refuse (every request), exhausted (no memory),
// silent (no replies). A GpuMemoryExecutor::Touch adds 1 to each byte of a
// place.
#include <sys/types.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "client/testing/gpu_memory_executor.h"
#include "common/board/gpu_place.h"
#include "common/gpu/gpu.h"
#include "common/wire/unix_socket.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::fake::cuda;
using cuda::fake::more;
using session::GpuMemoryReply;
using session::GpuMemoryRequest;

constexpr int kConnection = 3;
constexpr uint32_t kGpuNumber = 5;  // this executor's number of GPU 0

std::map<uint32_t, CUdeviceptr> memories;

cuda::CUresult Import(const GpuMemoryRequest& request, int fd,
                      CUdeviceptr* address) {
  cuda::CUmemGenericAllocationHandle handle = 0;
  cuda::CUresult r = cuda().cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (r == 0) {
    r = cuda().cuMemAddressReserve(address, request.bytes, 0, 0, 0);
  }
  if (r == 0) r = cuda().cuMemMap(*address, request.bytes, 0, handle, 0);
  const cuda::CUmemAccessDesc access = {
      {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0},
      cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (r == 0) r = cuda().cuMemSetAccess(*address, request.bytes, &access, 1);
  return r;
}

cuda::CUresult Allocate(const GpuMemoryRequest& request, GpuMemoryReply* reply,
                        CUdeviceptr* address) {
  cuda::CUresult r = cuda().cuMemAlloc(address, request.bytes);
  cuda::CUipcMemHandle handle;
  if (r == 0) r = cuda().cuIpcGetMemHandle(&handle, *address);
  if (r == 0) std::memcpy(reply->handle, &handle, sizeof(handle));
  return r;
}

void Serve(const std::string& behaviour, const GpuMemoryRequest& request,
           const std::vector<Fd>& fds) {
  auto reply = session::Make<GpuMemoryReply>();
  reply.number = request.number;
  reply.gpu = kGpuNumber;
  const bool by_descriptor =
      request.sharing ==
      static_cast<uint32_t>(session::GpuSharing::kDescriptor);
  Status s;
  CUdeviceptr address = 0;
  if (fds.size() != (by_descriptor ? 1u : 0u)) {
    s = Status(Code::kInvalidArgument, "wrong number of descriptors");
  } else if (behaviour == "refuse") {
    s = Status(Code::kUnavailable, "this executor refuses");
  } else if (behaviour == "exhausted") {
    s = Status(Code::kResourceExhausted, "out of memory");
  } else {
    s = CudaStatus(cuda(),
                   by_descriptor ? Import(request, fds[0].get(), &address)
                                 : Allocate(request, &reply, &address),
                   by_descriptor ? "import" : "allocate");
  }
  if (s.ok()) {
    const uint64_t proof = request.proof + (behaviour == "wrong-proof" ? 1 : 0);
    more().cuMemcpyHtoD_v2(address, &proof, sizeof(proof));
    memories[request.number] = address;
  }
  reply.code = static_cast<uint32_t>(s.code());
  session::SetText(reply.text, s.message());
  if (behaviour != "silent") {
    (void)SendMessage(kConnection, &reply, sizeof(reply));
  }
}

void Reduce(const GpuMemoryExecutor::Touch& touch) {
  const GpuPlace place = UnpackGpuPlace(touch.place);
  std::vector<unsigned char> bytes(touch.bytes);
  const CUdeviceptr address = memories.at(place.number) + place.offset;
  more().cuMemcpyDtoH_v2(bytes.data(), address, bytes.size());
  for (unsigned char& byte : bytes) ++byte;
  more().cuMemcpyHtoD_v2(address, bytes.data(), bytes.size());
  more().cuCtxSynchronize();
  (void)SendMessage(kConnection, &touch, sizeof(touch));
}

int Run(const std::string& behaviour) {
  cuda::CUcontext context = nullptr;
  if (cuda().cuInit(0) != CUDA_SUCCESS ||
      cuda().cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuda().cuCtxPushCurrent(context) != CUDA_SUCCESS) {
    return 1;
  }
  for (;;) {
    Received r;
    const Status s =
        ReceiveMessage(kConnection, session::kMaxMessageBytes, -1, &r);
    if (!s.ok() || r.data.empty()) return 0;
    GpuMemoryRequest request;
    if (r.data.size() == sizeof(GpuMemoryExecutor::Touch)) {
      GpuMemoryExecutor::Touch touch;
      std::memcpy(&touch, r.data.data(), sizeof(touch));
      Reduce(touch);
    } else if (session::Parse(r.data.data(), r.data.size(), &request).ok()) {
      Serve(behaviour, request, r.fds);
    }
  }
}

}  // namespace
}  // namespace maypole

int main(int argc, char** argv) {
  return argc == 2 ? maypole::Run(argv[1]) : 2;
}
