#include "coordinator/election/leadership.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::coordinator {

Leadership::Leader Leadership::leader() const {
  std::lock_guard lock(mutex_);
  return leader_;
}

absl::Status Leadership::NotLeader() const {
  std::lock_guard lock(mutex_);
  const std::string self = absl::StrCat("the coordinator ", own_address_);
  if (over()) {
    return absl::UnavailableError(absl::StrCat(
        self, " has led, and leads no more; call another coordinator"));
  }
  if (leader_.address.empty()) {
    return absl::UnavailableError(absl::StrCat(
        self,
        " is a standby, and no coordinator leads now (a new leader is elected "
        "when most members of etcd can be reached); try again"));
  }
  return absl::UnavailableError(
      absl::StrCat(self, " is a standby; call the leader, ", leader_.address));
}

void Leadership::SetOwnAddress(std::string address) {
  std::lock_guard lock(mutex_);
  own_address_ = std::move(address);
}

void Leadership::Begin(uint64_t term, BootInstant until) {
  std::lock_guard lock(mutex_);
  if (over()) return;
  leader_ = {own_address_, term};
  term_ = term;  // before until_: a leader always has a term
  until_ = until.count();
}

void Leadership::Prolong(BootInstant until) {
  std::lock_guard lock(mutex_);
  if (!over()) until_ = until.count();
}

void Leadership::Follow(Leader leader) {
  std::lock_guard lock(mutex_);
  leader_ = std::move(leader);
}

void Leadership::End() {
  std::lock_guard lock(mutex_);
  over_ = true;
  until_ = 0;
}

}  // namespace maypole::coordinator
