#include "tests/gpu/fake_nccl/wire.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/gpu/fake_nccl/combine.h"

namespace maypole::nccl::fake {
namespace {

struct Address {
  explicit Address(const std::string& name) {
    std::memcpy(value.sun_path + 1, name.data(), Length(name));
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                  Length(name));
  }
  static size_t Length(const std::string& name) {
    return std::min(name.size(), sizeof(value.sun_path) - 1);
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&value);
  }

  sockaddr_un value = {.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size;
};

Fd NewSocket() { return Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

}  // namespace

const char* NameOf(Kind kind) {
  constexpr const char* kNames[] = {
      "ncclCommInitRankConfig", "(connect)",        "(connect to send)",
      "(connect to receive)",   "ncclCommFinalize", "ncclAllReduce",
      "ncclBroadcast",          "ncclReduce",       "ncclReduceScatter",
      "ncclAllGather",          "ncclSend",         "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

std::string Describe(const Call& call) {
  if (call.kind == Kind::kConnect) {
    return std::string("the first ") + NameOf(static_cast<Kind>(call.peer));
  }
  if (IsOfHost(call.kind)) return NameOf(call.kind);
  std::string text = std::string(NameOf(call.kind)) + "(count " +
                     std::to_string(call.count) + ", " + NameOf(call.type);
  if (call.kind == Kind::kAllReduce || call.kind == Kind::kReduce ||
      call.kind == Kind::kReduceScatter) {
    text += std::string(", ") + NameOf(call.op);
  }
  if (call.kind == Kind::kBroadcast || call.kind == Kind::kReduce) {
    text += ", root " + std::to_string(call.peer);
  }
  if (call.kind == Kind::kSend || call.kind == Kind::kRecv) {
    text += ", peer " + std::to_string(call.peer);
  }
  return text + ")";
}

std::string RandomName() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return "";
  std::string name = "maypole-fake-nccl-";
  for (const unsigned char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    name += kDigits[byte / 16];
    name += kDigits[byte % 16];
  }
  return name;
}

Fd Listen(std::string* name) {
  *name = RandomName();
  Fd fd = NewSocket();
  const Address address(*name);
  if (bind(fd.get(), address.get(), address.size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return Fd();
  }
  return fd;
}

Fd Connect(const std::string& name) {
  Fd fd = NewSocket();
  const Address address(name);
  if (connect(fd.get(), address.get(), address.size) != 0) return Fd();
  return fd;
}

bool SendBytes(int socket, const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveBytes(int socket, void* data, size_t bytes) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(socket, next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool SendMessage(int socket, const MessageHeader& header, const void* data) {
  return SendBytes(socket, &header, sizeof(header)) &&
         SendBytes(socket, data, header.bytes);
}

bool ReceiveMessage(int socket, MessageHeader* header,
                    std::vector<std::byte>* data) {
  if (!ReceiveBytes(socket, header, sizeof(*header))) return false;
  data->resize(header->bytes);
  return ReceiveBytes(socket, data->data(), data->size());
}

}  // namespace maypole::nccl::fake
