// The function by which an asynchronous kernel signals its end to TensorFlow.
//
// TF_NewAsyncKernelBuilder's compute function gets the address of a
// std::function<void()> that is a parameter of its caller (CAsyncOpKernel::
// ComputeAsync, tensorflow/c/kernels.cc) and is gone when compute returns. So
// its contents are moved out. libstdc++'s std::function is 16 bytes of
// functor, the manager and the invoker; a move copies these and clears the
// source's manager. Versions that keep the function alive on the heap are
// recognized by the address, and the function stays in place.
//
// Thread contract: made in compute; Run() once, on any thread.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_DONE_CALLBACK_H_
#define MAYPOLE_CLIENT_TENSORFLOW_DONE_CALLBACK_H_

#include <cstdint>

#include "client/tensorflow/tensorflow_api.h"

namespace maypole::tensorflow {

class DoneCallback {
 public:
  explicit DoneCallback(TF_AsyncOpKernelDoneCallback* done);
  DoneCallback(const DoneCallback&) = delete;
  DoneCallback& operator=(const DoneCallback&) = delete;

  void Run();

 private:
  struct StdFunction {
    uint64_t functor[2];
    int (*manager)(void* to, const void* from, int operation);
    void (*invoker)(const void* functor);
  };

  StdFunction moved_ = {};
  TF_AsyncOpKernelDoneCallback* in_place_ = nullptr;  // null: moved
};

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_DONE_CALLBACK_H_
