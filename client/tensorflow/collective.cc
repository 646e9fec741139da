#include "client/tensorflow/collective.h"

#include <cstring>
#include <string>

#include "client/tensorflow/dtypes.h"

namespace maypole::tensorflow {
namespace {

using frameworks::kErrorMark;

// Deletes a reference to a tensor; its memory lives on in the context.
class TensorReference {
 public:
  explicit TensorReference(TF_Tensor* tensor) : tensor_(tensor) {}
  ~TensorReference() {
    if (tensor_ != nullptr) tf.TF_DeleteTensor(tensor_);
  }
  TensorReference(const TensorReference&) = delete;
  TensorReference& operator=(const TensorReference&) = delete;
  void Keep() { tensor_ = nullptr; }

 private:
  TF_Tensor* tensor_;
};

size_t Bytes(const maypole_operation& operation, size_t element) {
  size_t bytes = element;
  for (int d = 0; d < operation.dims; ++d) bytes *= operation.shape[d];
  return bytes;
}

// How many of `rows` rows of a reducescatter this rank gets; -1 if it is not in
// the process set: submit() reports that.
int64_t OwnRows(int64_t rows, int32_t process_set) {
  int ranks = library.size();
  int index = library.rank();
  if (process_set != 0) {
    ranks = library.process_set_ranks(process_set, nullptr, 0);
    if (ranks <= 0) return -1;
    std::vector<int32_t> members(ranks);
    library.process_set_ranks(process_set, members.data(), ranks);
    int place = 0;
    while (place < ranks && members[place] != index) ++place;
    if (place == ranks) return -1;
    index = place;
  }
  if (ranks <= 0) return -1;
  return rows / ranks + (index < rows % ranks);
}

}  // namespace

int TensorFlowCode(maypole_status status) {
  switch (status) {
    // TensorFlow takes these for a server that will return, the program's own
    // wish, or the end of a data set: a session would retry or stop silently.
    case MAYPOLE_ABORTED:
    case MAYPOLE_UNAVAILABLE:
    case MAYPOLE_CANCELLED:
    case MAYPOLE_OUT_OF_RANGE:
      return MAYPOLE_UNKNOWN;
    default:
      return status;
  }
}

void Collective::NoteError(int code, const std::string& text) {
  if (code_ != 0) return;
  code_ = code;
  text_ = text;
}

void Collective::Start() {
  Status status;
  if (library.submit == nullptr) {
    status.Set(MAYPOLE_FAILED_PRECONDITION,
               std::string(kErrorMark) +
                   "import maypole.tensorflow before this graph runs");
  } else {
    Read(status);
  }
  if (status.ok()) Submit(status);
  if (!status.ok()) End(status.code(), status.message());
}

void Collective::Read(Status& status) {
  const int inputs = tf.TF_NumInputs(context_);
  const int tensors = kernel_.kind == MAYPOLE_ALLTOALL ? 1 : inputs;
  members_.reserve(tensors + 1);
  for (int i = 0; i < tensors && status.ok(); ++i) {
    ReadTensor(i, tensors, status);
  }
  if (kernel_.kind == MAYPOLE_ALLTOALL && status.ok()) ReadSplits(1, status);
  if (kernel_.kind == MAYPOLE_JOIN || kernel_.kind == MAYPOLE_BARRIER) {
    Member& member = members_.emplace_back();
    member = {};
    member.collective = this;
    member.name = kernel_.name;
  }
}

void Collective::ReadTensor(int index, int count, Status& status) {
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context_, index, &tensor, status);
  if (!status.ok()) return;
  Member& member = members_.emplace_back();
  member = {};
  member.collective = this;
  member.index = index;
  member.name = kernel_.MemberName(index, count);
  maypole_operation& operation = member.operation;
  {
    TensorReference reference(tensor);
    member.tf_type = tf.TF_TensorType(tensor);
    operation.dims = tf.TF_NumDims(tensor);
    if (operation.dims > MAYPOLE_MAX_DIMS) {
      status.Set(MAYPOLE_INVALID_ARGUMENT,
                 std::string(kErrorMark) + "'" + member.name + "' has " +
                     std::to_string(operation.dims) +
                     " dimensions, expected at most " +
                     std::to_string(MAYPOLE_MAX_DIMS) + "; reshape it first");
      return;
    }
    for (int d = 0; d < operation.dims; ++d) {
      operation.shape[d] = tf.TF_Dim(tensor, d);
    }
    operation.input = tf.TF_TensorData(tensor);
    // If we kept a reference, TensorFlow could not forward the input's memory
    // to the output.
    if (KeepInput(tensor)) reference.Keep();
  }
  if (operation.dims == 0 && kernel_.Gathers()) {  // one row
    operation.dims = 1;
    operation.shape[0] = 1;
  }
  operation.dtype = FindDtype(member.tf_type)->maypole;
  if (!kernel_.Gathers()) AllocateOutput(member, status);
}

void Collective::ReadSplits(int index, Status& status) {
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context_, index, &tensor, status);
  if (!status.ok()) return;
  TensorReference reference(tensor);
  const auto* splits = static_cast<const int32_t*>(tf.TF_TensorData(tensor));
  const size_t count = tf.TF_TensorByteSize(tensor) / sizeof(int32_t);
  splits_.assign(splits, splits + count);
}

