#include "worker/backend/handshake_io.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/address.h"

namespace maypole::worker::handshake {
namespace {

constexpr size_t kMaxHost = 64;
constexpr size_t kMaxEndpoints = 15;
// The first byte: connections in the lower four bits, encryption, UCX.
constexpr uint32_t kEncryptionShift = 4;
constexpr uint32_t kUcxShift = 6;

absl::Status Errno() { return absl::UnavailableError(std::strerror(errno)); }

// Waits for `events`.
absl::Status Await(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd wait{fd, events, 0};
    const int n = poll(
        &wait, 1, static_cast<int>(std::max<int64_t>(left.count() + 1, 0)));
    if (n > 0) return absl::OkStatus();
    if (n == 0) return absl::UnavailableError("no answer in time");
    if (errno != EINTR) return Errno();
  }
}

}  // namespace

std::string WriteOffer(const Offer& offer) {
  std::string out;
  // With neither, what versions that know neither send and understand.
  out.push_back(static_cast<char>(offer.connections |
                                  static_cast<uint32_t>(offer.encryption)
                                      << kEncryptionShift |
                                  uint32_t{offer.ucx} << kUcxShift));
  out.append(reinterpret_cast<const char*>(offer.secret.data()),
             offer.secret.size());
  for (const Endpoint& e : offer.endpoints) {
    if (&e != &offer.endpoints.front()) out.push_back('\0');
    out.push_back(static_cast<char>(e.port >> 8));
    out.push_back(static_cast<char>(e.port));
    out += e.host;
  }
  return out;
}

bool ReadOffer(const std::string& bytes, Offer* offer) {
  constexpr size_t kSecret = sizeof(Secret);
  if (bytes.size() <= kSecret + 1) return false;
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(bytes[i]);
  };
  const uint32_t encryption = byte(0) >> kEncryptionShift & 3;
  if (encryption > static_cast<uint32_t>(EncryptionMode::kRequire) ||
      byte(0) >> (kUcxShift + 1) != 0) {
    return false;
  }
  offer->connections = byte(0) & ((1u << kEncryptionShift) - 1);
  offer->encryption = static_cast<EncryptionMode>(encryption);
  offer->ucx = (byte(0) >> kUcxShift & 1) != 0;
  std::memcpy(offer->secret.data(), bytes.data() + 1, kSecret);
  for (size_t at = 1 + kSecret; at < bytes.size();) {
    if (bytes.size() - at < 3) return false;
    Endpoint& e = offer->endpoints.emplace_back();
    e.port = byte(at) << 8 | byte(at + 1);
    const size_t end = std::min(bytes.find('\0', at + 2), bytes.size());
    e.host = bytes.substr(at + 2, end - at - 2);
    // A name would need a look-up, which cannot be cancelled.
    if (e.host.size() > kMaxHost || !IsNumericHost(e.host)) return false;
    at = end + 1;
    if (at == bytes.size()) return false;  // announces one more
  }
  return !offer->endpoints.empty() && offer->endpoints.size() <= kMaxEndpoints;
}

absl::StatusOr<Fd> Listen(const std::string& host, int backlog) {
  if (host.empty()) return absl::UnavailableError("no address");
  int error = 0;
  const Addresses resolved = Resolve(host, 0, 0, &error);
  if (resolved == nullptr) return absl::UnavailableError(gai_strerror(error));
  const addrinfo& info = *resolved;
  Fd fd(socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0 ||
      listen(fd.get(), backlog) != 0) {
    return Errno();
  }
  return fd;
}

Endpoint LocalEndpoint(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "0";
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host),
              port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, std::atoi(port)};
}

absl::StatusOr<Fd> StartCall(const Endpoint& to, const std::string& own_host) {
  int error = 0;
  const Addresses resolved = Resolve(to.host, to.port, AI_NUMERICHOST, &error);
  if (resolved == nullptr) return absl::UnavailableError(gai_strerror(error));
  const addrinfo& info = *resolved;
  const auto failed = [&to](const std::string& from) {
    return absl::UnavailableError(absl::StrCat(
        JoinHostPort(to.host, to.port), from, ": ", std::strerror(errno)));
  };
  Fd fd(socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return failed("");
  if (!own_host.empty()) {
    const Addresses own = Resolve(own_host, 0, AI_NUMERICHOST, &error);
    if (own == nullptr) return absl::UnavailableError(gai_strerror(error));
    if (bind(fd.get(), own->ai_addr, own->ai_addrlen) != 0) {
      return failed(absl::StrCat(" from ", own_host));
    }
  }
  if (connect(fd.get(), info.ai_addr, info.ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    return failed("");
  }
  return fd;
}

absl::Status FinishCall(int fd, Deadline deadline) {
  if (absl::Status s = Await(fd, POLLOUT, deadline); !s.ok()) return s;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const void* data, size_t bytes,
                      Deadline deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (absl::Status s = Await(fd, POLLOUT, deadline); !s.ok()) return s;
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return Errno();
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, void* data, size_t bytes, Deadline deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (absl::Status s = Await(fd, POLLIN, deadline); !s.ok()) return s;
    const ssize_t n = recv(fd, at, bytes, 0);
    if (n == 0) return absl::UnavailableError("it has hung up");
    if (n < 0 && errno != EINTR) return Errno();
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

Got ReadSome(int fd, void* data, size_t bytes, size_t* read) {
  while (*read < bytes) {
    const ssize_t n =
        recv(fd, static_cast<char*>(data) + *read, bytes - *read, MSG_DONTWAIT);
    if (n == 0) return Got::kEnd;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN ? Got::kPart : Got::kEnd;
    *read += static_cast<size_t>(n);
  }
  return Got::kAll;
}

}  // namespace maypole::worker::handshake
