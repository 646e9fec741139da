#include <string>
#include <vector>

#include "client/tensorflow/kernels.h"

namespace maypole::tensorflow {
namespace {

// What Value() returns without a value.
constexpr int kNotInitialized = -1;
constexpr int kNoSuchSet = -2;
constexpr int kNotInSet = -3;

// The index of this rank in the set.
int RankInSet(int32_t process_set) {
  const int rank = library.rank();
  if (process_set == 0 || rank < 0) return rank;
  const int ranks = library.process_set_ranks(process_set, nullptr, 0);
  if (ranks < 0) return kNoSuchSet;
  std::vector<int32_t> members(ranks);
  library.process_set_ranks(process_set, members.data(), ranks);
  for (int i = 0; i < ranks; ++i) {
    if (members[i] == rank) return i;
  }
  return kNotInSet;
}

int Included(int32_t process_set) {
  const int index = RankInSet(process_set);
  return index == kNotInSet ? 0 : index < 0 ? index : 1;
}

int Size(int32_t process_set) {
  if (process_set == 0 || library.size() < 0) return library.size();
  const int ranks = library.process_set_ranks(process_set, nullptr, 0);
  return ranks < 0 ? kNoSuchSet : ranks;
}

std::string WhyNot(int value, int32_t process_set) {
  if (value == kNotInitialized) {
    return "Maypole has not been initialized; use hvd.init().";
  }
  const std::string mark = frameworks::kErrorMark;
  const std::string set = "process set " + std::to_string(process_set);
  return value == kNotInSet ? mark + "this rank is not in " + set
                            : mark + "there is no " + set;
}

template <Place place>
int Value(const Kernel& kernel) {
  switch (place) {
    case Place::kRank:
      return library.rank();
    case Place::kSize:
      return Size(kernel.process_set);
    case Place::kLocalRank:
      return library.local_rank();
    case Place::kLocalSize:
      return library.local_size();
    case Place::kIncluded:
      return Included(kernel.process_set);
    case Place::kRankInSet:
      return RankInSet(kernel.process_set);
  }
}

}  // namespace

template <Place place>
void ComputePlace(void* kernel, TF_OpKernelContext* context) {
  const Kernel& node = *static_cast<Kernel*>(kernel);
  const int value =
      library.rank == nullptr ? kNotInitialized : Value<place>(node);
  Status status;
  if (value < 0) {
    status.Set(MAYPOLE_FAILED_PRECONDITION, WhyNot(value, node.process_set));
  }
  TF_Tensor* output = status.ok()
                          ? tf.TF_AllocateOutput(context, 0, kTfInt32, nullptr,
                                                 0, sizeof(int32_t), status)
                          : nullptr;
  if (!status.ok()) {
    tf.TF_OpKernelContext_Failure(context, status);
    return;
  }
  *static_cast<int32_t*>(tf.TF_TensorData(output)) = value;
  tf.TF_DeleteTensor(output);
}

template void ComputePlace<Place::kRank>(void*, TF_OpKernelContext*);
template void ComputePlace<Place::kSize>(void*, TF_OpKernelContext*);
template void ComputePlace<Place::kLocalRank>(void*, TF_OpKernelContext*);
template void ComputePlace<Place::kLocalSize>(void*, TF_OpKernelContext*);
template void ComputePlace<Place::kIncluded>(void*, TF_OpKernelContext*);
template void ComputePlace<Place::kRankInSet>(void*, TF_OpKernelContext*);

}  // namespace maypole::tensorflow
