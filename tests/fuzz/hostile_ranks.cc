// Malicious ranks: they follow the session protocol until they have a board,
// then overwrite all of it and send garbage.
//
//   hostile_ranks --agents=SOCKET[,SOCKET] --job=NAME [--rounds=N] [--seed=S]
//     Two ranks at each agent. Overwrites the board in N rounds, in as many
//     epochs as needed, and prints what it did.
//   hostile_ranks ... --under=R --size=K
//     Is local rank R of K at the first agent, among honest ranks. Takes
//     part in their operations, so that they wait for it, and overwrites the
//     board until it is killed or the epoch ends.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_split.h"
#include "common/board/board.h"
#include "common/wire/session_messages.h"
#include "common/wire/unix_socket.h"

ABSL_FLAG(std::string, agents, "", "sockets of agents");
ABSL_FLAG(std::string, job, "hostile", "");
ABSL_FLAG(uint64_t, rounds, 2000, "");
ABSL_FLAG(uint64_t, seed, 1, "");
ABSL_FLAG(int, under, -1, "");
ABSL_FLAG(int, size, 2, "");

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLocal = 2;
constexpr auto kPatience = std::chrono::seconds(20);

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Word() { return engine_(); }
  uint64_t Below(uint64_t n) { return engine_() % n; }

 private:
  std::mt19937_64 engine_;
};

struct Rank {
  Fd socket;
  Fd wake;
  std::unique_ptr<Board> board;
  uint32_t local = 0;
};

[[noreturn]] void Die(const std::string& what) {
  std::cerr << "hostile_ranks: " << what << std::endl;
  std::exit(1);
}

session::Hello MakeHello(int rank, int size, int local, int local_size) {
  auto hello = session::Make<session::Hello>();
  hello.rank = rank;
  hello.size = size;
  hello.local_rank = local;
  hello.local_size = local_size;
  hello.pid = getpid();
  session::SetText(hello.job, absl::GetFlag(FLAGS_job));
  const char* token = std::getenv("MAYPOLE_TOKEN");
  session::SetText(hello.token, token == nullptr ? "" : token);
  session::SetText(hello.host, "hostile");
  return hello;
}

// The connection; empty if the agent does not accept it now.
Fd Connect(const std::string& agent) {
  Fd socket;
  if (Status s = ConnectUnix(agent, &socket); !s.ok()) {
    Die("the agent does not listen any more: " + s.message());
  }
  return socket;
}

// Waits for Welcome; false: it was refused, or the agent has closed.
bool AwaitWelcome(Rank* rank) {
  const auto end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    Received message;
    const Status s = ReceiveMessage(rank->socket.get(),
                                    session::kMaxMessageBytes, 200, &message);
    if (s.code() == Code::kDeadlineExceeded) continue;
    if (!s.ok() || message.data.empty()) return false;
    session::Welcome welcome;
    if (session::TypeOf(message.data.data()) != session::Type::kWelcome) {
      if (session::TypeOf(message.data.data()) == session::Type::kRefused) {
        return false;
      }
      continue;
    }
    if (!session::Parse(message.data.data(), message.data.size(), &welcome)
             .ok() ||
        message.fds.size() != 2) {
      Die("a Welcome without board");
    }
    rank->wake = std::move(message.fds[1]);
    const Status attached =
        Board::Attach(std::move(message.fds[0]), &rank->board);
    // Another malicious rank may have overwritten the header by now.
    if (!attached.ok()) return false;
    rank->local = welcome.local_rank;
    return true;
  }
  Die("neither Welcome nor Refused came: the executor hangs");
}

