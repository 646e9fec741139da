#include "common/wire/session_messages.h"

#include <cstddef>

namespace maypole::session {
namespace {

bool StringsEnd(const Hello& m) {
  return Ends(m.job) && Ends(m.token) && Ends(m.host);
}
bool StringsEnd(const Refused& m) { return Ends(m.text); }
bool StringsEnd(const Welcome&) { return true; }
bool StringsEnd(const SlotRequest& m) { return Ends(m.name); }
bool StringsEnd(const SlotReply& m) { return Ends(m.text); }
bool StringsEnd(const Finished&) { return true; }
bool StringsEnd(const LeaveReason& m) { return Ends(m.text); }
bool StringsEnd(const Goodbye&) { return true; }
bool StringsEnd(const SetRequest&) { return true; }
bool StringsEnd(const SetReply& m) { return Ends(m.text); }
bool StringsEnd(const JoinRequest&) { return true; }
bool StringsEnd(const JoinReply& m) { return Ends(m.text); }
bool StringsEnd(const Notice& m) { return Ends(m.text); }
bool StringsEnd(const SlotRecall&) { return true; }
bool StringsEnd(const SlotReturn&) { return true; }
bool StringsEnd(const GpuMemoryRequest&) { return true; }
bool StringsEnd(const GpuMemoryReply& m) { return Ends(m.text); }
bool StringsEnd(const ConnectGpu&) { return true; }
bool StringsEnd(const ResultRecords&) { return true; }
bool StringsEnd(const StateRequest& m) { return Ends(m.name); }
bool StringsEnd(const StateReply& m) { return Ends(m.text); }
bool StringsEnd(const TimelineRequest& m) { return Ends(m.path); }
bool StringsEnd(const TimelineReply& m) { return Ends(m.path) && Ends(m.text); }
bool StringsEnd(const TimelineFile&) { return true; }

Status ReadHeader(const void* data, size_t bytes, const std::string& who,
                  Header* out) {
  if (bytes < sizeof(*out)) {
    return Status(Code::kInvalidArgument,
                  who + " sent a message of " + std::to_string(bytes) +
                      " bytes; is it a Maypole process?");
  }
  std::memcpy(out, data, sizeof(*out));
  if (out->magic == kMagic) return Status();
  return Status(Code::kInvalidArgument,
                who + " does not speak Maypole's session protocol");
}

Status CheckSize(const Header& h, size_t bytes, const std::string& who,
                 size_t most) {
  if (h.size == bytes && bytes <= most) return Status();
  return Status(Code::kInvalidArgument,
                who + " sent a message of " + std::to_string(bytes) +
                    " bytes whose header says " + std::to_string(h.size));
}

}  // namespace

Status CheckHeader(const void* data, size_t bytes, std::string_view peer) {
  Header h;
  const std::string who = "the " + std::string(peer);
  if (Status s = ReadHeader(data, bytes, who, &h); !s.ok()) return s;
  const char* const self =
      peer == "client" ? "this executor" : "this libmaypole";
  uint32_t version = 0;
  if (Status s = ChooseVersion(
          {{who, {h.version, h.version}}, {self, kProtocolVersions}}, &version);
      !s.ok()) {
    return s;
  }
  return CheckSize(h, bytes, who, kMaxMessageBytes);
}

Status CheckHelloHeader(const void* data, size_t bytes, const Speaker& agent,
                        size_t most) {
  Header h;
  if (Status s = ReadHeader(data, bytes, "the client", &h); !s.ok()) return s;
  // Works whatever else the Hello of that version has.
  const auto number = [&](size_t offset) {
    uint32_t n = 0;
    if (bytes >= offset + sizeof(n)) {
      std::memcpy(&n, static_cast<const char*>(data) + offset, sizeof(n));
    }
    return n;
  };
  const Speaker client = {
      "libmaypole of rank " +
          std::to_string(static_cast<int32_t>(number(offsetof(Hello, rank)))),
      {h.version, number(offsetof(Hello, newest_version))}};
  uint32_t version = 0;
  if (Status s = ChooseVersion({client, agent}, &version); !s.ok()) return s;
  return CheckSize(h, bytes, "the client", most);
}

Type TypeOf(const void* data) {
  Header h;
  std::memcpy(&h, data, sizeof(h));
  return h.type;
}

template <typename T>
Status Parse(const void* data, size_t bytes, T* out) {
  if (bytes != sizeof(T) || TypeOf(data) != T::kType) {
    return Status(Code::kInvalidArgument,
                  "expected a message of type " +
                      std::to_string(static_cast<uint32_t>(T::kType)) +
                      " with " + std::to_string(sizeof(T)) + " bytes, got " +
                      std::to_string(bytes) + " bytes of type " +
                      std::to_string(static_cast<uint32_t>(TypeOf(data))));
  }
  std::memcpy(out, data, sizeof(T));
  if (!StringsEnd(*out)) {
    return Status(Code::kInvalidArgument,
                  "a string in the message is not zero-terminated");
  }
  return Status();
}

// The message has the length that it states.
template <>
Status Parse(const void* data, size_t bytes, TimelineRecords* out) {
  constexpr size_t kLeast = offsetof(TimelineRecords, data);
  *out = TimelineRecords();
  if (bytes >= kLeast && bytes <= sizeof(*out) &&
      TypeOf(data) == TimelineRecords::kType) {
    std::memcpy(out, data, bytes);
    if (out->bytes == bytes - kLeast && out->bytes % 8 == 0) return Status();
  }
  return Status(Code::kInvalidArgument,
                "a message of timeline records has " + std::to_string(bytes) +
                    " bytes, which is not what it says");
}

size_t Trim(TimelineRecords* m) {
  m->header.size =
      static_cast<uint32_t>(offsetof(TimelineRecords, data) + m->bytes);
  return m->header.size;
}

template Status Parse(const void*, size_t, Hello*);
template Status Parse(const void*, size_t, Refused*);
template Status Parse(const void*, size_t, Welcome*);
template Status Parse(const void*, size_t, SlotRequest*);
template Status Parse(const void*, size_t, SlotReply*);
template Status Parse(const void*, size_t, Finished*);
template Status Parse(const void*, size_t, LeaveReason*);
template Status Parse(const void*, size_t, Goodbye*);
template Status Parse(const void*, size_t, SetRequest*);
template Status Parse(const void*, size_t, SetReply*);
template Status Parse(const void*, size_t, JoinRequest*);
template Status Parse(const void*, size_t, JoinReply*);
template Status Parse(const void*, size_t, Notice*);
template Status Parse(const void*, size_t, SlotRecall*);
template Status Parse(const void*, size_t, SlotReturn*);
template Status Parse(const void*, size_t, GpuMemoryRequest*);
template Status Parse(const void*, size_t, GpuMemoryReply*);
template Status Parse(const void*, size_t, TimelineRequest*);
template Status Parse(const void*, size_t, TimelineReply*);
template Status Parse(const void*, size_t, TimelineFile*);
template Status Parse(const void*, size_t, ConnectGpu*);
template Status Parse(const void*, size_t, ResultRecords*);
template Status Parse(const void*, size_t, StateRequest*);
template Status Parse(const void*, size_t, StateReply*);

}  // namespace maypole::session
