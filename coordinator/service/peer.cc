#include "coordinator/service/peer.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/address.h"

namespace maypole::coordinator {
namespace {

constexpr absl::string_view kMapped = "::ffff:";

}  // namespace

std::string PeerAddress(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") &&
      !absl::ConsumePrefix(&peer, "ipv6:")) {
    return "";
  }
  // gRPC encodes the address as part of a URI.
  std::string text = absl::StrReplaceAll(
      peer,
      {{"%5B", "["}, {"%5b", "["}, {"%5D", "]"}, {"%5d", "]"}, {"%25", "%"}});
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return "";
  text.resize(colon);
  text = WithoutBrackets(text);
  // An IPv4 peer of a socket for IPv4 and IPv6.
  if (absl::string_view rest = text;
      absl::ConsumePrefix(&rest, kMapped) && rest.find('.') != rest.npos) {
    text = std::string(rest);
  }
  return IsNumericHost(text) ? text : "";
}

std::string PeerOf(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  if (getpeername(socket, address, &size) != 0) return "";
  const bool v6 = peer.ss_family == AF_INET6;
  const int port = ntohs(v6 ? reinterpret_cast<sockaddr_in6&>(peer).sin6_port
                            : reinterpret_cast<sockaddr_in&>(peer).sin_port);
  const std::string text = absl::StrCat(
      v6 ? "ipv6:" : "ipv4:", JoinHostPort(NumericHost(address), port));
  const std::string host = PeerAddress(text);
  const bool mapped = v6 && host.find(':') == host.npos;
  return mapped ? absl::StrCat("ipv4:", JoinHostPort(host, port)) : text;
}

bool SamePeer(absl::string_view a, absl::string_view b) {
  const auto port = [](absl::string_view peer) {
    return peer.substr(std::min(peer.rfind(':'), peer.size()));
  };
  const auto host = [](absl::string_view peer) {
    const std::string address = PeerAddress(peer);
    return address.substr(0, address.find('%'));
  };
  return port(a) == port(b) && host(a) == host(b);
}

}  // namespace maypole::coordinator
