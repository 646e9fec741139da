// Feed: the bytes of one execution of a fuzzer, read as choices.
//
// Purpose: a parser would refuse most raw bytes. A fuzzer here reads them as a
// sequence of events, each with parameters from small ranges, so that the bytes
// reach states far behind the checks. After the last byte it reads zeros.
//
//   Feed feed(data, size);
//   while (!feed.done()) switch (feed.Below(3)) ...
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_FUZZ_FEED_H_
#define MAYPOLE_TESTS_FUZZ_FEED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"

namespace maypole::fuzz {

// Checks a condition that must hold for all inputs. If it does not, ends the
// process, so that the fuzzer keeps the input.
inline void Expect(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "broken invariant: %.*s\n",
               static_cast<int>(what.size()), what.data());
  std::abort();
}

// Silences protobuf's messages about bytes that it cannot parse.
inline void SilenceProtobuf() {
  static const auto before = google::protobuf::SetLogHandler(nullptr);
  (void)before;
}

// The message as it arrives at the other end of a gRPC stream. Returns false if
// it cannot (a string is not UTF-8); then the stream breaks.
template <typename Message>
bool Transmit(const Message& message, Message* arrived) {
  SilenceProtobuf();
  return arrived->ParseFromString(message.SerializeAsString());
}

// --- What the inputs reach ---------------------------------------------------
// A fuzzer that never sends a message does not test it. So it notes the cases of
// oneofs that its inputs have reached, over all executions, and its test fails
// if one is missing (driver.cc).

using Oneof = google::protobuf::OneofDescriptor;

inline std::map<const Oneof*, std::set<int>>& ReachedCases() {
  static std::map<const Oneof*, std::set<int>> cases;
  return cases;
}

template <typename Message>
const Oneof* OneofOf(const char* name) {
  return Message::descriptor()->FindOneofByName(name);
}

inline void NoteReached(const google::protobuf::Message& message,
                        const Oneof* oneof) {
  const auto* reached =
      message.GetReflection()->GetOneofFieldDescriptor(message, oneof);
  if (reached != nullptr) ReachedCases()[oneof].insert(reached->number());
}

// The names of the cases of these oneofs that no input has reached.
inline std::string MissingCases(const std::vector<const Oneof*>& oneofs) {
  std::string missing;
  for (const Oneof* oneof : oneofs) {
    for (int i = 0; i < oneof->field_count(); ++i) {
      if (ReachedCases()[oneof].contains(oneof->field(i)->number())) continue;
      missing += " " + oneof->field(i)->full_name();
    }
  }
  return missing;
}

class Feed {
 public:
  Feed(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool done() const { return left_ == 0; }

  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // 0 .. n - 1; n is at most 256.
  uint32_t Below(uint32_t n) { return Byte() % n; }
  // True for one in `n` values of a byte.
  bool OnceIn(uint32_t n) { return Byte() % n == n - 1; }
  uint64_t Word() {
    uint8_t bytes[8] = {};
    const std::string_view taken = Take(8);
    std::memcpy(bytes, taken.data(), taken.size());
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
  }
  // Mostly small; sometimes at a border, or anything.
  uint64_t Number() {
    constexpr uint64_t kBorders[] = {0,
                                     1,
                                     63,
                                     64,
                                     65,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     uint64_t{1} << 32,
                                     uint64_t{1} << 44,
                                     (uint64_t{1} << 44) + 1,
                                     uint64_t{1} << 62,
                                     INT64_MAX,
                                     uint64_t{1} << 63,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    const uint8_t choice = Byte();
    if (choice < 200) return choice % 16;
    if (choice < 240) return kBorders[choice % 16];
    return Word();
  }
  // The next bytes, fewer at the end.
  std::string_view Take(size_t n) {
    n = std::min(n, left_);
    const std::string_view out(reinterpret_cast<const char*>(data_), n);
    data_ += n;
    left_ -= n;
    return out;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace maypole::fuzz

#endif  // MAYPOLE_TESTS_FUZZ_FEED_H_
