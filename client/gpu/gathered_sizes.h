// GatheredSizes: how large the results of allgathers and alltoalls were.
//
// Purpose: a rank must reserve room for a result on its GPU before it knows the
// sizes of the others' tensors. It guesses (GatheredRoom()). If a result does
// not fit, the operation runs on the host, and the next one reserves more room.
//
//   sizes.Note(key, gpu, bytes);                   // a result
//   const GatheredSizes::Last last = sizes.LastOf(key);
//
// Thread contract: all functions may be called by any thread.
//
// Invariant: at most kMostNames names are known.
#ifndef MAYPOLE_CLIENT_GPU_GATHERED_SIZES_H_
#define MAYPOLE_CLIENT_GPU_GATHERED_SIZES_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/gpu/gpu.h"

namespace maypole {

class GatheredSizes {
 public:
  static constexpr size_t kMostNames = 4096;

  struct Last {
    const cuda::Gpu* gpu = nullptr;  // null: no result is known
    uint64_t bytes = 0;
  };

  // key: IdentityKey() of the operation.
  void Note(const std::string& key, const cuda::Gpu* gpu, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    // Names that are still used return, at the price of one operation on the
    // host.
    if (sizes_.size() >= kMostNames && !sizes_.contains(key)) sizes_.clear();
    sizes_[key] = {gpu, bytes};
  }
  Last LastOf(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto it = sizes_.find(key);
    return it == sizes_.end() ? Last() : it->second;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Last> sizes_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_GATHERED_SIZES_H_
