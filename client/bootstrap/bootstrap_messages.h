// The messages between a rank and its node service. Pure.
//
// Purpose: under a launcher other than maypolerun nothing starts an agent for
// the ranks of a node. So one of them starts the node service
// (client/launcher/service/service.h); each connects to it and stays connected
// until it exits:
//
//   rank                                    node service
//    |-- place (its rank, job, node) -------->|
//    |<-- publish TERMS (rank 0 only) --------|  several nodes whose launcher
//    |-- published -------------------------->|  carries values from rank 0
//    |<-- get (one rank of another node) -----|  to the other nodes
//    |-- got TERMS -------------------------->|
//    |-- failed TEXT (instead of these two) ->|
//    |<-- agent SOCKET TOKEN  or  error ------|
//    |-- bye (the process exits) ------------>|  closes the connection; after
//                                                the last rank's bye, it first
//                                                cleans up
//
// A message is one packet of a SOCK_SEQPACKET socket: a verb and its arguments,
// one per line.
//
// Versions (common/wire/versions.h): in every version of `place` the first
// argument is the oldest version that the rank speaks, and the last argument
// the newest.
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
#include "common/wire/versions.h"

namespace maypole {

inline constexpr size_t kMaxBootstrapBytes = 8192;
inline constexpr char kServiceSocket[] = "service.sock";
inline constexpr char kServiceLock[] = "lock";
inline constexpr char kServiceLog[] = "log";
// Descriptors that the service inherits.
inline constexpr int kServiceReportFd = 3;  // one line: "ready", or an error
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
  kNone = 0,     // they have no way to learn it
  kCarried = 1,  // rank 0 publishes it through the launcher
  kDerived = 2,  // they derive it from names and a secret that all nodes know
};

struct RankMessage {
  VersionRange versions = kProtocolVersions;
  std::string job;
  std::string node;  // name, unique within the job
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int start_timeout_seconds = 120;
  ExchangeKind exchange = ExchangeKind::kNone;
  std::string why_none;  // kNone: what is missing
  std::string head;      // kDerived: the host that runs the coordinator
  bool at_head = false;  // kDerived: this node is the head

  bool one_node() const { return local_size == size; }
};

// What rank 0 publishes to all nodes of the job.
struct BootstrapInfo {
  std::vector<std::string> coordinators;  // HOST:PORT; all are addresses of the
                                          // same coordinator. Empty: the nodes
                                          // use agents that already run
  std::string secret;                     // the coordinator's; empty: none
  std::string token;                      // the job's
};

// Makes a message of the verb and its arguments.
std::string Say(std::string_view verb,
                const std::vector<std::string>& arguments = {});
// Splits a message into its verb and arguments.
std::vector<std::string> Lines(std::string_view message);

std::string Encode(const RankMessage& place);
Status Decode(std::string_view message, RankMessage* out);
std::string Encode(const BootstrapInfo& info);
Status Decode(std::string_view text, BootstrapInfo* out);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_MESSAGES_H_
