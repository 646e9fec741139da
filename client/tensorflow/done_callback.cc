#include "client/tensorflow/done_callback.h"

#include <cstring>

namespace maypole::tensorflow {
namespace {

// std::_Manager_operation::__destroy_functor
constexpr int kDestroy = 3;

// A parameter of our caller lies a few frames above us; the heap or another
// stack is much farther away.
constexpr intptr_t kNearby = 65536;

bool IsOnThisStack(const void* address) {
  char here;
  const intptr_t above =
      reinterpret_cast<intptr_t>(address) - reinterpret_cast<intptr_t>(&here);
  return above > 0 && above < kNearby;
}

}  // namespace

DoneCallback::DoneCallback(TF_AsyncOpKernelDoneCallback* done) {
  if (!IsOnThisStack(done)) {
    in_place_ = done;
    return;
  }
  void* source = done;
  std::memcpy(&moved_, source, sizeof moved_);
  static_cast<StdFunction*>(source)->manager = nullptr;
}

void DoneCallback::Run() {
  if (in_place_ != nullptr) {
    tf.TF_RunAsyncOpKernelDoneCallback(in_place_);
    return;
  }
  void* function = &moved_;
  tf.TF_RunAsyncOpKernelDoneCallback(
      static_cast<TF_AsyncOpKernelDoneCallback*>(function));
  moved_.manager(function, function, kDestroy);
}

}  // namespace maypole::tensorflow
