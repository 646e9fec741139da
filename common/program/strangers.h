// Strangers: a server's connections that have not yet shown a right to be
// served, of which it keeps a bounded number.
//
// Purpose: any host that can reach a port can open connections. If there are
// more than `most`, the oldest connection of the network with the most
// connections must go: a crowd from one address displaces itself, and a peer
// that is served in milliseconds is not displaced.
//
//   Strangers<Connection> strangers(64); const auto it =
//   strangers.Add(NetworkOf(fd.get())); it->value.fd = ...; if (const auto
//   surplus = strangers.Surplus()) ...close and Erase(*surplus)
//   strangers.Erase(it); // it has shown a right, or is gone
//
// Thread contract: not synchronized.
//
// Invariant: begin() to end() is the order of Add().
#ifndef MAYPOLE_COMMON_PROGRAM_STRANGERS_H_
#define MAYPOLE_COMMON_PROGRAM_STRANGERS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <unordered_map>

namespace maypole {

// What the peer of a socket counts as: an IPv4 address, or a /64 of IPv6, which
// is what one machine usually has for itself. 0: another family, or no peer.
uint64_t NetworkOf(int socket);

template <typename T>
class Strangers {
 public:
  struct Stranger {
    uint64_t network = 0;
    T value;
  };
  using Iterator = typename std::list<Stranger>::iterator;

  explicit Strangers(size_t most) : most_(most) {}

  Iterator Add(uint64_t network) {
    ++counts_[network];
    list_.emplace_back().network = network;
    return std::prev(list_.end());
  }
  Iterator Erase(Iterator stranger) {
    const auto count = counts_.find(stranger->network);
    if (--count->second == 0) counts_.erase(count);
    return list_.erase(stranger);
  }
  // nullopt: there are not too many.
  std::optional<Iterator> Surplus() {
    if (list_.size() <= most_) return std::nullopt;
    auto largest = counts_.begin();
    for (auto it = counts_.begin(); it != counts_.end(); ++it) {
      if (it->second > largest->second) largest = it;
    }
    Iterator oldest = list_.begin();
    while (oldest->network != largest->first) ++oldest;
    return oldest;
  }

  Iterator begin() { return list_.begin(); }
  Iterator end() { return list_.end(); }
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }

 private:
  const size_t most_;
  std::list<Stranger> list_;  // the oldest first
  std::unordered_map<uint64_t, size_t> counts_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_STRANGERS_H_
