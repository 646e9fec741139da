// Checksum: a number that differs if a tensor differs in one bit.
//
// Purpose: ranks compare the checksums of their copies of a result
// (docs/operating.md, "Checksums"). It is the CRC-32C (Castagnoli) of four
// CRC-32Cs, one for each of four interleaved parts of the data, 8 bytes at a
// time: a processor computes four at once. So two tensors of equal size that
// differ in one bit, or only within 4 bytes of one aligned 8-byte word, never
// have the same checksum; others do once in 2^32.
//
//   uint32_t mine = Checksum(output, bytes);
//
// The checksum is the same on all processors of one byte order: it uses the SSE
// 4.2 instruction where there is one, otherwise tables.
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
