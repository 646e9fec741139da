// MXNet's engine, without MXNet's headers.
//
// MXNet 1.9.1 is the last version (the project is archived), so the layouts
// described here do not change. Python passes the functions.
//
// The engine runs an operation on a thread of its own when the arrays that it
// reads and writes are ready. An asynchronous operation returns at once and
// calls its Completion later, from any thread; an error given there is raised
// where the program waits for an array that the operation writes.
//
// Source: include/mxnet/c_api.h and include/mxnet/engine.h of MXNet 1.9.1.
#ifndef MAYPOLE_CLIENT_MXNET_ENGINE_H_
#define MAYPOLE_CLIENT_MXNET_ENGINE_H_

#include <string>

namespace maypole::mxnet {

using NDArrayHandle = void*;

// mxnet::engine::CallbackOnComplete.
struct Completion {
  void (*callback)(void* engine, void* operation, const void* error);
  void* engine;
  void* operation;
};

extern "C" {
// completion: a pointer to a Completion, valid during the call.
typedef void (*EngineAsyncFunction)(void* run_context, void* completion,
                                    void* parameter);
typedef void (*EngineDeleter)(void* parameter);

// Functions of MXNet's C API; 0 means success. Python fills this struct
// (maypole/mxnet/_engine.py).
struct EngineFunctions {
  // MXEnginePushAsyncND
  int (*push_async)(EngineAsyncFunction function, void* parameter,
                    EngineDeleter deleter, const void* context,
                    NDArrayHandle* read, int read_count, NDArrayHandle* written,
                    int written_count, const void* property, int priority,
                    const char* name, bool wait);
  int (*get_data)(NDArrayHandle array, void** data);
  int (*shallow_copy)(NDArrayHandle array, NDArrayHandle* copy);
  int (*free)(NDArrayHandle array);
  const char* (*last_error)();
  // mxnet::NDArray::Reorder2DefaultAsync: converts an array from oneDNN's
  // layout to the usual one, in the engine's order. Null in a build without
  // oneDNN.
  void (*reorder)(NDArrayHandle array);
  // 1: MXNET_ENGINE_TYPE=NaiveEngine, whose operations must end at once.
  int must_block;
};
}

// mxnet::FnProperty::kCPUPrioritized: submissions must not wait for the
// engine's other threads, which may be busy with long computations.
inline constexpr int kPrioritized = 3;

// mxnet::Context of the CPU.
struct Context {
  int device_type = 1;
  int device_id = 0;
};

// Ends an operation of the engine; `error` is empty on success. The engine then
// deletes the operation.
void Complete(const Completion& completion, const std::string& error);

}  // namespace maypole::mxnet

#endif  // MAYPOLE_CLIENT_MXNET_ENGINE_H_
