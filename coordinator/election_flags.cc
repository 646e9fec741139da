#include "coordinator/election_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/address.h"
#include "common/command_line/daemon_value.h"

namespace maypole::coordinator {
namespace {

constexpr size_t kMaxPrefixBytes = 255;
constexpr absl::Duration kShortestTtl = absl::Seconds(1);
constexpr absl::Duration kLongestTtl = absl::Minutes(10);

absl::Status CheckPrefix(const std::string& prefix) {
  if (prefix.size() > 1 && prefix.size() <= kMaxPrefixBytes &&
      prefix.front() == '/' && prefix.back() != '/') {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--etcd_prefix=", prefix,
      " must begin with a slash, not end with one, and have at most ",
      kMaxPrefixBytes,
      " bytes; coordinators with the same prefix elect one "
      "leader"));
}

absl::Status CheckAdvertise(const std::string& advertise,
                            const Address& listen) {
  if (advertise.empty()) {
    const std::string host = WithoutBrackets(listen.host);
    if (host != "0.0.0.0" && host != "::") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen=", listen.Text(),
        " does not say at which address other machines reach this "
        "coordinator; with --etcd, give --advertise=HOST:PORT, too"));
  }
  const auto address = ParseAddress("--advertise", advertise);
  if (!address.ok()) return address.status();
  if (address->port != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--advertise=", advertise, " must have the port that executors call"));
}

absl::StatusOr<TlsOptions> ReadTls(const ElectionTexts& texts) {
  absl::StatusOr<TlsOptions> tls =
      ReadTlsFiles(texts.tls_ca, texts.tls_cert, texts.tls_key);
  if (tls.ok()) return tls;
  // The message names the flags for the coordinator's own connections.
  return absl::Status(
      tls.status().code(),
      absl::StrReplaceAll(tls.status().message(), {{"--tls_", "--etcd_tls_"}}));
}

}  // namespace

void DefineElection(ElectionTexts* texts, CommandLine* line) {
  line->Add({"--etcd"}, TextValue(&texts->etcd, "HOST:PORT,..."),
            "members of an etcd cluster, with which several coordinators elect "
            "one that leads; the others are standbys. Empty: this coordinator "
            "is the only one");
  line->Add({"--etcd_prefix"}, TextValue(&texts->prefix, "PREFIX"),
            "prefix of the keys in etcd; the same for all coordinators of a "
            "cluster");
  line->Add({"--advertise"},
            TextValue(&texts->advertise, "HOST:PORT")
                .WithDefault("the address of --listen"),
            "with --etcd: address at which executors reach this coordinator, "
            "as other coordinators tell them");
  line->Add({"--lease_ttl"},
            DurationValue(&texts->ttl, kShortestTtl, kLongestTtl),
            "with --etcd: how long the others wait for a leader that is gone, "
            "in whole seconds. A leader that cannot reach etcd ends before "
            "that");
  line->Add({"--etcd_tls_ca"}, FileValue(&texts->tls_ca),
            "file (PEM) with etcd's CA. With --etcd_tls_cert and "
            "--etcd_tls_key, calls to etcd use TLS");
  line->Add({"--etcd_tls_cert"}, FileValue(&texts->tls_cert),
            "file (PEM) with this program's certificate for etcd, of that CA");
  line->Add({"--etcd_tls_key"}, FileValue(&texts->tls_key),
            "file (PEM, mode 0600) with that certificate's key");
}

absl::StatusOr<ElectionFlags> ReadElectionFlags(const ElectionTexts& texts,
                                                const Address& listen) {
  ElectionFlags flags;
  if (texts.etcd.empty()) {
    for (const auto& [flag, text] :
         {std::pair("--advertise", &texts.advertise),
          std::pair("--etcd_tls_ca", &texts.tls_ca),
          std::pair("--etcd_tls_cert", &texts.tls_cert),
          std::pair("--etcd_tls_key", &texts.tls_key)}) {
      if (text->empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " has no effect without --etcd"));
    }
    return flags;
  }
  const auto endpoints = ParseAddresses("--etcd", texts.etcd);
  if (!endpoints.ok()) return endpoints.status();
  for (const Address& a : *endpoints) flags.etcd.push_back(a.Text());
  absl::Status status = CheckPrefix(texts.prefix);
  if (status.ok()) status = CheckAdvertise(texts.advertise, listen);
  if (!status.ok()) return status;
  if (absl::Trunc(texts.ttl, absl::Seconds(1)) != texts.ttl) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lease_ttl=", absl::FormatDuration(texts.ttl),
                     " must be a whole number of seconds, as etcd's leases"));
  }
  auto tls = ReadTls(texts);
  if (!tls.ok()) return tls.status();
  flags.tls = *std::move(tls);
  flags.prefix = texts.prefix;
  flags.advertise = texts.advertise;
  flags.ttl = absl::ToChronoNanoseconds(texts.ttl);
  return flags;
}

}  // namespace maypole::coordinator
