#include "worker/backend/tls_handshakes.h"

#include <algorithm>

#include "absl/status/statusor.h"

namespace maypole::worker {

void TlsHandshakes::Add(uint64_t tag, PeerSocket* socket) {
  open_.push_back({tag, socket});
  waits_.push_back({socket->fd(), POLLIN, POLLIN});  // the first step is due
}

void TlsHandshakes::Remove(uint64_t tag) {
  for (size_t k = 0; k < open_.size(); ++k) {
    if (open_[k].tag != tag) continue;
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(k));
    waits_.erase(waits_.begin() + static_cast<ptrdiff_t>(k));
    return;
  }
}

std::vector<std::pair<uint64_t, absl::Status>> TlsHandshakes::Step(int ms) {
  std::vector<std::pair<uint64_t, absl::Status>> ended;
  const bool due = std::any_of(waits_.begin(), waits_.end(),
                               [](const pollfd& w) { return w.revents != 0; });
  if (!due) poll(waits_.data(), waits_.size(), ms);
  size_t left = 0;
  for (size_t k = 0; k < open_.size(); ++k) {
    if (waits_[k].revents != 0) {
      const absl::StatusOr<short> events = open_[k].socket->Handshake();
      waits_[k].revents = 0;
      if (events.ok()) waits_[k].events = *events;
      if (!events.ok() || *events == 0) {
        ended.emplace_back(open_[k].tag, events.status());
        continue;
      }
    }
    open_[left] = open_[k];
    waits_[left++] = waits_[k];
  }
  open_.resize(left);
  waits_.resize(left);
  return ended;
}

}  // namespace maypole::worker
