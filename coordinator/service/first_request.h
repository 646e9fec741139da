// FirstRequest: what a caller sends before it has shown that it knows the
// cluster secret.
//
// Purpose: gRPC allocates for any caller's streams, headers and frames: a
// stranger that resets streams as fast as it opens them, or whose headers never
// end, takes gigabytes (CVE-2023-44487, VU#421644; gRPC 1.51 limits neither).
// So gRPC gets a plaintext connection only after this class has read its first
// request and found a credential there. It keeps no state but the bytes, of
// which it accepts kMaxFirstBytes.
//
//   FirstRequest first;
//   send(kServerPreface);
//   if (first.Read(bytes) == FirstRequest::State::kComplete) {
//     const auto status = credentials.CheckStranger(first.Secret().bytes);
//     if (!status.ok()) send(first.Refusal(status));
//     else ...pass first.bytes() to gRPC...
//   }
//
// HTTP/2 (RFC 9113), as a server that has not yet answered:
//
//   frame                     what happens
//   the preface, SETTINGS,    kept for gRPC, which answers
//   WINDOW_UPDATE, PRIORITY,
//   unknown types
//   SETTINGS with ACK         dropped: it answers kServerPreface
//   PING                      dropped; its answer is in TakeReplies()
//   HEADERS                   kComplete if END_HEADERS is set (gRPC's clients
//                             split headers only after 16 KiB)
//   anything else             kMalformed
//
// The secret is a literal in the headers, because at a connection's beginning
// HPACK's tables (RFC 7541) are empty or have other names. Name and value may
// be in Huffman's code: gRPC for Go and for Java use it, gRPC's core does not.
//
// Thread contract: a value; not synchronized.
#ifndef MAYPOLE_COORDINATOR_SERVICE_FIRST_REQUEST_H_
#define MAYPOLE_COORDINATOR_SERVICE_FIRST_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

// A first request of gRPC takes about 500 bytes; the secret at most 255.
inline constexpr size_t kMaxFirstBytes = 4096;

// An empty SETTINGS frame: clients of gRPC call only after it. It sets nothing,
// so it does not affect gRPC's own settings, which follow.
inline constexpr absl::string_view kServerPreface("\0\0\0\4\0\0\0\0\0", 9);

// A value of a header, as it was sent.
struct HeaderValue {
  std::string bytes;  // also empty if there is no such header
  bool huffman = false;
};

class FirstRequest {
 public:
  enum class State { kPreface, kFrames, kComplete, kMalformed };

  // Must not be called after kComplete or kMalformed.
  State Read(absl::string_view bytes);
  State state() const { return state_; }

  // For gRPC: all that was read, except what was dropped.
  const std::string& bytes() const { return bytes_; }
  // The replies to send.
  std::string TakeReplies();

  // Of a complete request:
  // The header kSecretMetadata.
  HeaderValue Secret() const;
  // The frames that end the call with this status, and the connection.
  std::string Refusal(const grpc::Status& status) const;

 private:
  bool ReadFrame();  // false: needs more bytes, or it is the last one

  State state_ = State::kPreface;
  std::string bytes_;
  size_t read_ = 0;   // bytes_ up to here are complete frames
  size_t total_ = 0;  // with those that were dropped
  std::string replies_;
  uint32_t stream_ = 0;
  size_t headers_at_ = 0;  // in bytes_
  size_t headers_size_ = 0;
};

// As HPACK encodes it with Huffman's code; for printable ASCII.
std::string HuffmanEncode(absl::string_view text);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_FIRST_REQUEST_H_
