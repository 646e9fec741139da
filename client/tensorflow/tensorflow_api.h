// TensorFlow's C API for operations and kernels (tensorflow/c/ops.h,
// tensorflow/c/kernels.h), looked up at run time.
//
// No header of TensorFlow is included and nothing is linked, so that one
// library serves every TensorFlow from 2.8 on. Load() finds the functions of
// the TensorFlow that the process has already loaded.
//
// Thread contract: Load() runs once, while the library is loaded; afterwards
// the table is constant.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_TENSORFLOW_API_H_
#define MAYPOLE_CLIENT_TENSORFLOW_TENSORFLOW_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

// Opaque types of TensorFlow.
struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;

namespace maypole::tensorflow {

using CreateKernel = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void* kernel, TF_OpKernelContext*);
using ComputeAsync = void (*)(void* kernel, TF_OpKernelContext*,
                              TF_AsyncOpKernelDoneCallback*);
using DeleteKernel = void (*)(void* kernel);
using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// X(returned type, name, arguments)
#define MAYPOLE_TENSORFLOW_FUNCTIONS(X)                                       \
  X(TF_Status*, TF_NewStatus, ())                                             \
  X(void, TF_DeleteStatus, (TF_Status*))                                      \
  X(int, TF_GetCode, (const TF_Status*))                                      \
  X(const char*, TF_Message, (const TF_Status*))                              \
  X(void, TF_SetStatus, (TF_Status*, int, const char*))                       \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))        \
  X(void, TF_OpDefinitionBuilderAddAttr,                                      \
    (TF_OpDefinitionBuilder*, const char*))                                   \
  X(void, TF_OpDefinitionBuilderAddInput,                                     \
    (TF_OpDefinitionBuilder*, const char*))                                   \
  X(void, TF_OpDefinitionBuilderAddOutput,                                    \
    (TF_OpDefinitionBuilder*, const char*))                                   \
  X(void, TF_OpDefinitionBuilderSetIsStateful,                                \
    (TF_OpDefinitionBuilder*, bool))                                          \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                    \
    (TF_OpDefinitionBuilder*, InferShapes))                                   \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))     \
  X(TF_ShapeHandle*, TF_NewShapeHandle, ())                                   \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                            \
  X(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))  \
  X(void, TF_ShapeInferenceContextGetInput,                                   \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))            \
  X(void, TF_ShapeInferenceContextSetOutput,                                  \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))            \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextScalar,                          \
    (TF_ShapeInferenceContext*))                                              \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextVectorFromSize,                  \
    (TF_ShapeInferenceContext*, size_t))                                      \
  X(int64_t, TF_ShapeInferenceContextRankKnown,                               \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*))                             \
  X(int64_t, TF_ShapeInferenceContextRank,                                    \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*))                             \
  X(void, TF_ShapeInferenceContextSubshape,                                   \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, int64_t,            \
     TF_ShapeHandle*, TF_Status*))                                            \
  X(void, TF_ShapeInferenceContextConcatenateShapes,                          \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*,             \
     TF_ShapeHandle*, TF_Status*))                                            \
  X(TF_KernelBuilder*, TF_NewKernelBuilder,                                   \
    (const char*, const char*, CreateKernel, Compute, DeleteKernel))          \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))      \
  X(void, TF_RegisterKernelBuilder,                                           \
    (const char*, TF_KernelBuilder*, TF_Status*))                             \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                \
    (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))  \
  X(void, TF_OpKernelConstruction_GetAttrString,                              \
    (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))       \
  X(void, TF_OpKernelConstruction_GetAttrInt64,                               \
    (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))            \
  X(void, TF_OpKernelConstruction_Failure,                                    \
    (TF_OpKernelConstruction*, TF_Status*))                                   \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))      \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                 \
  X(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))   \
  X(void, TF_SetOutput,                                                       \
    (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                 \
  X(TF_Tensor*, TF_AllocateOutput,                                            \
    (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*)) \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                              \
    (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*,    \
     TF_Status*))                                                             \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                      \
  X(TF_Tensor*, TF_AllocateTensor, (int, const int64_t*, int, size_t))        \
  X(int, TF_TensorType, (const TF_Tensor*))                                   \
  X(int, TF_NumDims, (const TF_Tensor*))                                      \
  X(int64_t, TF_Dim, (const TF_Tensor*, int))                                 \
  X(size_t, TF_TensorByteSize, (const TF_Tensor*))                            \
  X(void*, TF_TensorData, (const TF_Tensor*))

// From TensorFlow 2.13 on; null before.
#define MAYPOLE_TENSORFLOW_ASYNC_FUNCTIONS(X)                             \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                          \
    (const char*, const char*, CreateKernel, ComputeAsync, DeleteKernel)) \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))

struct TensorFlowApi {
#define MAYPOLE_FUNCTION(result, name, arguments) result(*name) arguments;
  MAYPOLE_TENSORFLOW_FUNCTIONS(MAYPOLE_FUNCTION)
  MAYPOLE_TENSORFLOW_ASYNC_FUNCTIONS(MAYPOLE_FUNCTION)
#undef MAYPOLE_FUNCTION

  // XLA's table of functions (client/xla/xla_ffi.h); from TensorFlow 2.18 on,
  // null before.
  const void* (*get_xla_ffi_api)();

  // Fills the table. Returns what is missing; empty on success.
  std::string Load();
  bool has_async_kernels() const { return TF_NewAsyncKernelBuilder != nullptr; }
};

extern TensorFlowApi tf;

// TF_DataType
inline constexpr int kTfInt32 = 3;
inline constexpr int kTfInt64 = 9;

// A TF_Status that is deleted at the end of its scope.
class Status {
 public:
  Status() : status_(tf.TF_NewStatus()) {}
  ~Status() { tf.TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() const { return status_; }
  bool ok() const { return tf.TF_GetCode(status_) == 0; }
  int code() const { return tf.TF_GetCode(status_); }
  std::string message() const { return tf.TF_Message(status_); }
  void Set(int code, const std::string& text) {
    tf.TF_SetStatus(status_, code, text.c_str());
  }

 private:
  TF_Status* const status_;
};

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_TENSORFLOW_API_H_
