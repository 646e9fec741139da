// StoreChoice: whether what a rank stages goes through its cache or past it.
//
// Purpose: which is faster is a matter of the machine and of the moment. Cached
// stores win while the cores of a node are near each other; when moving freshly
// written lines between them is slow, stores past the cache do (up to four
// times; docs/benchmarks.md tells near and far rounds apart). So it is
// measured: of every 32 large runs two are tried out, one with each kind; the
// others use the better.
//
// All ranks of a node see the same large runs in the same order, so they try
// the same kind at the same time: what is measured is what all of them do. The
// choice in between is each rank's own.
//
// Thread contract: one thread at a time. No clock inside.
#ifndef MAYPOLE_CLIENT_ENGINE_STORE_CHOICE_H_
#define MAYPOLE_CLIENT_ENGINE_STORE_CHOICE_H_

#include <cstdint>

namespace maypole {

enum class Store { kCached, kStreamed };

class StoreChoice {
 public:
  // Runs that stage fewer bytes fit a cache anyway: cached, and not counted.
  static constexpr uint64_t kFromBytes = 1 << 20;

  struct Decision {
    Store store = Store::kCached;
    bool measure = false;  // Record() is wanted when the run has ended well
  };
  // For the next large run in ticket order.
  Decision Next();
  void Record(Store store, double nanoseconds_per_byte);

 private:
  static constexpr uint64_t kPeriod = 32;

  uint64_t runs_ = 0;
  // Moving averages, nanoseconds per byte; 0: not measured yet.
  double cached_ = 0;
  double streamed_ = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_STORE_CHOICE_H_