void DrainSocket(const Fd& socket) {
  char buffer[session::kMaxMessageBytes];
  while (recv(socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
  }
}

// True if the peer has closed.
bool Closed(const Fd& socket) {
  DrainSocket(socket);
  char byte;
  const ssize_t n = recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

// --- Garbage -----------------------------------------------------------------

std::string Garbage(Random* random) {
  std::string bytes(random->Below(session::kMaxMessageBytes + 64), 0);
  for (char& c : bytes) c = static_cast<char>(random->Word());
  if (random->Below(2) == 0 && bytes.size() >= sizeof(session::Header)) {
    session::Header h{session::kMagic, kProtocolVersion,
                      static_cast<session::Type>(random->Below(13)),
                      static_cast<uint32_t>(bytes.size())};
    if (random->Below(8) == 0)
      h.version = static_cast<uint32_t>(random->Word());
    std::memcpy(bytes.data(), &h, sizeof(h));
  }
  return bytes;
}

void SendGarbage(const Fd& socket, Random* random) {
  const std::string bytes = Garbage(random);
  std::vector<int> fds;
  for (uint64_t i = random->Below(4) == 0 ? random->Below(9) : 0; i > 0; --i) {
    fds.push_back(STDERR_FILENO);
  }
  (void)SendMessage(socket.get(), bytes.data(), bytes.size(), fds);
}

// A well-formed message with garbage in its fields.
void SendOdd(const Fd& socket, Random* random) {
  const auto send = [&](const auto& m) {
    (void)SendMessage(socket.get(), &m, sizeof(m));
  };
  switch (random->Below(5)) {
    case 0: {
      auto m = session::Make<session::SetRequest>();
      m.number = static_cast<uint32_t>(random->Below(4));
      for (uint64_t& word : m.members) word = random->Word();
      return send(m);
    }
    case 1: {
      auto m = session::Make<session::JoinRequest>();
      m.number = static_cast<uint32_t>(random->Below(3));
      m.settled = static_cast<uint32_t>(random->Below(2));
      return send(m);
    }
    case 2:
      return send(session::Make<session::Welcome>());
    default: {
      auto m = session::Make<session::SlotRequest>();
      m.kind = static_cast<uint32_t>(random->Below(9));
      m.process_set = static_cast<uint32_t>(random->Below(2));
      session::SetText(m.name, std::string(1 + random->Below(600), 'x'));
      return send(m);
    }
  }
}

void AtTheDoor(const std::string& agent, Random* random) {
  std::vector<Fd> half_open;
  for (int i = 0; i < 100; ++i) half_open.push_back(Connect(agent));
  for (int i = 0; i < 300; ++i) {
    const Fd socket = Connect(agent);
    if (random->Below(4) == 0) {
      auto hello = MakeHello(static_cast<int>(random->Word()),
                             static_cast<int>(random->Word()), 0, 1);
      auto* bytes = reinterpret_cast<char*>(&hello);
      for (int n = 0; n < 8; ++n) {
        bytes[random->Below(sizeof(hello))] = static_cast<char>(random->Word());
      }
      session::SetText(hello.job, absl::GetFlag(FLAGS_job));
      // As the rank's variables for the executor: garbage, sometimes too long.
      std::string message(
          sizeof(hello) + random->Below(2) * random->Below(80000), 'A');
      hello.header.size = static_cast<uint32_t>(message.size());
      std::memcpy(message.data(), &hello, sizeof(hello));
      (void)SendMessage(socket.get(), message.data(), message.size());
    } else {
      SendGarbage(socket, random);
    }
  }
}

// --- The board ---------------------------------------------------------------

uint64_t Value(Random* random) {
  switch (random->Below(4)) {
    case 0:
      return random->Below(8);
    case 1:
      return random->Word();
    case 2:
      return Tagged(static_cast<uint32_t>(random->Below(4)),
                    static_cast<uint32_t>(random->Below(8)));
    default:
      return UINT64_MAX - random->Below(2);
  }
}

void Put(const Board& board, size_t offset, uint64_t value) {
  auto* base = reinterpret_cast<std::byte*>(&board.header());
  std::memcpy(base + std::min(offset, board.bytes() - 8), &value, 8);
}

template <typename T>
void Over(const Board& board, T& part, Random* random) {
  const auto* base = reinterpret_cast<std::byte*>(&board.header());
  const auto at =
      static_cast<size_t>(reinterpret_cast<std::byte*>(&part) - base);
  Put(board, at + random->Below(sizeof(T) / 8) * 8, Value(random));
}

void Scribble(const Board& board, Random* random) {
  const auto slot = static_cast<uint32_t>(random->Below(8));
  const auto local =
      static_cast<uint32_t>(random->Below(board.config().local_size));
  const auto record = static_cast<uint32_t>(random->Below(4));
  switch (random->Below(12)) {
    case 0:
      return Over(board, board.header(), random);
    case 1:
      return Over(board, board.rank(local), random);
    case 2:
      board.ready_bits(static_cast<uint32_t>(
          random->Below(board.ready_words()))) = random->Word();
      return;
    case 3:
      return Over(board, board.slot(slot), random);
    case 4:
    case 5:
      return Over(board, board.arrival(slot, local), random);
    case 6:
      return Over(board, board.run(slot), random);
    case 7:
      return Over(board, board.run(board.NegotiatedRef(record)), random);
    case 8:
      return Over(board, board.progress(board.NegotiatedRef(record), local),
                  random);
    case 9:
      return Over(board, board.plan(record), random);
    default:
      return Put(board, random->Below(board.bytes()), Value(random));
  }
}

// Sometimes overwrites all of it: every byte that a rank may write.
void ScribbleAll(const Board& board, Random* random) {
  const uint64_t value = Value(random);
  for (size_t at = 0; at + 8 <= board.bytes(); at += 8) Put(board, at, value);
}

// Submits the operation of the slot's honest ranks, or a similar one.
void Submit(const Board& board, uint32_t slot, uint32_t local,
            uint32_t generation, Signature s, Random* random) {
  if (random->Below(16) == 0) {
    reinterpret_cast<uint8_t*>(&s)[random->Below(sizeof(s))] =
        static_cast<uint8_t>(random->Word());
  }
  board.Arrive(slot, local, generation, s, static_cast<int>(random->Below(4)));
  if (!board.AllArrived(slot, generation)) return;
  board.ready_bits(slot / 64).fetch_or(uint64_t{1} << slot % 64);
  board.PlaceTicket(slot, generation, 0);
}

void Wake(const Rank& rank) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(rank.wake.get(), &one, sizeof(one));
}

Signature Simple() {
  Signature s;
  s.dtype = DType::kFloat32;
  s.dims = 1;
  s.shape[0] = 100000;
  return s;
}

// --- The attack --------------------------------------------------------------

struct Done {
  uint64_t rounds = 0, epochs = 0, refused = 0, whole = 0;
};

std::vector<Rank> Start(const std::vector<std::string>& agents, Done* done) {
  std::vector<Rank> ranks;
  const int size = kLocal * static_cast<int>(agents.size());
  for (int r = 0; r < size; ++r) {
    Rank& rank = ranks.emplace_back();
    rank.socket = Connect(agents[static_cast<size_t>(r / kLocal)]);
    const session::Hello hello = MakeHello(r, size, r % kLocal, kLocal);
    (void)SendMessage(rank.socket.get(), &hello, sizeof(hello));
  }
  for (Rank& rank : ranks) {
    if (AwaitWelcome(&rank)) continue;
    ++done->refused;
    return {};
  }
  ++done->epochs;
  return ranks;
}

void AskForSlots(const Rank& rank) {
  for (uint32_t kind = 0; kind < 6; ++kind) {
    auto request = session::Make<session::SlotRequest>();
    request.kind = kind;
    session::SetText(request.name, "x" + std::to_string(kind));
    (void)SendMessage(rank.socket.get(), &request, sizeof(request));
  }
}

// One epoch: until the executors have ended it, or `most` rounds.
void Spoil(std::vector<Rank>* ranks, uint64_t most, Random* random,
           Done* done) {
  for (const Rank& rank : *ranks) AskForSlots(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool talks = random->Below(2) == 0;
  uint32_t generation = 0;
  for (uint64_t i = 0; i < most; ++i) {
    ++done->rounds;
    Rank& rank = (*ranks)[random->Below(ranks->size())];
    if (i % 16 == 0) {
      ++generation;
      const auto slot = static_cast<uint32_t>(random->Below(6));
      for (const Rank& r : *ranks) {
        Submit(*r.board, slot, r.local, generation, Simple(), random);
        Wake(r);
      }
    }
    for (uint64_t n = 1 + random->Below(16); n > 0; --n) {
      Scribble(*rank.board, random);
    }
    if (random->Below(500) == 0) {
      ScribbleAll(*rank.board, random);
      ++done->whole;
    }
    Wake(rank);
    if (talks && random->Below(64) == 0) SendOdd(rank.socket, random);
    if (talks && random->Below(512) == 0) SendGarbage(rank.socket, random);
    if (i % 64 != 0) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const Rank& r : *ranks) {
      if (Closed(r.socket)) return;
    }
  }
}

int Alone(const std::vector<std::string>& agents, Random* random) {
  const uint64_t rounds = absl::GetFlag(FLAGS_rounds);
  Done done;
  for (const std::string& agent : agents) AtTheDoor(agent, random);
  while (done.rounds < rounds) {
    std::vector<Rank> ranks = Start(agents, &done);
    if (ranks.empty()) {
      if (done.refused > 1000) Die("it is refused again and again");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    Spoil(&ranks, std::min<uint64_t>(rounds - done.rounds, 1000), random,
          &done);
  }
  std::cout << "rounds=" << done.rounds << " epochs=" << done.epochs
            << " refused=" << done.refused << " whole=" << done.whole
            << std::endl;
  return 0;
}

int Under(const std::string& agent, int local, Random* random) {
  const int size = absl::GetFlag(FLAGS_size);
  Rank rank;
  rank.socket = Connect(agent);
  const session::Hello hello = MakeHello(local, size, local, size);
  (void)SendMessage(rank.socket.get(), &hello, sizeof(hello));
  if (!AwaitWelcome(&rank)) Die("it was refused");
  const Board& board = *rank.board;
  std::vector<uint32_t> done(board.config().slots, 0);
  const uint32_t honest = local == 0 ? 1 : 0;
  std::cout << "welcomed" << std::endl;
  for (uint64_t i = 0; !Closed(rank.socket); ++i) {
    const uint32_t slots =
        std::min<uint32_t>(board.header().allotted, board.config().slots);
    for (uint32_t slot = 0; slot < slots; ++slot) {
      const uint32_t generation = board.arrival(slot, honest).generation;
      if (generation == done[slot]) continue;
      done[slot] = generation;
      Submit(board, slot, static_cast<uint32_t>(local), generation,
             board.SignatureOf(slot, honest, generation), random);
      board.WakeRanks();
    }
    // A while of honest looks, so that operations get under way.
    if (i > 20) {
      for (uint64_t n = random->Below(4); n > 0; --n) Scribble(board, random);
      if (random->Below(2000) == 0) ScribbleAll(board, random);
    }
    board.WakeRanks();
    Wake(rank);
    if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::cout << "closed" << std::endl;
  return 0;
}

}  // namespace
}  // namespace maypole

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::vector<std::string> agents =
      absl::StrSplit(absl::GetFlag(FLAGS_agents), ',');
  maypole::Random random(absl::GetFlag(FLAGS_seed));
  const int under = absl::GetFlag(FLAGS_under);
  return under < 0 ? maypole::Alone(agents, &random)
                   : maypole::Under(agents.front(), under, &random);
}
