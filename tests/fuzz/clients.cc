#include "tests/fuzz/clients.h"

namespace maypole::fuzz {
namespace {

// One field of a Hello.
void SpoilHello(Feed* feed, session::Hello* h) {
  const auto value = static_cast<int64_t>(feed->Number());
  switch (feed->Below(14)) {
    case 0:
      h->rank = static_cast<int32_t>(value);
      break;
    case 1:
      h->size = static_cast<int32_t>(value);
      break;
    case 2:
      h->local_rank = static_cast<int32_t>(value);
      break;
    case 3:
      h->local_size = static_cast<int32_t>(value);
      break;
    case 4:
      h->fusion_threshold = value;
      break;
    case 5:
      h->stall_check_ms = value;
      break;
    case 6:
      h->stall_shutdown_ms = value;
      break;
    case 7:
      h->elastic = static_cast<uint32_t>(value);
      break;
    case 8:
      h->last_epoch = static_cast<uint64_t>(value);
      break;
    case 9:
      h->min_size = static_cast<int32_t>(value);
      break;
    case 10:
      h->max_size = static_cast<int32_t>(value);
      break;
    case 11:
      h->pid = static_cast<int32_t>(value);
      break;
    case 12:
      h->cross_rank = static_cast<int32_t>(value);
      break;
    default:
      session::SetText(h->host, feed->Take(8));
  }
}

}  // namespace

session::Hello MakeHello(Feed* feed, int local_rank, int local_size,
                         int nodes) {
  auto h = session::Make<session::Hello>();
  h.rank = local_rank;
  h.size = local_size * nodes;
  h.local_rank = local_rank;
  h.local_size = local_size;
  h.pid = 100 + local_rank;
  h.stall_check_ms = 1000;
  session::SetText(h.job, "job");
  session::SetText(h.host, "h0");
  if (feed->OnceIn(8)) SpoilHello(feed, &h);
  return h;
}

session::Hello MakeElasticHello(Feed* feed, int pid, uint64_t epoch) {
  auto h = session::Make<session::Hello>();
  h.elastic = 1;
  h.pid = pid;
  h.min_size = 1;
  h.max_size = 4;
  h.last_epoch = feed->OnceIn(2) ? epoch : 0;
  if (h.last_epoch != 0) h.rank = static_cast<int>(feed->Below(4));
  session::SetText(h.job, "job");
  if (feed->OnceIn(8)) SpoilHello(feed, &h);
  return h;
}

std::string MakeName(Feed* feed) {
  const uint32_t choice = feed->Below(16);
  if (choice == 15) return std::string(kMaxNameBytes + feed->Below(2), 'n');
  if (choice == 14) return std::string(feed->Take(feed->Below(8)));
  return {static_cast<char>('a' + choice % 4)};
}

Signature HonestSignature(Kind kind, uint32_t process_set, int size,
                          uint32_t variant) {
  Signature s;
  s.kind = kind;
  s.process_set = process_set;
  s.dtype = DType::kFloat32;
  s.dims = 1;
  // Several chunks of 4096 bytes, in one of the variants.
  s.shape[0] = variant % 4 == 3 ? 3000 * size : size;
  if (kind == Kind::kBroadcast) s.root = 0;
  if (kind == Kind::kBarrier) {
    s.dtype = DType::kUint8;
    s.dims = kMaxDims;
    s.shape[0] = 0;
  }
  return s;
}

void Spoil(Feed* feed, Signature* s) {
  const uint64_t value = feed->Number();
  switch (feed->Below(10)) {
    case 0:
      s->kind = static_cast<Kind>(value);
      break;
    case 1:
      s->dtype = static_cast<DType>(value);
      break;
    case 2:
      s->op = static_cast<Op>(value);
      break;
    case 3:
      s->device = static_cast<Device>(value);
      break;
    case 4:
      s->dims = static_cast<uint8_t>(value);
      break;
    case 5:
      s->aside = static_cast<uint8_t>(value);
      break;
    case 6:
      s->process_set = static_cast<uint32_t>(value);
      break;
    case 7:
      s->root = static_cast<int32_t>(value);
      break;
    case 8:
      std::memcpy(&s->prescale, &value, 8);
      break;
    default:
      s->shape[feed->Below(kMaxDims)] = static_cast<int64_t>(value);
  }
}

session::SlotRequest MakeSlotRequest(Feed* feed, uint32_t process_set) {
  auto r = session::Make<session::SlotRequest>();
  r.request = feed->Byte();
  r.kind = feed->Below(kKinds + 1);
  r.process_set =
      feed->OnceIn(8) ? static_cast<uint32_t>(feed->Number()) : process_set;
  session::SetText(r.name, MakeName(feed));
  return r;
}

session::SetRequest MakeSetRequest(Feed* feed, uint32_t number, int size) {
  auto r = session::Make<session::SetRequest>();
  r.number = number;
  r.remove = feed->OnceIn(4) ? 1 : 0;
  r.process_set = feed->Below(4);
  r.members[0] = feed->Byte();
  if (size < 8) r.members[0] &= (uint64_t{1} << size) - 1;
  if (feed->OnceIn(16)) r.members[feed->Below(64)] = feed->Word();
  return r;
}

}  // namespace maypole::fuzz
