#include "client/gpu/free_ranges.h"

#include <iterator>

namespace maypole {

void FreeRanges::Insert(uint64_t offset, uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void FreeRanges::Erase(std::map<uint64_t, uint64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  by_offset_.erase(range);
}

bool FreeRanges::Take(uint64_t bytes, uint64_t* offset) {
  const auto fits = by_size_.lower_bound({bytes, 0});
  if (fits == by_size_.end()) return false;
  const auto [size, at] = *fits;
  Erase(by_offset_.find(at));
  if (size > bytes) Insert(at + bytes, size - bytes);
  *offset = at;
  return true;
}

void FreeRanges::Add(uint64_t offset, uint64_t bytes) {
  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      Erase(previous);
    }
  }
  if (next != by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    Erase(next);
  }
  Insert(offset, bytes);
}

}  // namespace maypole
