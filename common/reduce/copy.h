// CopyStreamed: a copy whose stores go past the cache.
//
// Thread contract: a pure function. The stores are complete when it returns:
// what the caller publishes afterwards with release is seen after them.
#ifndef MAYPOLE_COMMON_REDUCE_COPY_H_
#define MAYPOLE_COMMON_REDUCE_COPY_H_

#include <cstddef>

namespace maypole {

// `to` and `from` must not overlap. Where the processor has no such stores, an
// ordinary copy.
void CopyStreamed(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_COPY_H_
