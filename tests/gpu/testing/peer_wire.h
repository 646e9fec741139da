// What a Peer and its process send each other: a Request, and an AnswerOnWire.
//
// Thread contract: types only.
#ifndef MAYPOLE_TESTS_GPU_TESTING_PEER_WIRE_H_
#define MAYPOLE_TESTS_GPU_TESTING_PEER_WIRE_H_

#include "tests/gpu/testing/peer.h"

namespace maypole::cuda {

inline constexpr int kPeerSocket = 3;

// An Answer without its descriptor, which travels beside it.
struct AnswerOnWire {
  CUresult result;
  uint64_t number;
  CUipcMemHandle handle;
  char error[sizeof(Answer::error)];
};

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_TESTING_PEER_WIRE_H_
