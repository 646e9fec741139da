// StoreChoice: decides whether a rank stages with cached or with streaming
// (cache-bypassing) stores.
//
// Purpose: which kind is faster depends on the machine and on the moment.
// Cached stores are faster while the cores of a node are near each other. When
// it is slow to move freshly written cache lines between them, streaming stores
// are up to four times faster (docs/benchmarks.md separates near and far
// rounds). So StoreChoice measures: of every 32 large runs, two are trials, one
// of each kind; the others use the faster kind.
//
// All ranks of a node see the same large runs in the same order, so all use the
// same kind in a trial. Between trials each rank chooses for itself.
//
// Thread contract: one thread at a time. No clock inside.
#ifndef MAYPOLE_CLIENT_ENGINE_STORE_CHOICE_H_
#define MAYPOLE_CLIENT_ENGINE_STORE_CHOICE_H_

#include <cstdint>

namespace maypole {

enum class Store { kCached, kStreamed };

class StoreChoice {
 public:
  // Runs with fewer bytes fit into a cache: they use cached stores and are not
  // counted.
  static constexpr uint64_t kFromBytes = 1 << 20;

  struct Decision {
    Store store = Store::kCached;
    bool measure = false;  // a trial: call Record() if the run succeeds
  };
  // Decides for the next large run in ticket order.
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
