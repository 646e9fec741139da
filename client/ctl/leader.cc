#include "client/ctl/leader.h"

#include <future>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/program/address.h"

namespace maypole::ctl {
namespace {

struct Asked {
  std::unique_ptr<CoordinatorClient> client;
  absl::StatusOr<proto::StatusReply> reply;
};

// "standby", or why it cannot be called.
std::string Note(const absl::StatusOr<proto::StatusReply>& reply) {
  return reply.ok() ? "standby" : std::string(reply.status().message());
}

absl::StatusOr<std::vector<Asked>> AskAll(
    const CtlOptions& options, const std::vector<Address>& addresses) {
  std::vector<Asked> all;
  for (const Address& address : addresses) {
    CtlOptions one = options;
    one.coordinator = address.Text();
    auto client = CoordinatorClient::Make(one);
    if (!client.ok()) return client.status();
    all.push_back({*std::move(client), absl::UnknownError("not asked")});
  }
  std::vector<std::future<void>> asking;
  for (Asked& asked : all) {
    asking.push_back(std::async(std::launch::async, [&asked] {
      asked.reply = asked.client->Status("");
    }));
  }
  for (std::future<void>& one : asking) one.get();
  return all;
}

}  // namespace

absl::StatusOr<Found> FindLeader(const CtlOptions& options) {
  const auto addresses = ParseAddresses("--coordinator", options.coordinator);
  if (!addresses.ok()) return addresses.status();
  Found found;
  if (addresses->size() == 1) {
    auto client = CoordinatorClient::Make(options);
    if (!client.ok()) return client.status();
    found.leader = *std::move(client);
    return found;
  }
  auto all = AskAll(options, *addresses);
  if (!all.ok()) return all.status();
  std::string notes;
  for (Asked& asked : *all) {
    if (asked.reply.ok() && asked.reply->role() != kStandby &&
        found.leader == nullptr) {
      found.leader = std::move(asked.client);
      continue;
    }
    const std::string& address = asked.client->address();
    found.others.push_back({address, Note(asked.reply)});
    // An error names the address.
    absl::StrAppend(&notes, notes.empty() ? "" : "; ",
                    asked.reply.ok() ? absl::StrCat(address, " is a standby")
                                     : Note(asked.reply));
  }
  if (found.leader != nullptr) return found;
  return absl::UnavailableError(
      absl::StrCat("no coordinator leads now: ", notes));
}

}  // namespace maypole::ctl
