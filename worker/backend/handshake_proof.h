// Proofs of the handshake between two executors.
//
// Purpose: before data of the job flows over a connection, both ends prove that
// they know the secrets that the coordinator has passed from each to the other.
// A process that only eavesdrops, answers at the port or reflects messages
// cannot prove it.
//
//   caller                                         AuthenticatedListener
//     |-- Hello {from, to, challenge} ---------------->|
//     |<- Answer {challenge, proof "gate" of both} ----|
//     |-- Proof {proof "caller" of both} ------------->|
//     |<- one byte: welcome ---------------------------|
//
// A proof is HMAC-SHA256 over role, hello and both challenges, and valid for
// this connection only. Data that follows is neither encrypted nor signed,
// unless both ends encrypt: then a TLS handshake follows, with a key that is
// made like a proof (Role::kTls), so each connection has its own.
//
// Hello also says how the caller encrypts, and what the listener's offer said
// about that when it arrived there. If the listener knows better, somebody has
// changed an offer on its way through the coordinator, to make both ends talk
// in the clear. The listener then answers as kListenerOfOtherOffers, which
// proves that the answer is the peer's; the caller's answer, as
// kCallerOfOtherOffers, tells the listener that it was the peer that called.
// Neither end uses the connection.
//
// Thread contract: any thread; pure functions, except NewSecret().
#ifndef MAYPOLE_WORKER_BACKEND_HANDSHAKE_PROOF_H_
#define MAYPOLE_WORKER_BACKEND_HANDSHAKE_PROOF_H_

#include <array>
#include <cstdint>

#include "common/encryption_mode.h"

namespace maypole::worker::handshake {

using Secret = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;

inline constexpr uint64_t kMagic = 0x3365746167706d;  // "mpgate3"
inline constexpr char kWelcome = 1;

struct Hello {
  uint64_t magic = kMagic;
  uint32_t from = 0;  // node index
  uint32_t to = 0;
  uint32_t connection = 0;  // number of the connection between the two nodes
  // 0 in both is what versions without encryption send.
  EncryptionMode caller = EncryptionMode::kOff;    // its own
  EncryptionMode listener = EncryptionMode::kOff;  // as its offer said
  uint16_t reserved = 0;
  Secret challenge = {};
};
struct Answer {
  Secret challenge = {};
  Proof proof = {};
};
static_assert(sizeof(Hello) == 56 && sizeof(Answer) == 64);

enum class Role : uint32_t {
  kCaller = 1,
  kListener = 2,
  kTls = 3,  // not sent: the key of the connection's TLS
  kCallerOfOtherOffers = 4,
  kListenerOfOtherOffers = 5,
};

// Returns random bytes from the kernel.
Secret NewSecret();

// `lower` is the secret that the node with the lower index has made for the
// other one. `epoch` makes the proofs of a late caller of an earlier epoch
// invalid.
Secret KeyOf(const Secret& lower, const Secret& higher, uint64_t epoch);

Proof Prove(const Secret& key, Role role, const Hello& hello,
            const Secret& listener_challenge);

// Compares in constant time.
bool Same(const Proof& a, const Proof& b);

}  // namespace maypole::worker::handshake

#endif  // MAYPOLE_WORKER_BACKEND_HANDSHAKE_PROOF_H_
