// ClockOffset: how much the coordinator's clock is ahead of this executor's.
//
// Purpose: the executor queries the coordinator's time, over the link that it
// has anyway. A reply after a round trip r determines the offset within r / 2;
// as in NTP, the best reply counts. A reply grows less certain with time,
// because clocks drift.
//
//   if (offset.Due(now)) Send(offset.Query(now));
//   offset.OnReply(sent, coordinator_ns, now);
//   if (offset.ready(now)) t + offset.ns()
//
// Thread contract: not synchronized; pure. All times are nanoseconds.
#ifndef MAYPOLE_WORKER_CORE_TIMELINE_CLOCK_OFFSET_H_
#define MAYPOLE_WORKER_CORE_TIMELINE_CLOCK_OFFSET_H_

#include <cstdint>

namespace maypole::worker {

class ClockOffset {
 public:
  // At first this many queries in a row, then one in each kPeriodNs.
  static constexpr int kFirst = 8;
  static constexpr int64_t kPeriodNs = 500'000'000;
  // A query without a reply is repeated after this time.
  static constexpr int64_t kPatienceNs = 1'000'000'000;
  // How much two clocks drift apart: 100 microseconds in a second.
  static constexpr int64_t kDriftPart = 10'000;

  bool Due(int64_t now) const;
  // Returns the time to send with the query.
  int64_t Query(int64_t now);
  // Ignores a reply that does not answer the last query.
  void OnReply(int64_t sent, int64_t coordinator, int64_t now);

  // True if the first kFirst queries have been answered.
  bool ready() const { return answers_ >= kFirst; }
  bool known() const { return answers_ > 0; }
  int64_t ns() const { return ns_; }
  // The greatest error of ns().
  int64_t Uncertainty(int64_t now) const {
    return half_trip_ + (now - measured_) / kDriftPart;
  }

 private:
  bool asked_ = false;
  int64_t asked_at_ = 0;
  int answers_ = 0;
  int64_t answered_at_ = 0;
  int64_t ns_ = 0;
  int64_t half_trip_ = 0;
  int64_t measured_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_TIMELINE_CLOCK_OFFSET_H_
