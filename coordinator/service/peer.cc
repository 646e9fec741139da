#include "coordinator/service/peer.h"

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

}  // namespace maypole::coordinator
