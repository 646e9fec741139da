// StartDetached: a thread of the fake NCCL.
//
// Purpose: such threads may run until the process ends. They take no signals.
//
//   StartDetached([hub] { hub->Serve(); });
//
// Thread contract: any thread may call it.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_THREADS_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_THREADS_H_

#include <functional>
#include <thread>
#include <utility>

#include "common/system/thread.h"
#include "tests/gpu/fake_nccl/config.h"

namespace maypole::nccl::fake {

inline std::thread StartJoinable(std::function<void()> body) {
  std::thread thread;
  if (const Status s = StartThread(std::move(body), &thread); !s.ok()) {
    Illegal(s.message());
  }
  return thread;
}

inline void StartDetached(std::function<void()> body) {
  StartJoinable(std::move(body)).detach();
}

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_THREADS_H_