void Collective::AllocateOutput(Member& member, Status& status) {
  maypole_operation& operation = member.operation;
  const size_t element = FindDtype(member.tf_type)->bytes;
  if (kernel_.kind == MAYPOLE_REDUCESCATTER) {
    int64_t shape[MAYPOLE_MAX_DIMS];
    std::memcpy(shape, operation.shape, sizeof shape);
    const int64_t rows =
        operation.dims == 0 ? -1 : OwnRows(shape[0], kernel_.process_set);
    if (rows < 0) return;  // submit() refuses the operation
    const size_t all = Bytes(operation, element);
    const size_t bytes = shape[0] == 0 ? 0 : all / shape[0] * rows;
    shape[0] = rows;
    operation.output = Allocate(member.index, member.tf_type, shape,
                                operation.dims, bytes, status);
  } else {
    operation.output =
        ForwardOrAllocate(member.index, member.tf_type, operation.shape,
                          operation.dims, Bytes(operation, element), status);
  }
}

void Collective::Submit(Status& status) {
  const int count = static_cast<int>(members_.size());
  if (count == 0) {
    End(0, "");
    return;
  }
  std::vector<maypole_operation> operations;
  operations.reserve(count);
  for (Member& member : members_) {
    maypole_operation& operation = member.operation;
    operation.struct_size = sizeof operation;
    operation.kind = kernel_.kind;
    operation.op = kernel_.reduction;
    operation.process_set = kernel_.process_set;
    operation.root = kernel_.root_rank;
    operation.prescale = kernel_.prescale;
    operation.postscale = kernel_.postscale;
    operation.name = member.name.empty() ? nullptr : member.name.c_str();
    if (!splits_.empty()) {
      operation.splits = splits_.data();
      operation.splits_count = static_cast<int32_t>(splits_.size());
    }
    operations.push_back(operation);
  }
  std::vector<int64_t> handles(count);
  const maypole_status code =
      count == 1  // a join cannot be in a group
          ? library.submit(operations.data(), handles.data())
          : library.submit_group(operations.data(), count, handles.data());
  if (code != MAYPOLE_OK) {
    std::string text = std::string(kErrorMark) + library.last_error();
    if (code == MAYPOLE_ALREADY_EXISTS) {
      text += " (in a tf.while_loop of a session: parallel_iterations=1)";
    }
    status.Set(TensorFlowCode(code), text);
    return;
  }
  // The last callback may delete this object, so only locals are read below.
  left_ = count;
  Member* const first = members_.data();
  for (int i = 0; i < count; ++i) {
    frameworks::CallWhenDone(library, handles[i], &Collective::OnDone,
                             first + i);
  }
}

void Collective::OnDone(void* context, int64_t handle, maypole_status code) {
  auto* member = static_cast<Member*>(context);
  Collective* const collective = member->collective;
  member->handle = handle;
  collective->Complete(*member, code);
  library.release(handle);
  if (collective->left_.fetch_sub(1) == 1) {
    collective->End(collective->code_, collective->text_);
  }
}

void Collective::Complete(const Member& member, maypole_status code) {
  if (code != MAYPOLE_OK) {
    NoteError(TensorFlowCode(code),
              std::string(kErrorMark) + library.last_error());
    return;
  }
  Status status;
  if (kernel_.Gathers()) CopyResult(member, status);
  if (kernel_.kind == MAYPOLE_ALLTOALL && status.ok()) {
    CopyReceivedSplits(member, status);
  }
  if (kernel_.kind == MAYPOLE_JOIN) CopyLastRank(member, status);
  if (!status.ok()) NoteError(status.code(), status.message());
}

void Collective::CopyResult(const Member& member, Status& status) {
  void* data = nullptr;
  int64_t bytes = 0;
  int64_t rows = 0;
  library.result(member.handle, &data, &bytes, &rows);
  int64_t shape[MAYPOLE_MAX_DIMS];
  std::memcpy(shape, member.operation.shape, sizeof shape);
  shape[0] = rows;
  void* const output = Allocate(member.index, member.tf_type, shape,
                                member.operation.dims, bytes, status);
  if (status.ok() && bytes != 0) std::memcpy(output, data, bytes);
}

void Collective::CopyReceivedSplits(const Member& member, Status& status) {
  const int64_t ranks =
      kernel_.process_set == 0
          ? library.size()
          : library.process_set_ranks(kernel_.process_set, nullptr, 0);
  std::vector<int64_t> splits(ranks > 0 ? ranks : 0);
  if (library.received_splits(member.handle, splits.data(),
                              static_cast<int32_t>(splits.size())) !=
      MAYPOLE_OK) {
    status.Set(MAYPOLE_INTERNAL,
               std::string(kErrorMark) + library.last_error());
    return;
  }
  auto* to = static_cast<int32_t*>(Allocate(
      1, kTfInt32, &ranks, 1, splits.size() * sizeof(int32_t), status));
  if (!status.ok()) return;
  for (const int64_t rows : splits) *to++ = static_cast<int32_t>(rows);
}

void Collective::CopyLastRank(const Member& member, Status& status) {
  int64_t rank = -1;
  library.result(member.handle, nullptr, nullptr, &rank);
  auto* output = static_cast<int32_t*>(
      Allocate(0, kTfInt32, nullptr, 0, sizeof(int32_t), status));
  if (status.ok()) *output = static_cast<int32_t>(rank);
}

}  // namespace maypole::tensorflow
