// Config: what $MAYPOLE_FAKE_NCCL says the fake NCCL is like.
//
// Purpose: a test chooses how late NCCL is and when it fails, without a change
// of the product's code. The value is "KEY=VALUE,KEY=VALUE".
//
//   version=CODE        of ncclGetVersion (default 22809)
//   seed=N              what is late by how much; 0: nothing is (default 1)
//   late=MICROSECONDS   the most that a communicator's thread waits before it
//                       puts work on a stream (default 300)
//   init=hang | error   initialisation never ends, but by ncclCommAbort | fails
//                       with ncclSystemError, later if it is not blocking
//   abort=hang | device | collective
//                       ncclCommAbort never returns | waits for all streams of
//                       the process, as NCCL does if it frees device memory |
//                       waits until all ranks have aborted or are dead, as
//                       NCCL's documents allow
//   peer_death=error    once a rank is gone, ncclCommGetAsyncError says
//                       ncclRemoteError, and calls that wait for it on the host
//                       fail; without it the others wait until aborted
//   fail=NAME:K[:N]     the K-th call of NAME in this process returns error N
//                       (default 3, internal error); may be given several times
//   fail_later=NAME:K[:N]   the same, but of a communicator that does not block
//                       the call returns ncclInProgress, and
//                       ncclCommGetAsyncError then says N
//
//   MAYPOLE_FAKE_NCCL=seed=7,late=2000,fail=ncclAllReduce:3
//
// Thread contract: a value.
//
// Invariants: an unknown key or a value that is not as above ends the process.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_CONFIG_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

struct Config {
  enum class Init { kWorks, kHang, kError };
  enum class Abort { kWorks, kHang, kDevice, kCollective };
  struct Failure {
    std::string call;
    uint64_t which;  // 1: the first call
    ncclResult_t error;
    bool later;
  };

  int version = 22809;
  uint64_t seed = 1;
  unsigned late_microseconds = 300;
  Init init = Init::kWorks;
  Abort abort = Abort::kWorks;
  bool peer_death_is_error = false;
  std::vector<Failure> failures;
};

// Null is the default configuration.
Config ReadConfig(const char* text);

// Prints "fake libnccl: LINE" and aborts: the process did what NCCL leaves
// undefined, or its configuration is wrong.
[[noreturn]] void Illegal(std::string_view line);

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_CONFIG_H_
