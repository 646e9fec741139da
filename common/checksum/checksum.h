// Checksum: a number that differs if a tensor differs in one bit.
//
// Purpose: ranks compare the checksums of their copies of a result
// (docs/operating.md, "Checksums"). It is made of CRC-32C (Castagnoli): of four
// interleaved parts of the data, each 8 bytes at a time, and then of the four
// results, because a processor computes four at once. So two tensors of one
// size that differ in one bit, or in several of 4 bytes of one aligned word of
// 8, never have the same checksum; others have it once in 2^32.
//
//   uint32_t mine = Checksum(output, bytes);
//
// The same on every processor of one byte order: with the instruction of
// SSE 4.2 where there is one, otherwise by tables.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_CHECKSUM_CHECKSUM_H_
#define MAYPOLE_COMMON_CHECKSUM_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace maypole {

uint32_t Checksum(const void* data, size_t bytes);

// The same without the instruction, for the test.
uint32_t ChecksumByTables(const void* data, size_t bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_CHECKSUM_CHECKSUM_H_
