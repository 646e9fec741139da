// ElectionFlags: the flags of a maypole-coordinator that is one of several, of
// which one leads.
//
// Thread contract: values and functions; ReadElectionFlags() reads files.
#ifndef MAYPOLE_COORDINATOR_ELECTION_FLAGS_H_
#define MAYPOLE_COORDINATOR_ELECTION_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/command_line/command_line.h"
#include "common/program/address.h"
#include "common/program/tls.h"
#include "coordinator/election/boot_time.h"

namespace maypole::coordinator {

struct ElectionFlags {
  std::vector<std::string> etcd;  // HOST:PORT; empty: no election
  TlsOptions tls;                 // to etcd
  std::string prefix;             // of the keys
  // How executors reach this coordinator; empty: the address at which it
  // listens.
  std::string advertise;
  BootInstant ttl{};

  bool enabled() const { return !etcd.empty(); }
};

// The flags' values before they are converted.
struct ElectionTexts {
  std::string etcd;
  std::string prefix = "/maypole/default";
  std::string advertise;
  absl::Duration ttl = absl::Seconds(5);
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
};

void DefineElection(ElectionTexts* texts, CommandLine* line);
// listen: the address at which the coordinator will listen.
absl::StatusOr<ElectionFlags> ReadElectionFlags(const ElectionTexts& texts,
                                                const Address& listen);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_FLAGS_H_
