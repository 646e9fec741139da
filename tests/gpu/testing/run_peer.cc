// What the process of a Peer does.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "common/wire/unix_socket.h"
#include "tests/gpu/testing/device.h"
#include "tests/gpu/testing/memory.h"
#include "tests/gpu/testing/peer.h"
#include "tests/gpu/testing/peer_wire.h"

namespace maypole::cuda {
namespace {

constexpr size_t kReducedBytes = 8 << 20;  // of each array

uint64_t CountBytes(std::span<const std::byte> data, uint32_t value) {
  return static_cast<uint64_t>(
      std::count(data.begin(), data.end(), static_cast<std::byte>(value)));
}

class Role {
 public:
  Answer Do(const Request& request, Fd fd) {
    if (request.what == Request::kCountPages) return CountPages(request, fd);
    if (request.what == Request::kSeeWords) return SeeWords(request, fd);
    if (!device_) Open();
    switch (request.what) {
      case Request::kOpenDevice:
        return {};
      case Request::kCreate:
        shareable_.emplace(ShareableMemory::Create(*device_, request.bytes));
        Use(shareable_->address(), request.bytes);
        return {.fd = shareable_->Export()};
      case Request::kImport:
        shareable_.emplace(
            ShareableMemory::Import(*device_, fd, request.bytes));
        Use(shareable_->address(), request.bytes);
        return {};
      case Request::kAllocate:
        return Allocate(request.bytes);
      case Request::kOpen:
        return OpenHandle(request);
      case Request::kDrop:
        return Drop();
      case Request::kFill:
        device_->Fill(memory_, BytesOf(request),
                      static_cast<unsigned char>(request.value));
        return {};
      case Request::kCount:
        return {.number =
                    CountBytes(device_->Download(memory_, BytesOf(request)),
                               request.value)};
      case Request::kReduceForAWhile:
        return {.number = ReduceFor(request.value)};
      default:
        throw CudaError(CUDA_ERROR_INVALID_VALUE, "unknown request");
    }
  }

 private:
  void Open() {
    const Driver* driver = nullptr;
    if (const Status s = LoadDriver(&driver); !s.ok()) {
      throw CudaError(CUDA_ERROR_UNKNOWN, s.message());
    }
    device_.emplace(*driver);
  }

  void Use(CUdeviceptr memory, uint64_t bytes) {
    memory_ = memory;
    bytes_ = bytes;
  }

  uint64_t BytesOf(const Request& request) const {
    return request.bytes == 0 ? bytes_ : request.bytes;
  }

  Answer Allocate(uint64_t bytes) {
    Answer answer;
    Use(device_->Alloc(bytes), bytes);
    device_->Check(device_->cuda().cuIpcGetMemHandle(&answer.handle, memory_),
                   "cuIpcGetMemHandle");
    return answer;
  }

  Answer OpenHandle(const Request& request) {
    CUdeviceptr memory = 0;
    device_->Check(
        device_->cuda().cuIpcOpenMemHandle(&memory, request.handle,
                                           CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "cuIpcOpenMemHandle");
    Use(memory, request.bytes);
    opened_ = true;
    return {};
  }

  Answer Drop() {
    device_->Synchronize();
    if (shareable_) {
      shareable_.reset();
    } else if (opened_) {
      device_->Check(device_->cuda().cuIpcCloseMemHandle(memory_),
                     "cuIpcCloseMemHandle");
    } else {
      device_->Free(memory_);
    }
    opened_ = false;
    return {};
  }

  static Answer CountPages(const Request& request, Fd& fd) {
    const SharedPages pages(std::move(fd), request.bytes);
    return {.number = CountBytes({pages.data(), pages.bytes()}, request.value)};
  }

  static Answer SeeWords(const Request& request, Fd& fd) {
    const SharedPages pages(std::move(fd), request.bytes);
    for (uint64_t value = 1; value <= request.value; ++value) {
      AwaitWord(pages.word(0), value);
      pages.word(Request::kFirstTime + value - 1) = NowNanoseconds();
      StoreWord(pages.word(Request::kSeen), value);
    }
    return {};
  }

  uint64_t ReduceFor(uint64_t milliseconds) {
    const CUdeviceptr memory = device_->Alloc(kReducedBytes);
    const uint64_t array[] = {memory};
    const ReduceArguments arguments =
        MakeReduceArguments({.inputs = array,
                             .outputs = array,
                             .elements = kReducedBytes / sizeof(float)});
    const uint64_t end = NowNanoseconds() + milliseconds * 1'000'000;
    uint64_t kernels = 0;
    for (; kernels == 0 || NowNanoseconds() < end; ++kernels) {
      device_->Reduce(DType::kFloat32, Op::kSum, arguments, 1,
                      device_->stream());
      device_->Synchronize();
    }
    device_->Free(memory);
    return kernels;
  }

  std::optional<Device> device_;
  std::optional<ShareableMemory> shareable_;
  CUdeviceptr memory_ = 0;
  uint64_t bytes_ = 0;
  bool opened_ = false;
};

Answer Failed(CUresult result, const char* text) {
  Answer answer = {.result = result};
  std::snprintf(answer.error, sizeof(answer.error), "%s", text);
  return answer;
}

Answer DoCatching(Role& role, const Request& request, Fd fd) {
  try {
    return role.Do(request, std::move(fd));
  } catch (const CudaError& e) {
    return Failed(e.result(), e.what());
  } catch (const std::exception& e) {
    return Failed(CUDA_ERROR_UNKNOWN, e.what());
  }
}

Status SendAnswer(const Answer& answer) {
  AnswerOnWire wire = {};
  wire.result = answer.result;
  wire.number = answer.number;
  wire.handle = answer.handle;
  std::memcpy(wire.error, answer.error, sizeof(wire.error));
  const int fd = answer.fd.get();
  return SendMessage(kPeerSocket, &wire, sizeof(wire),
                     std::span(&fd, answer.fd.valid() ? 1 : 0));
}

}  // namespace

int RunPeer() {
  Role role;
  while (true) {
    Received received;
    Request request;
    if (!ReceiveMessage(kPeerSocket, sizeof(request), -1, &received).ok() ||
        received.data.size() != sizeof(request)) {
      return 0;
    }
    std::memcpy(&request, received.data.data(), sizeof(request));
    Fd fd;
    if (!received.fds.empty()) fd = std::move(received.fds[0]);
    const Answer answer = DoCatching(role, request, std::move(fd));
    if (!SendAnswer(answer).ok()) return 1;
  }
}

}  // namespace maypole::cuda
