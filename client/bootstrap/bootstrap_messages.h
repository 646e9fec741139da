// What a rank and its node service say to each other. Pure.
//
// Purpose: under a launcher that is not maypolerun the ranks of a node have
// nobody to start an agent for them. One of them starts the node service
// (client/launcher/service/service.h); each connects to it and stays connected
// for its life:
//
//   rank                                    node service
//    |-- place (who I am) ------------------->|
//    |<-- publish TERMS (rank 0 only) --------|  several nodes whose launcher
//    |-- published -------------------------->|  carries values from rank 0
//    |<-- get (one rank of another node) -----|  to the other nodes
//    |-- got TERMS -------------------------->|
//    |-- failed TEXT (instead of both) ------>|
//    |<-- agent SOCKET TOKEN  or  error ------|
//    |-- bye (the process exits) ------------>|  closes, after it has cleaned
//                                                up if this was the last one
//
// One message of a SOCK_SEQPACKET socket is a verb and its arguments, a line
// each.
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_MESSAGES_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_MESSAGES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/limits.h"
#include "common/status.h"

namespace maypole {

inline constexpr size_t kMaxBootstrapBytes = 8192;
inline constexpr char kServiceSocket[] = "service.sock";
inline constexpr char kServiceLock[] = "lock";
inline constexpr char kServiceLog[] = "log";
// The service's descriptors when it is started.
inline constexpr int kServiceReportFd = 3;  // one line: "ready", or what failed
inline constexpr int kServiceLockFd = 4;
inline constexpr char kServiceReady[] = "ready";

inline constexpr char kSayPlace[] = "place";
inline constexpr char kSayPublish[] = "publish";
inline constexpr char kSayPublished[] = "published";
inline constexpr char kSayGet[] = "get";
inline constexpr char kSayGot[] = "got";
inline constexpr char kSayFailed[] = "failed";
inline constexpr char kSayAgent[] = "agent";
inline constexpr char kSayError[] = "error";
inline constexpr char kSayBye[] = "bye";

// How ranks on several nodes learn where the coordinator is.
enum class ExchangeKind : uint8_t {
  kNone = 0,     // they cannot
  kCarried = 1,  // rank 0 publishes it through the launcher
  kDerived = 2,  // from names and a secret that all nodes know
};

struct RankMessage {
  uint32_t version = kProtocolVersion;
  std::string job;
  std::string node;  // name, unique within the job
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int start_timeout_seconds = 120;
  ExchangeKind exchange = ExchangeKind::kNone;
  std::string why_none;  // kNone: what is missing
  std::string head;      // kDerived: the host whose node has the coordinator
  bool at_head = false;  // kDerived: it is this node

  bool one_node() const { return local_size == size; }
};

// What all nodes of a job have to agree on.
struct BootstrapInfo {
  std::vector<std::string> coordinators;  // HOST:PORT, all of one; empty:
                                          // agents that run already
  std::string secret;                     // of that coordinator; empty: none
  std::string token;                      // of the job
};

std::string Say(std::string_view verb,
                const std::vector<std::string>& arguments = {});
// The verb and its arguments.
std::vector<std::string> Lines(std::string_view message);

std::string Encode(const RankMessage& place);
Status Decode(std::string_view message, RankMessage* out);
std::string Encode(const BootstrapInfo& terms);
Status Decode(std::string_view text, BootstrapInfo* out);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_MESSAGES_H_
