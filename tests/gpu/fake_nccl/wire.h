// Call, and the messages between a communicator's ranks and its hub.
//
// Purpose: the format of a rank's calls on a socket.
//
//   rank                               hub (in the process of rank 0)
//     | -- MessageHeader{id, Call}, bytes of input -->  |
//     | <-- MessageHeader{id}, bytes of output -------  |
//
//   Fd listener = Listen(&name);  // a fresh name
//   Fd socket = Connect(name);
//
// Thread contract: functions and values; two threads must not send on one
// socket at the same time.
//
// Invariants: names are in the kernel's abstract namespace, so a process that
// dies leaves nothing behind.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_WIRE_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/system/fd.h"
#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

enum class Kind : int32_t {
  // The host's: they are matched apart from those of streams.
  kInit,
  kConnect,      // before the first collective of a kind
  kConnectSend,  // before the first send to a peer
  kConnectRecv,  // before the first receive from a peer
  kFinalize,
  // Of streams.
  kAllReduce,
  kBroadcast,
  kReduce,
  kReduceScatter,
  kAllGather,
  kSend,
  kRecv,
};
const char* NameOf(Kind kind);
inline bool IsOfHost(Kind kind) { return kind <= Kind::kFinalize; }
// One peer is concerned, not all ranks.
inline bool IsPeerToPeer(Kind kind) {
  return kind >= Kind::kSend || kind == Kind::kConnectSend ||
         kind == Kind::kConnectRecv;
}

struct Call {
  Kind kind;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int32_t peer = -1;  // or the root; kConnect: the kind of collective
  uint64_t count = 0;

  bool operator==(const Call&) const = default;
};

// "ncclAllReduce(count 4, float32, sum)"
std::string Describe(const Call& call);

enum class MessageType : uint32_t {
  kJoin,      // a rank's first; `id` is the rank
  kRequest,   // a rank's
  kLeave,     // a rank's last, if it is not dead
  kAborted,   // a rank's last but for the end of the connection
  kReply,     // the hub's
  kAllGone,   // the hub's: all ranks have left, aborted or died
  kLost,      // the hub's: the rank `id` is gone
  kMismatch,  // the hub's: the bytes say which calls differ
};

struct MessageHeader {
  MessageType type;
  uint32_t unused = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;  // that follow
  Call call = {Kind::kInit};
};

Fd Listen(std::string* name);         // invalid: errno says why
Fd Connect(const std::string& name);  // invalid: errno says why

// False if the other side is gone, or the socket has been shut down.
bool SendBytes(int socket, const void* data, size_t bytes);
bool ReceiveBytes(int socket, void* data, size_t bytes);
// `header.bytes` must be the number of bytes.
bool SendMessage(int socket, const MessageHeader& header, const void* data);
bool ReceiveMessage(int socket, MessageHeader* header,
                    std::vector<std::byte>* data);

std::string RandomName();

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_WIRE_H_
