// TensorFlow's definitions of the operations, and their kernels, registered
// when tf.load_op_library() loads this library.
//
// Each collective takes a list of tensors, so that a group is one operation.
// All are stateful: TensorFlow must neither drop, fold nor merge them. For each
// collective MaypoleX there are, where TensorFlow has no asynchronous kernels,
// MaypoleXSubmit and MaypoleXWait instead (kernels.h).
//
//   attribute                      meaning
//   tensor_name                    the operation's name; empty: unnamed
//   process_set_id                 0: all ranks
//   reduce_op, root_rank           as in maypole.h
//   prescale_bits, postscale_bits  the bits of a double
#include <atomic>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

#include "client/tensorflow/dtypes.h"
#include "client/tensorflow/kernels.h"
#include "client/tensorflow/shapes.h"

namespace maypole::tensorflow {
namespace {

using Texts = std::vector<const char*>;

std::string failure;  // why the operations are not registered

void NoteFailure(const std::string& what, const Status& status) {
  if (!status.ok() && failure.empty()) {
    failure = "TensorFlow refuses " + what + ": " + status.message();
  }
}

struct Definition {
  std::string name;
  Texts attributes, inputs, outputs;
  InferShapes shapes;
};

void Define(const Definition& definition) {
  Status status;
  TF_OpDefinitionBuilder* builder =
      tf.TF_NewOpDefinitionBuilder(definition.name.c_str());
  for (const char* attribute : definition.attributes) {
    tf.TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  for (const char* input : definition.inputs) {
    tf.TF_OpDefinitionBuilderAddInput(builder, input);
  }
  for (const char* output : definition.outputs) {
    tf.TF_OpDefinitionBuilderAddOutput(builder, output);
  }
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder,
                                                     definition.shapes);
  tf.TF_RegisterOpDefinition(builder, status);
  NoteFailure(definition.name, status);
}

void SayHostMemoryOnce() {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  std::fputs(
      "maypole: TensorFlow's GPU tensors go through host memory; TensorFlow "
      "copies them there and back\n",
      stderr);
}

template <maypole_kind kind, bool on_gpu>
void* Create(TF_OpKernelConstruction* node) {
  if (on_gpu) SayHostMemoryOnce();
  return Kernel::Create(kind, node);
}

void Delete(void* kernel) { delete static_cast<Kernel*>(kernel); }

void Register(const Definition& definition, const char* device,
              TF_KernelBuilder* builder, bool in_host_memory) {
  if (in_host_memory) {
    for (const Texts* arguments : {&definition.inputs, &definition.outputs}) {
      for (const std::string text : *arguments) {
        const std::string name = text.substr(0, text.find(':'));
        tf.TF_KernelBuilder_HostMemory(builder, name.c_str());
      }
    }
  }
  Status status;
  tf.TF_RegisterKernelBuilder(definition.name.c_str(), builder, status);
  NoteFailure(definition.name + "'s kernel for " + device, status);
}

template <maypole_kind kind, bool on_gpu>
void AddKernel(const Definition& definition, Compute compute) {
  const char* device = on_gpu ? "GPU" : "CPU";
  const char* name = definition.name.c_str();
  Register(
      definition, device,
      compute == nullptr
          ? tf.TF_NewAsyncKernelBuilder(name, device, &Create<kind, on_gpu>,
                                        &ComputeAsynchronously, &Delete)
          : tf.TF_NewKernelBuilder(name, device, &Create<kind, on_gpu>, compute,
                                   &Delete),
      on_gpu);
}

template <maypole_kind kind>
void Add(const Definition& definition, Compute compute) {
  Define(definition);
  AddKernel<kind, false>(definition, compute);
  AddKernel<kind, true>(definition, compute);
}

// `wait_shapes`: with the handle as one more input.
template <maypole_kind kind>
void AddCollective(const Definition& definition, InferShapes wait_shapes) {
  if (tf.has_async_kernels()) {
    Add<kind>(definition, nullptr);
    return;
  }
  Definition submit = definition;
  submit.name += "Submit";
  submit.outputs = {"handle: int64"};
  submit.shapes = &Scalar;
  Add<kind>(submit, &ComputeSubmit);
  Definition wait = definition;
  wait.name += "Wait";
  wait.inputs.push_back("handle: int64");
  wait.shapes = wait_shapes;
  Add<kind>(wait, &ComputeWait);
}

constexpr char kTypes[] = "T: list(" MAYPOLE_TENSORFLOW_TYPES ")";
constexpr char kType[] = "T: " MAYPOLE_TENSORFLOW_TYPES;
constexpr char kName[] = "tensor_name: string = ''";
constexpr char kProcessSet[] = "process_set_id: int = 0";

void AddCollectives() {
  const Texts tensors = {"tensors: T"};
  const Texts results = {"results: T"};
  const Texts reduction = {kTypes,
                           kName,
                           kProcessSet,
                           "reduce_op: int",
                           "prescale_bits: int",
                           "postscale_bits: int"};
  AddCollective<MAYPOLE_ALLREDUCE>(
      {"MaypoleAllreduce", reduction, tensors, results, &SameShapes<0>},
      &SameShapes<1>);
  AddCollective<MAYPOLE_REDUCESCATTER>(
      {"MaypoleReducescatter", reduction, tensors, results, &OtherRows<0>},
      &OtherRows<1>);
  AddCollective<MAYPOLE_ALLGATHER>({"MaypoleAllgather",
                                    {kTypes, kName, kProcessSet},
                                    tensors,
                                    results,
                                    &OtherRows<0>},
                                   &OtherRows<1>);
  AddCollective<MAYPOLE_BROADCAST>(
      {"MaypoleBroadcast",
       {kTypes, kName, kProcessSet, "root_rank: int"},
       tensors,
       results,
       &SameShapes<0>},
      &SameShapes<1>);
  AddCollective<MAYPOLE_ALLTOALL>({"MaypoleAlltoall",
                                   {kType, kName, kProcessSet},
                                   {"tensor: T", "splits: int32"},
                                   {"rows: T", "received_splits: int32"},
                                   &RowsAndSplits},
                                  &RowsAndSplits);
  AddCollective<MAYPOLE_JOIN>(
      {"MaypoleJoin", {kName}, {}, {"last_rank: int32"}, &Scalar}, &Scalar);
  AddCollective<MAYPOLE_BARRIER>(
      {"MaypoleBarrier", {kName, kProcessSet}, {}, {}, &NoOutputs}, &NoOutputs);
}

template <Place place>
void AddPlace(const char* name) {
  // Their kernel is that of a barrier, which has the same attributes.
  Add<MAYPOLE_BARRIER>(
      {name, {kName, kProcessSet}, {}, {"value: int32"}, &Scalar},
      &ComputePlace<place>);
}

bool AddAll() {
  failure = tf.Load();
  if (!failure.empty()) return false;
  AddCollectives();
  AddPlace<Place::kRank>("MaypoleRank");
  AddPlace<Place::kSize>("MaypoleSize");
  AddPlace<Place::kLocalRank>("MaypoleLocalRank");
  AddPlace<Place::kLocalSize>("MaypoleLocalSize");
  AddPlace<Place::kIncluded>("MaypoleProcessSetIncluded");
  AddPlace<Place::kRankInSet>("MaypoleProcessSetRank");
  return failure.empty();
}

// Runs while the library is loaded, after `failure` is constructed.
[[maybe_unused]] const bool added = AddAll();

}  // namespace
}  // namespace maypole::tensorflow

#define MAYPOLE_EXPORT extern "C" __attribute__((visibility("default")))

// Connects the kernels to the libmaypole at this path, which the process has
// loaded. Returns an error's text, valid until the next call; empty on success.
MAYPOLE_EXPORT const char* maypole_tensorflow_connect(const char* path) {
  static std::string error;
  error = maypole::tensorflow::failure;
  if (error.empty()) {
    error = maypole::frameworks::Find(path, &maypole::tensorflow::library);
  }
  return error.c_str();
}

// Whether collectives have asynchronous kernels; if not, the pairs of Submit
// and Wait.
MAYPOLE_EXPORT int maypole_tensorflow_has_async_kernels() {
  return maypole::tensorflow::tf.has_async_kernels();
}
