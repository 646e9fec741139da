#include "common/reduce/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace maypole {

#ifdef __SSE2__

void CopyStreamed(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kVector = sizeof(__m128i);
  const size_t misplaced = reinterpret_cast<uintptr_t>(to) % kVector;
  const size_t head = misplaced == 0 ? 0 : std::min(bytes, kVector - misplaced);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + 4 * kVector <= bytes; i += 4 * kVector) {
    const auto* in = reinterpret_cast<const __m128i*>(from + i);
    auto* out = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}

#else

void CopyStreamed(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace maypole
