// The asynchronous kernels, of TensorFlow 2.13 and newer: no thread of
// TensorFlow waits for an operation.
#include "client/tensorflow/collective.h"
#include "client/tensorflow/done_callback.h"
#include "client/tensorflow/kernels.h"

namespace maypole::tensorflow {
namespace {

class AsyncCollective : public Collective {
 public:
  AsyncCollective(const Kernel& kernel, TF_OpKernelContext* context,
                  TF_AsyncOpKernelDoneCallback* done)
      : Collective(kernel, context), done_(done) {}

 private:
  void* Allocate(int index, int type, const int64_t* shape, int dims,
                 size_t bytes, Status& status) override {
    return Memory(
        tf.TF_AllocateOutput(context_, index, type, shape, dims, bytes, status),
        status);
  }

  void* ForwardOrAllocate(int index, int, const int64_t* shape, int dims,
                          size_t, Status& status) override {
    int forwarded = -1;
    return Memory(
        tf.TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, shape,
                                           dims, &forwarded, status),
        status);
  }

  // The context holds the output.
  static void* Memory(TF_Tensor* output, Status& status) {
    if (!status.ok()) return nullptr;
    void* const memory = tf.TF_TensorData(output);
    tf.TF_DeleteTensor(output);
    return memory;
  }

  void End(int code, const std::string& text) override {
    if (code != 0) {
      Status status;
      status.Set(code, text);
      tf.TF_OpKernelContext_Failure(context_, status);
    }
    done_.Run();
    delete this;
  }

  DoneCallback done_;
};

}  // namespace

void ComputeAsynchronously(void* kernel, TF_OpKernelContext* context,
                           TF_AsyncOpKernelDoneCallback* done) {
  (new AsyncCollective(*static_cast<Kernel*>(kernel), context, done))->Start();
}

}  // namespace maypole::tensorflow
