#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/tensorflow/collective.h"
#include "client/tensorflow/kernels.h"

namespace maypole::tensorflow {
namespace {

class DeferredCollective : public Collective {
 public:
  // Returns its handle.
  static int64_t Begin(const Kernel& kernel, TF_OpKernelContext* context);
  // Waits for the end; sets the outputs of this other context (Wait's), or its
  // error.
  static void Finish(int64_t handle, TF_OpKernelContext* context);

 private:
  using Table =
      std::unordered_map<int64_t, std::shared_ptr<DeferredCollective>>;

  using Collective::Collective;
  ~DeferredCollective() override {
    for (TF_Tensor* tensor : inputs_) tf.TF_DeleteTensor(tensor);
    for (auto& [index, tensor] : outputs_) tf.TF_DeleteTensor(tensor);
  }
  static void Delete(DeferredCollective* collective) { delete collective; }

  void* Allocate(int index, int type, const int64_t* shape, int dims,
                 size_t bytes, Status& status) override {
    TF_Tensor* tensor = tf.TF_AllocateTensor(type, shape, dims, bytes);
    if (tensor == nullptr) {
      status.Set(MAYPOLE_RESOURCE_EXHAUSTED,
                 std::string(frameworks::kErrorMark) +
                     "there is no memory for an output of " +
                     std::to_string(bytes) + " bytes");
      return nullptr;
    }
    outputs_.emplace_back(index, tensor);
    return tf.TF_TensorData(tensor);
  }

  void* ForwardOrAllocate(int index, int type, const int64_t* shape, int dims,
                          size_t bytes, Status& status) override {
    return Allocate(index, type, shape, dims, bytes, status);
  }

  bool KeepInput(TF_Tensor* tensor) override {
    inputs_.push_back(tensor);
    return true;
  }

  void End(int code, const std::string& text) override {
    // Keeps the object until the lock is free.
    const std::shared_ptr<DeferredCollective> self = std::move(self_);
    std::lock_guard lock(mutex_);
    ended_ = true;
    code_ = code;
    text_ = text;
    changed_.notify_all();
  }

  void AwaitEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

  void SetOutputs(TF_OpKernelContext* context) const;

  static std::mutex table_mutex_;
  static Table table_;
  static int64_t next_;

  std::vector<TF_Tensor*> inputs_;
  std::vector<std::pair<int, TF_Tensor*>> outputs_;
  std::shared_ptr<DeferredCollective> self_;  // until End()
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  int code_ = 0;
  std::string text_;
};

std::mutex DeferredCollective::table_mutex_;
DeferredCollective::Table DeferredCollective::table_;
int64_t DeferredCollective::next_ = 1;

int64_t DeferredCollective::Begin(const Kernel& kernel,
                                  TF_OpKernelContext* context) {
  std::shared_ptr<DeferredCollective> collective(
      new DeferredCollective(kernel, context), &DeferredCollective::Delete);
  collective->self_ = collective;
  int64_t handle;
  {
    std::lock_guard lock(table_mutex_);
    handle = next_++;
    table_.emplace(handle, collective);
  }
  collective->Start();
  return handle;
}

void DeferredCollective::Finish(int64_t handle, TF_OpKernelContext* context) {
  std::shared_ptr<DeferredCollective> collective;
  {
    std::lock_guard lock(table_mutex_);
    const auto found = table_.find(handle);
    if (found != table_.end()) {
      collective = std::move(found->second);
      table_.erase(found);
    }
  }
  if (collective == nullptr) {
    Status status;
    status.Set(MAYPOLE_INTERNAL, std::string(frameworks::kErrorMark) +
                                     "no operation has the handle " +
                                     std::to_string(handle));
    tf.TF_OpKernelContext_Failure(context, status);
    return;
  }
  collective->AwaitEnd();
  collective->SetOutputs(context);
}

void DeferredCollective::SetOutputs(TF_OpKernelContext* context) const {
  Status status;
  if (code_ != 0) {
    status.Set(code_, text_);
  } else {
    for (const auto& [index, tensor] : outputs_) {
      if (status.ok()) tf.TF_SetOutput(context, index, tensor, status);
    }
  }
  if (!status.ok()) tf.TF_OpKernelContext_Failure(context, status);
}

}  // namespace

void ComputeSubmit(void* kernel, TF_OpKernelContext* context) {
  const int64_t handle =
      DeferredCollective::Begin(*static_cast<Kernel*>(kernel), context);
  Status status;
  TF_Tensor* output = tf.TF_AllocateOutput(context, 0, kTfInt64, nullptr, 0,
                                           sizeof handle, status);
  if (!status.ok()) {
    tf.TF_OpKernelContext_Failure(context, status);
    return;
  }
  *static_cast<int64_t*>(tf.TF_TensorData(output)) = handle;
  tf.TF_DeleteTensor(output);
}

void ComputeWait(void*, TF_OpKernelContext* context) {
  Status status;
  TF_Tensor* input = nullptr;
  tf.TF_GetInput(context, tf.TF_NumInputs(context) - 1, &input, status);
  if (!status.ok()) {
    tf.TF_OpKernelContext_Failure(context, status);
    return;
  }
  const int64_t handle = *static_cast<int64_t*>(tf.TF_TensorData(input));
  tf.TF_DeleteTensor(input);
  DeferredCollective::Finish(handle, context);
}

}  // namespace maypole::tensorflow
