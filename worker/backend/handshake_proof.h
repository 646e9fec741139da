// What two executors prove to each other before a byte of the job goes over
// their connection: that both know the secrets which their coordinator has
// carried from each to the other. Nobody who only listens at the port, answers
// at it, or sends back what he gets can prove that.
//
//   caller                                         gate
//     |-- Hello {who, for whom, challenge} ----------->|
//     |<- Answer {challenge, proof "gate" of both} ----|
//     |-- Proof {proof "caller" of both} ------------->|
//     |<- one byte: welcome ---------------------------|
//
// A proof is HMAC-SHA256 over role, hello and both challenges. It is of this
// connection alone; what follows on it is neither encrypted nor signed.
//
// Thread contract: pure functions, but for NewSecret().
#ifndef MAYPOLE_WORKER_BACKEND_HANDSHAKE_PROOF_H_
#define MAYPOLE_WORKER_BACKEND_HANDSHAKE_PROOF_H_

#include <array>
#include <cstdint>

namespace maypole::worker::handshake {

using Secret = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;

inline constexpr uint64_t kMagic = 0x3365746167706d;  // "mpgate3"
inline constexpr char kWelcome = 1;

struct Hello {
  uint64_t magic = kMagic;
  uint32_t from = 0;  // node index
  uint32_t to = 0;
  uint32_t connection = 0;  // between the two
  uint32_t reserved = 0;
  Secret challenge = {};
};
struct Answer {
  Secret challenge = {};
  Proof proof = {};
};
static_assert(sizeof(Hello) == 56 && sizeof(Answer) == 64);

enum class Role : uint32_t { kCaller = 1, kGate = 2 };

// From the kernel's random numbers.
Secret NewSecret();

// `lower`: what the node of lower index has chosen for the other; `epoch`: of
// the job, so that a late caller of the epoch before is none of this.
Secret KeyOf(const Secret& lower, const Secret& higher, uint64_t epoch);

Proof Prove(const Secret& key, Role role, const Hello& hello,
            const Secret& gate_challenge);

// Takes as long for every wrong proof.
bool Same(const Proof& a, const Proof& b);

}  // namespace maypole::worker::handshake

#endif  // MAYPOLE_WORKER_BACKEND_HANDSHAKE_PROOF_H_
