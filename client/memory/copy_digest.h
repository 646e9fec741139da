// CopyDigest: copies memory and computes a digest of it, at about the speed of
// a copy.
//
// Purpose: a commit of the training's state is written to memory that outlives
// the rank, and read from there by another process (docs/elastic.md). Equal
// digests show that two processes have the same bytes. The digest is no defence
// against forgery.
//
// Invariants: the digest depends on the bytes and their number only, not on
// addresses. All processes of a job are of one build and byte order. Memories
// with different bytes have the same digest with a probability of about 2^-64.
//
// Thread contract: pure; the memory must not change meanwhile.
#ifndef MAYPOLE_CLIENT_MEMORY_COPY_DIGEST_H_
#define MAYPOLE_CLIENT_MEMORY_COPY_DIGEST_H_

#include <cstdint>

namespace maypole {

// Copies `bytes` to `to` (null: copies nothing) and returns the digest of what
// is at `to` then (null: at `from`). The ranges must not overlap.
uint64_t CopyDigest(void* to, const void* from, uint64_t bytes);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_MEMORY_COPY_DIGEST_H_
