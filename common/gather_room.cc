#include "common/gather_room.h"

#include <algorithm>
#include <cstddef>

namespace maypole {

uint64_t GatheredRoom(Kind kind, uint64_t input, int ranks, uint64_t last) {
  const auto parts =
      static_cast<uint64_t>(kind == Kind::kAllgather ? ranks : 1);
  return std::max(input * parts, last + last / 4);
}

bool ResultsHaveRoom(Kind kind, uint64_t row_bytes,
                     std::span<const int64_t> rows,
                     std::span<const uint64_t> rooms) {
  const size_t n = rooms.size();
  uint64_t most = 0;  // of the results
  for (size_t to = 0; to < n; ++to) {
    uint64_t result = 0;
    for (size_t from = 0; from < n; ++from) {
      result += static_cast<uint64_t>(
          kind == Kind::kAlltoall ? rows[from * n + to] : rows[from]);
    }
    result *= row_bytes;
    if (result > rooms[to]) return false;
    most = std::max(most, result);
  }
  return most > 0;
}

}  // namespace maypole
