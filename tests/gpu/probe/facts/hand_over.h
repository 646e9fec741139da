// Fact 3: the shared page of host memory of its two roles, registered in both,
// and their commands.
//
// In a round the first hands over to the second, which hands back. Both get the
// commands
//
//   page                        (with the descriptor)  -> mapped
//   METHOD ROUNDS NANOSECONDS   -> took ROUNDS P50 P99 LEAST MOST PIECE
//
// and stop after ROUNDS rounds or NANOSECONDS. Times are nanoseconds of one
// hand-over, half a round; PIECE is the mean by the device's own clock, or, if
// hosts take part, with hosts that do not wait for the device; 0 if there is
// none. The second answers "took 0 ...".
//
// METHOD: flags, events, host.
//
// Thread contract: a role is the main thread of its process.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_HAND_OVER_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_HAND_OVER_H_

#include <cstddef>

#include "absl/status/status.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

inline constexpr size_t kHandOverBytes = 4096;

// Words of the page; each has two cache lines of its own.
enum HandOverWord : size_t {
  kThere = 0,         // written by the first's stream, round by round
  kBack = 16,         // written by the second's
  kGate = 32,         // opens a batch: both streams wait for it
  kFirstAt = 48,      // the first's host: what it has begun, or done
  kSecondAt = 64,     // the second's host
  kFirstSpare = 80,   // written only to give the stream some work
  kSecondSpare = 96,  // likewise
  // An event's handle in eight words, then a word that is 1 when it is there.
  kFirstHandle = 128,
  kSecondHandle = 160,
};
inline constexpr size_t kHandleWords = 8;

// In kFirstAt: no more rounds follow.
inline constexpr uint64_t kNoMore = uint64_t{1} << 62;

absl::Status PlayFirst(Stage& stage);
absl::Status PlaySecond(Stage& stage);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_HAND_OVER_H_
