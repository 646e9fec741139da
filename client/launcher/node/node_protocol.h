// How the messages of proto/node.proto travel through ssh.
//
// Purpose: a preamble, then frames: a length (a varint) and that many bytes of
// a message. The preamble is a line; what a shell prints before it is skipped,
// and it tells the version, so that two that differ see that.
//
// Pure: bytes in, messages out. Neither side trusts the other's bytes: what is
// too long or no message is an error, and a frame that is cut off is waited
// for.
//
// Thread contract: values; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_PROTOCOL_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_PROTOCOL_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"
#include "proto/node.pb.h"

namespace maypole::launcher {

inline constexpr int kNodeProtocol = 2;  // told in the preamble
// The largest frames: a job brings the environment with it.
inline constexpr size_t kMaxJobFrameBytes = 16 << 20;
inline constexpr size_t kMaxNodeFrameBytes = 1 << 20;
// What may stand before the preamble.
inline constexpr size_t kMaxChatterBytes = 64 << 10;

std::string EncodeFrame(const google::protobuf::MessageLite& message);

// An error about what came through ssh: "... makes no sense (what)".
Status Garbled(const std::string& what);

// A stream of bytes, cut into messages.
class FrameReader {
 public:
  explicit FrameReader(size_t max_frame) : max_frame_(max_frame) {}

  void Feed(std::string_view bytes) { buffer_ += bytes; }
  // *found: *out is the next message; else more bytes are needed. After an
  // error there is nothing more to be had.
  Status Next(google::protobuf::MessageLite* out, bool* found);

 private:
  size_t max_frame_;
  std::string buffer_;
  size_t taken_ = 0;  // of buffer_
  Status broken_;
};

std::string Preamble();

// Skips what comes before the preamble, and reads it.
class PreambleReader {
 public:
  // True once it was found; *rest: what followed it.
  bool Feed(std::string_view bytes, std::string* rest);
  // It is not to be expected any more.
  bool overrun() const { return chatter_.size() > kMaxChatterBytes; }
  // What came before it, so far.
  const std::string& chatter() const { return chatter_; }

  int protocol() const { return protocol_; }
  const std::string& version() const { return version_; }

 private:
  std::string chatter_;
  int protocol_ = 0;
  std::string version_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_PROTOCOL_H_
