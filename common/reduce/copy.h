// CopyStreamed: copies memory with stores that bypass the cache.
//
// Thread contract: any thread. The stores are ordered before everything that
// the caller publishes with release afterwards.
#ifndef MAYPOLE_COMMON_REDUCE_COPY_H_
#define MAYPOLE_COMMON_REDUCE_COPY_H_

#include <cstddef>

namespace maypole {

// `to` and `from` must not overlap. Processors without such stores make an
// ordinary copy.
void CopyStreamed(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_COPY_H_
