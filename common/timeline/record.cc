#include "common/timeline/record.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "common/limits.h"

namespace maypole {
namespace {

struct PackedRecord {
  uint32_t bytes;  // of the whole record
  uint8_t what;
  uint8_t kind;
  uint8_t failed;
  uint8_t reserved;
  int32_t rank;
  uint32_t process_set;
  uint32_t members;
  uint32_t number;
  uint32_t count;
  uint32_t name_bytes;
  uint64_t tensor_bytes;
  int64_t moments[4];
};
static_assert(sizeof(PackedRecord) == 72);

constexpr int64_t kMostTime = int64_t{1} << 61;  // 73 years

size_t RoundUp(size_t bytes) { return (bytes + 7) / 8 * 8; }

// Differences of two such times do not overflow.
bool IsTime(int64_t moment) { return moment >= 0 && moment < kMostTime; }

bool Read(std::string_view packed, PackedRecord* out) {
  if (packed.size() < sizeof(*out)) return false;
  std::memcpy(out, packed.data(), sizeof(*out));
  return out->bytes <= packed.size() && out->name_bytes <= kMaxNameBytes &&
         out->bytes == RoundUp(sizeof(*out) + out->name_bytes) &&
         out->what >= 1 && out->what <= 4 && out->kind < kKinds &&
         out->rank >= 0 && out->rank < kMaxRanks &&
         out->members <= uint32_t{kMaxRanks} &&
         std::all_of(std::begin(out->moments), std::end(out->moments), IsTime);
}

}  // namespace

size_t PackedBytes(const TimelineRecord& r) {
  return RoundUp(sizeof(PackedRecord) + r.name.size());
}

void Append(const TimelineRecord& r, std::string* packed) {
  PackedRecord p{};
  p.bytes = static_cast<uint32_t>(PackedBytes(r));
  p.what = static_cast<uint8_t>(r.what);
  p.kind = static_cast<uint8_t>(r.kind);
  p.failed = r.failed ? 1 : 0;
  p.rank = r.rank;
  p.process_set = r.process_set;
  p.members = r.members;
  p.number = r.number;
  p.count = r.count;
  p.name_bytes = static_cast<uint32_t>(r.name.size());
  p.tensor_bytes = r.bytes;
  const int64_t moments[] = {r.submitted, r.arrived, r.begun, r.ended};
  std::memcpy(p.moments, moments, sizeof(moments));
  packed->append(reinterpret_cast<const char*>(&p), sizeof(p));
  packed->append(r.name);
  packed->append(p.bytes - sizeof(p) - r.name.size(), '\0');
}

void ForRecords(std::string_view packed,
                const std::function<void(const TimelineRecord&)>& take) {
  PackedRecord p;
  while (Read(packed, &p)) {
    TimelineRecord r;
    r.what = static_cast<TimelineRecord::What>(p.what);
    r.kind = static_cast<Kind>(p.kind);
    r.failed = p.failed != 0;
    r.rank = p.rank;
    r.process_set = p.process_set;
    r.members = p.members;
    r.number = p.number;
    r.count = p.count;
    r.bytes = p.tensor_bytes;
    r.submitted = p.moments[0];
    r.arrived = p.moments[1];
    r.begun = p.moments[2];
    r.ended = p.moments[3];
    r.name = packed.substr(sizeof(p), p.name_bytes);
    take(r);
    packed.remove_prefix(p.bytes);
  }
}

size_t WholeRecords(std::string_view packed, size_t bytes) {
  size_t whole = 0;
  PackedRecord p;
  while (Read(packed.substr(whole), &p) && whole + p.bytes <= bytes) {
    whole += p.bytes;
  }
  return whole;
}

}  // namespace maypole
