// Peer: another process that uses the same GPU, and executes requests.
//
// Purpose: the program starts itself again, as a peer; the two communicate over
// a unix socket, which also passes descriptors.
//
//   int main(int argc, char** argv) {
//     if (IsPeer(argc, argv)) return RunPeer();
//     ...
//   Peer peer;
//   const Answer answer = peer.Ask({.what = Request::kCreate, .bytes = bytes});
//   ShareableMemory::Import(device, answer.fd, bytes);
//   peer.Kill();                             // SIGKILL, and waits for its end
//
// Thread contract: one thread.
//
// Invariants: a peer has at most one memory at a time. It ends with its Peer,
// or with the process that owns the Peer.
#ifndef MAYPOLE_TESTS_GPU_TESTING_PEER_H_
#define MAYPOLE_TESTS_GPU_TESTING_PEER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/gpu/cuda_types.h"
#include "common/system/fd.h"
#include "tests/gpu/testing/device.h"

namespace maypole::cuda {

struct Request {
  enum What : uint32_t {
    kOpenDevice,  // as all others do first, except those without a GPU
    kCreate,      // makes `bytes` of ShareableMemory; answers its descriptor
    kImport,      // maps what the descriptor names
    kAllocate,    // makes memory by cuMemAlloc(); answers its IPC handle
    kOpen,        // opens the IPC handle
    kDrop,        // frees, unmaps or closes it
    kFill,        // writes `value` to all bytes of it, or to the first `bytes`
    kCount,       // answers how many of its (first) bytes are `value`
    // The same of the pages that the descriptor names, without a GPU.
    kCountPages,
    // Waits for the values 1 to `value` in word 0 of the pages: writes when it
    // has seen them (NowNanoseconds()) to the words from kFirstTime on, and the
    // value to word kSeen.
    kSeeWords,
    // Reduces for `value` milliseconds, by kernels of one block; answers how
    // many have ended.
    kReduceForAWhile,
  };
  static constexpr size_t kSeen = 8, kFirstTime = 16;  // words

  What what;
  uint32_t value = 0;
  uint64_t bytes = 0;
  CUipcMemHandle handle = {};
};

struct Answer {
  CUresult result = CUDA_SUCCESS;
  uint64_t number = 0;
  CUipcMemHandle handle = {};
  char error[256] = {};  // empty if there is none
  Fd fd = {};
};

class Peer {
 public:
  Peer();
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Start() and Finish(). fd: -1 for none.
  Answer Ask(const Request& request, int fd = -1);
  // As Ask(), but returns an error of CUDA in place of throwing a CudaError.
  Answer Try(const Request& request, int fd = -1);
  void Start(const Request& request, int fd = -1);
  Answer Finish();

  void Kill();

 private:
  pid_t pid_ = -1;
  Fd socket_;
};

// False if the device's compute mode allows one process only.
bool OthersCanUse(const Device& device);

bool IsPeer(int argc, char** argv);
int RunPeer();

// CLOCK_MONOTONIC, which is the same in all processes.
uint64_t NowNanoseconds();

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_TESTING_PEER_H_
