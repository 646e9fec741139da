// FreeRanges: the free parts of a memory region.
//
// Purpose: hands out the smallest free range that is large enough, so that
// large ranges stay whole; ranges that are returned join their neighbours.
//
//   FreeRanges free;
//   free.Add(0, 1024);
//   uint64_t offset;
//   if (free.Take(256, &offset)) free.Add(offset, 256);
//
// Thread contract: not synchronized.
//
// Invariants: free ranges neither overlap nor touch each other.
#ifndef MAYPOLE_CLIENT_GPU_FREE_RANGES_H_
#define MAYPOLE_CLIENT_GPU_FREE_RANGES_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace maypole {

class FreeRanges {
 public:
  // False if no free range has that many bytes.
  bool Take(uint64_t bytes, uint64_t* offset);
  // The range must not be free.
  void Add(uint64_t offset, uint64_t bytes);

  uint64_t largest() const {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
  }

 private:
  void Insert(uint64_t offset, uint64_t bytes);
  void Erase(std::map<uint64_t, uint64_t>::iterator range);

  std::map<uint64_t, uint64_t> by_offset_;           // the range's bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // bytes, offset
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_FREE_RANGES_H_
