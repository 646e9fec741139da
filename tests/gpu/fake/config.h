// FakeConfig: what $MAYPOLE_FAKE_CUDA says the fake GPUs are like.
//
// Purpose: a test chooses what the driver offers and when it fails, without a
// change of the product's code. The value is "KEY=VALUE,KEY=VALUE".
//
//   devices=N          GPUs of the machine (default 1)
//   memory=BYTES       of each; suffixes K, M, G (default 1G)
//   seed=N             0 (default): operations run as soon as they can;
//                      otherwise each is late by a pseudo-random time
//   late=MICROSECONDS  the most that a seed delays an operation (default 300)
//   vmm=0 | lies       no virtual memory management | it is announced, but no
//                      descriptor can be imported
//   ipc=0              cuIpcGetMemHandle is not supported
//   writes=0           streams cannot write values
//   mps=1              all processes use the GPUs through MPS
//   driver=VERSION     such as 12040, at least 12000 (default 12080)
//   init=N             cuInit returns error N
//   exclusive=1        one process at a time may have a context (needs state)
//   state=DIR          what processes share: memory use and exclusive owners.
//                      Without it each process is alone
//   fail=NAME:K[:N]    the K-th call of NAME (without _v2) in this process
//                      returns error N (default 2, out of memory); may be given
//                      several times
//
//   MAYPOLE_FAKE_CUDA=devices=2,memory=64M,fail=cuMemAlloc:3
//
// Thread contract: a value.
//
// Invariants: an unknown key or a value that is not as above ends the process.
#ifndef MAYPOLE_TESTS_GPU_FAKE_CONFIG_H_
#define MAYPOLE_TESTS_GPU_FAKE_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/gpu/cuda_types.h"

namespace maypole::cuda::fake {

struct FakeConfig {
  enum class Vmm { kWorks, kNone, kLies };
  struct Failure {
    std::string call;
    uint64_t which;  // 1: the first call
    CUresult error;
  };

  int devices = 1;
  uint64_t memory = 1 << 30;
  uint64_t seed = 0;
  unsigned late_microseconds = 300;
  Vmm vmm = Vmm::kWorks;
  bool ipc = true;
  bool writes = true;
  bool mps = false;
  int driver = 12080;
  CUresult init = CUDA_SUCCESS;
  bool exclusive = false;
  std::string state;
  std::vector<Failure> failures;
};

// Null is the default configuration.
FakeConfig ReadConfig(const char* text);

// Prints "fake libcuda: LINE" and aborts: the process did what CUDA leaves
// undefined, or its configuration is wrong.
[[noreturn]] void Illegal(std::string_view line);

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_CONFIG_H_
