// Collective: one execution of a node, from its input tensors to its outputs.
//
//   auto* collective = new AsyncCollective(kernel, context, done);
//   collective->Start();                     // it deletes itself at its end
//
// Start() reads the inputs, allocates outputs whose size is known, and submits
// one operation for each tensor, all or none. When an operation ends,
// libmaypole's completion thread calls back; the callback allocates and fills
// an output whose size was not known. After the last callback End() is called.
//
// Thread contract: Start() on the thread that runs the kernel, which may not
// touch the object afterwards; the rest on libmaypole's completion thread, one
// callback at a time. If nothing was submitted, Start() itself ends the
// collective, on the thread that called it.
//
// Invariant: inputs and outputs outlive the operations: subclasses hold them.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_COLLECTIVE_H_
#define MAYPOLE_CLIENT_TENSORFLOW_COLLECTIVE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "client/tensorflow/kernel.h"

namespace maypole::tensorflow {

class Collective {
 public:
  Collective(const Kernel& kernel, TF_OpKernelContext* context)
      : kernel_(kernel), context_(context) {}
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  void Start();

 protected:
  virtual ~Collective() = default;

  // The memory of a new output with this index; `status` has an error if there
  // is none.
  virtual void* Allocate(int index, int type, const int64_t* shape, int dims,
                         size_t bytes, Status& status) = 0;
  // As Allocate(), but may return the memory of the input with this index if
  // nothing else uses that.
  virtual void* ForwardOrAllocate(int index, int type, const int64_t* shape,
                                  int dims, size_t bytes, Status& status) = 0;
  // Called once, when all is done; code 0: without an error. From then on End()
  // alone owns the object, and deletes it sooner or later.
  virtual void End(int code, const std::string& text) = 0;
  // Called with each input tensor. Returns true if it keeps the tensor;
  // otherwise the caller deletes it. The context holds the memory until End().
  virtual bool KeepInput(TF_Tensor*) { return false; }

  // A copy, because the kernel may be deleted before an operation that outlives
  // the node's execution (Submit).
  const Kernel kernel_;
  TF_OpKernelContext* const context_;

 private:
  struct Member {
    Collective* collective;
    int index;
    int tf_type;
    std::string name;
    maypole_operation operation;
    int64_t handle;
  };

  void Read(Status& status);
  void ReadTensor(int index, int count, Status& status);
  void ReadSplits(int index, Status& status);
  void AllocateOutput(Member& member, Status& status);
  void Submit(Status& status);
  static void OnDone(void* member, int64_t handle, maypole_status code);
  void Complete(const Member& member, maypole_status code);
  void CopyResult(const Member& member, Status& status);
  void CopyReceivedSplits(const Member& member, Status& status);
  void CopyLastRank(const Member& member, Status& status);
  void NoteError(int code, const std::string& text);

  std::vector<Member> members_;
  std::vector<int64_t> splits_;
  std::atomic<int> left_ = 0;
  int code_ = 0;  // the first error
  std::string text_;
};

// The TensorFlow code for an error of libmaypole.
int TensorFlowCode(maypole_status status);

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_COLLECTIVE_H_
