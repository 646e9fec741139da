// MAYPOLE_RESULT_FAULT: a place where a test can flip a bit of a result.
//
// Purpose: shows that checksums find a rank whose copy of a result differs.
// Like kill points (common/board/kill_point.h) it compiles to nothing unless
// the build has MAYPOLE_KILL_POINTS.
//
//   MAYPOLE_FLIP=1:fc2.weight:3:40 program
//
// flips bit 40 of the result of the operation 'fc2.weight' when rank 1
// (MAYPOLE_RANK) gets it for the third time.
//
// Thread contract: one thread at a time (RankCore's driver thread, or under its
// mutex).
#ifndef MAYPOLE_CLIENT_ENGINE_RESULT_FAULT_H_
#define MAYPOLE_CLIENT_ENGINE_RESULT_FAULT_H_

#ifdef MAYPOLE_KILL_POINTS

#include <cstddef>
#include <cstdint>
#include <string>

namespace maypole {
// If set, called instead of PassResult's own action. For programs with one
// thread only.
extern void (*result_fault_hook)(const std::string& name, std::byte* result,
                                 uint64_t bytes);
void PassResult(const std::string& name, std::byte* result, uint64_t bytes);
}  // namespace maypole

#define MAYPOLE_RESULT_FAULT(name, result, bytes) \
  ::maypole::PassResult(name, result, bytes)
#else
#define MAYPOLE_RESULT_FAULT(name, result, bytes) static_cast<void>(0)
#endif

#endif  // MAYPOLE_CLIENT_ENGINE_RESULT_FAULT_H_
