// How messages of proto/node.proto are encoded in ssh's byte streams.
//
// Purpose: the stream from the node begins with a preamble, a line that states
// its version, so that different versions detect each other. Output that a
// shell prints before the preamble is skipped. Then frames follow in both
// directions: a length (a varint) and that many bytes of a message.
//
// Pure: bytes in, messages out. Neither side trusts the other: a frame that is
// too long or not a message is an error. An incomplete frame is not; the reader
// waits for the rest.
//
// Thread contract: values; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_PROTOCOL_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_PROTOCOL_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "client/launcher/job/supervision.h"
#include "common/status.h"
#include "proto/node.pb.h"

namespace maypole::launcher {

inline constexpr int kNodeProtocol = 2;  // sent in the preamble
// The largest frames; a job's frame contains the environment.
inline constexpr size_t kMaxJobFrameBytes = 16 << 20;
inline constexpr size_t kMaxNodeFrameBytes = 1 << 20;
// The longest output before the preamble.
inline constexpr size_t kMaxChatterBytes = 64 << 10;

// Messages about a rank.
FromNode OutputOf(int rank, RankOutput::Stream stream, std::string_view bytes);
FromNode EndOf(int rank, const Exit& exit);
Exit ExitOf(const RankEnded& ended);

std::string EncodeFrame(const google::protobuf::MessageLite& message);

// The error "invalid data came through ssh (WHAT)".
Status Garbled(const std::string& what);

// Cuts a stream of bytes into messages.
class FrameReader {
 public:
  explicit FrameReader(size_t max_frame) : max_frame_(max_frame) {}

  void Feed(std::string_view bytes) { buffer_ += bytes; }
  // Sets *found to true and *out to the next message, or *found to false if
  // more bytes are needed. After an error, every further call returns that
  // error.
  Status Next(google::protobuf::MessageLite* out, bool* found);

 private:
  size_t max_frame_;
  std::string buffer_;
  size_t taken_ = 0;  // of buffer_
  Status broken_;
};

std::string Preamble();

// Skips output before the preamble, and reads the preamble.
class PreambleReader {
 public:
  // Returns true when the preamble is complete, with the bytes after it in
  // *rest. Do not call it again after that.
  bool Feed(std::string_view bytes, std::string* rest);
  // True if more than kMaxChatterBytes came without a preamble.
  bool overrun() const { return chatter_.size() > kMaxChatterBytes; }
  // The output before the preamble, so far.
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
