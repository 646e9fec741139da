// What maypolerun and the maypolerun that it starts on another host say to
// each other through ssh's stdin and stdout.
//
//   head -> node   NodeJob, StartRanks, SignalRanks; end of file: end all
//   node -> head   preamble, NodeHello, NodeReady, then RankStarted,
//                  RankOutput, RankEnded, DaemonLost; or NodeRefused
//
// A frame is a length (4 bytes, little endian) of what follows, the number of
// the message (1 byte) and its fields: numbers of 4 bytes, texts and lists with
// their length before them. The preamble is a line; what a shell prints before
// it is skipped, and it tells the version, so that two that differ see that.
//
// Pure: bytes in, messages out. Neither side trusts the other's bytes: what is
// cut off, too long or of no meaning is an error, never more.
//
// Thread contract: values; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_PROTOCOL_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "client/launcher/supervision.h"
#include "common/status.h"

namespace maypole::launcher {

inline constexpr int kNodeProtocol = 1;  // told in the preamble
// The largest frames: a job brings the environment with it.
inline constexpr size_t kMaxJobFrameBytes = 16 << 20;
inline constexpr size_t kMaxNodeFrameBytes = 1 << 20;
// What may stand before the preamble.
inline constexpr size_t kMaxChatterBytes = 64 << 10;
inline constexpr int kLogOfTheNode = -1;  // RankOutput: the agent's lines

struct NodeJob {
  int32_t protocol = kNodeProtocol;
  std::string host;  // the node's, as the user named it
  int32_t node = 0;
  int32_t nodes = 0;
  int32_t ranks = 0;
  int32_t first_rank = 0;
  int32_t local_size = 0;
  std::string job;
  std::string token;
  int32_t start_timeout_s = 0;
  std::string directory;                 // where the ranks run
  std::vector<std::string> environment;  // NAME=value, on top of the node's own
  std::vector<std::string> command;
  bool verbose = false;
  bool start_agent = false;               // a maypole-worker for this job
  bool running_agent = false;             // or: one that runs on the host
  std::string agent_socket;               // of that one; empty: the default
  std::vector<std::string> coordinators;  // HOST:PORT, to be tried in order
  std::string secret;                     // of the coordinator; empty: none
  std::string network;                    // address for other nodes
  std::vector<std::string> interfaces;    // or: of the first of these
};
struct StartRanks {};
struct SignalRanks {
  int32_t signal = 0;
  bool hurry = false;  // maypolerun is being interrupted
};

struct NodeHello {
  std::string head_address;  // as the node sees maypolerun's host
};
struct NodeReady {
  std::string agent;  // "pid=5 socket=... metrics=...", for --verbose
};
struct NodeRefused {
  std::string why;  // nothing runs there
};
struct RankStarted {
  int32_t rank = 0;
  int32_t pid = 0;
};
struct RankOutput {
  int32_t rank = 0;
  int32_t stream = 0;  // 0: stdout, 1: stderr
  std::string bytes;
};
struct RankEnded {
  int32_t rank = 0;
  bool signaled = false;
  int32_t value = 0;
};
struct DaemonLost {
  std::string what;
};

// The order gives the numbers: new ones go to the end.
using NodeMessage =
    std::variant<NodeJob, StartRanks, SignalRanks, NodeHello, NodeReady,
                 NodeRefused, RankStarted, RankOutput, RankEnded, DaemonLost>;

std::string EncodeFrame(const NodeMessage& message);

// A stream of bytes, cut into messages.
class FrameReader {
 public:
  explicit FrameReader(size_t max_frame) : max_frame_(max_frame) {}

  void Feed(std::string_view bytes) { buffer_ += bytes; }
  // OK and *out empty: more bytes are needed. After an error there is nothing
  // more to be had.
  Status Next(std::optional<NodeMessage>* out);

 private:
  size_t max_frame_;
  std::string buffer_;
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

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_PROTOCOL_H_
