// Messages of ranks to their executor, made from a Feed: honest, with a fault,
// or garbage.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_FUZZ_CLIENTS_H_
#define MAYPOLE_TESTS_FUZZ_CLIENTS_H_

#include <string>

#include "common/wire/session_messages.h"
#include "common/wire/signature.h"
#include "tests/fuzz/feed.h"

namespace maypole::fuzz {

// The Hello of a rank, one of `local_size` on the first of `nodes` nodes;
// sometimes with a fault.
session::Hello MakeHello(Feed* feed, int local_rank, int local_size, int nodes);
session::Hello MakeElasticHello(Feed* feed, int pid, uint64_t epoch);

// "a" to "d", or a long one.
std::string MakeName(Feed* feed);
// The signature that all ranks submit with the name; a function of the
// arguments.
Signature HonestSignature(Kind kind, uint32_t process_set, int size,
                          uint32_t variant);
// Changes a part of it.
void Spoil(Feed* feed, Signature* s);

session::SlotRequest MakeSlotRequest(Feed* feed, uint32_t process_set);
session::SetRequest MakeSetRequest(Feed* feed, uint32_t number, int size);

template <typename T>
std::string BytesOf(const T& message) {
  return {reinterpret_cast<const char*>(&message), sizeof(message)};
}

}  // namespace maypole::fuzz

#endif  // MAYPOLE_TESTS_FUZZ_CLIENTS_H_
