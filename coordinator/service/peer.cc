#include "coordinator/service/peer.h"

#include <arpa/inet.h>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace maypole::coordinator {
namespace {

constexpr absl::string_view kMapped = "::ffff:";

bool IsAddress(const std::string& text) {
  in6_addr parsed;
  // The zone of a link-local address ("%eth0") is no part of what is parsed.
  const std::string plain = text.substr(0, text.find('%'));
  return inet_pton(AF_INET, plain.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, plain.c_str(), &parsed) == 1;
}

}  // namespace

std::string PeerAddress(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") &&
      !absl::ConsumePrefix(&peer, "ipv6:")) {
    return "";
  }
  // gRPC writes it as part of a URI.
  std::string text = absl::StrReplaceAll(
      peer,
      {{"%5B", "["}, {"%5b", "["}, {"%5D", "]"}, {"%5d", "]"}, {"%25", "%"}});
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return "";
  text.resize(colon);
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  // An IPv4 peer of a socket that takes both.
  if (absl::string_view rest = text;
      absl::ConsumePrefix(&rest, kMapped) && rest.find('.') != rest.npos) {
    text = std::string(rest);
  }
  return IsAddress(text) ? text : "";
}

}  // namespace maypole::coordinator
