// Fuzzes messages of processes to the agent's socket: bytes for CheckHeader and
// Parse of every struct; Hellos for Membership; and frames for the executor's
// core from several clients of one job, with an honest coordinator.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/wire/job_variables.h"
#include "tests/fuzz/clients.h"
#include "tests/fuzz/rig.h"
#include "worker/core/membership.h"

namespace maypole::fuzz {
namespace {

constexpr int kLocal = 3;
constexpr int kMaxEvents = 200;

template <typename T>
void ParseAs(const std::string& bytes) {
  T out;
  if (!session::Parse(bytes.data(), bytes.size(), &out).ok()) return;
  Expect(bytes.size() == sizeof(T) && out.header.type == T::kType,
         "what is parsed has its type and size");
}

// A Hello with the rank's variables for the executor.
void ParseVariables(const char* bytes, size_t size) {
  session::Hello hello;
  std::vector<std::string> variables;
  const Speaker agent = {"the agent", kProtocolVersions};
  if (!session::ParseHello(bytes, size, agent, &hello, &variables).ok()) return;
  size_t taken = sizeof(hello);
  for (const std::string& v : variables) {
    taken += v.size() + 1;
    Expect(session::IsJobVariable(v.substr(0, v.find('='))),
           "no other variable comes through");
  }
  Expect(taken == size, "what is parsed was parsed to its end");
}

void ParseAll(const std::string& raw) {
  // On the heap with its exact length, so sanitizers detect reads beyond it.
  const std::unique_ptr<char[]> exact(new char[raw.size()]);
  std::memcpy(exact.get(), raw.data(), raw.size());
  ParseVariables(exact.get(), raw.size());
  if (!session::CheckHeader(exact.get(), raw.size(), "client").ok()) return;
  ParseAs<session::Hello>(raw);
  ParseAs<session::Refused>(raw);
  ParseAs<session::Welcome>(raw);
  ParseAs<session::SlotRequest>(raw);
  ParseAs<session::SlotReply>(raw);
  ParseAs<session::Finished>(raw);
  ParseAs<session::Goodbye>(raw);
  ParseAs<session::SetRequest>(raw);
  ParseAs<session::SetReply>(raw);
  ParseAs<session::JoinRequest>(raw);
  ParseAs<session::JoinReply>(raw);
  ParseAs<session::Notice>(raw);
}

// The bytes of a message, some of them changed, sometimes shorter or longer.
template <typename T>
std::string Spoiled(Feed* feed, const T& message) {
  std::string bytes = BytesOf(message);
  for (uint32_t i = feed->OnceIn(4) ? 1 + feed->Below(4) : 0; i > 0; --i) {
    const size_t at =
        feed->OnceIn(2)
            ? feed->Below(static_cast<uint32_t>(sizeof(session::Header)))
            : (feed->Byte() * 256u + feed->Byte());
    bytes[at % bytes.size()] = static_cast<char>(feed->Byte());
  }
  if (feed->OnceIn(32)) bytes.resize(feed->Byte() % bytes.size());
  if (feed->OnceIn(32)) bytes.append(feed->Take(32));
  return bytes;
}

std::string HelloWithVariables(Feed* feed) {
  std::string bytes = Spoiled(feed, MakeHello(feed, 0, kLocal, 1));
  for (uint32_t i = feed->Below(4); i > 0; --i) {
    bytes += feed->OnceIn(4) ? "" : "NCCL_";
    bytes += feed->Take(8);
    bytes += feed->OnceIn(4) ? std::string() : std::string("=x\0", 3);
  }
  const auto size = static_cast<uint32_t>(bytes.size());
  if (size >= sizeof(session::Header)) {
    std::memcpy(bytes.data() + offsetof(session::Header, size), &size, 4);
  }
  return bytes;
}

void CheckMembership(const worker::Membership& m) {
  std::vector<int> ranks;
  for (const auto& [local, member] : m.members()) {
    Expect(member.local_rank == local, "members stand by local rank");
    if (m.elastic()) continue;
    Expect(local >= 0 && local < m.local_size() && member.rank >= 0 &&
               member.rank < m.size(),
           "a member has its place");
    for (const int other : ranks) Expect(other != member.rank, "ranks differ");
    ranks.push_back(member.rank);
  }
  Expect(m.members().size() <= size_t{kMaxLocalRanks}, "members are bounded");
  if (!m.elastic() && m.complete()) {
    Expect(m.members().size() == static_cast<size_t>(m.local_size()),
           "complete is complete");
  }
  if (!m.empty() && !m.elastic()) {
    Expect(m.MissingText().size() < 1000, "a sentence has an end");
  }
}

void FuzzMembership(Feed* feed) {
  worker::Membership members;
  worker::ClientId next = 1;
  for (int i = 0; i < kMaxEvents && !feed->done(); ++i) {
    const uint32_t choice = feed->Below(8);
    if (choice == 7 && !members.empty()) {
      members.Remove(members.members().begin()->second.client);
    } else if (choice == 6 && members.elastic() && !members.empty()) {
      const worker::ClientId client = members.members().begin()->second.client;
      worker::Membership out = members.TakeOut({client}, {0}, 1);
      CheckMembership(out);
      members.TakeBack(std::move(out));
    } else {
      const int pid = feed->Byte();
      const session::Hello hello =
          choice < 4 ? MakeHello(feed, static_cast<int>(feed->Below(kLocal)),
                                 kLocal, 2)
                     : MakeElasticHello(feed, pid, feed->Below(3));
      const size_t before = members.members().size();
      const bool taken = members.Add(next++, hello, pid).ok();
      Expect(members.members().size() == before + (taken ? 1 : 0),
             "who is not taken changes nothing");
    }
    CheckMembership(members);
  }
}

// Answers as a coordinator of one node's job would.
class Frames {
 public:
  static RigOptions FewSlots() {
    RigOptions options;
    options.core.slots = 8;
    return options;
  }
  explicit Frames(Feed* feed) : feed_(*feed), rig_(FewSlots()) {
    rig_.core().OnTime(0);
    elastic_ = feed_.OnceIn(4);
    for (int i = 0; i < kLocal; ++i) Client(i);
  }

  void Run() {
    for (int i = 0; i < kMaxEvents && !feed_.done(); ++i) {
      Event();
      Answer();
    }
  }

 private:
  void Client(int local) {
    rig_.Connect(elastic_ ? MakeElasticHello(&feed_, 100 + local, epoch_)
                          : MakeHello(&feed_, local, kLocal, 1),
                 100 + local);
    Answer();
  }

  void Event() {
    const uint32_t choice = feed_.Below(8);
    if (choice == 0) return Client(static_cast<int>(feed_.Below(kLocal)));
    if (choice == 1) {
      now_ms_ += uint64_t{1} << feed_.Below(16);
      rig_.core().OnTime(now_ms_);
      return rig_.Do();
    }
    if (rig_.clients.empty()) return;
    auto it = rig_.clients.begin();
    std::advance(it, feed_.Byte() % rig_.clients.size());
    const worker::ClientId client = *it;
    if (!rig_.Message(client, Frame(client)) && rig_.clients.contains(client)) {
      rig_.Gone(client);  // it broke the session protocol
    }
  }

  // Returns some of the recalled slots.
  std::string Return() {
    auto m = session::Make<session::SlotReturn>();
    const session::SlotRecall& recall = rig_.recalls.front().second;
    for (uint32_t i = 0; i < recall.count; ++i) {
      if (feed_.OnceIn(4)) continue;
      m.slots[m.count++] = recall.slots[i];
    }
    rig_.recalls.pop_front();
    return Spoiled(&feed_, m);
  }

  std::string Frame(worker::ClientId client) {
    if (!rig_.recalls.empty() && rig_.recalls.front().first == client) {
      return Return();
    }
    switch (feed_.Below(8)) {
      case 0: {
        auto m = session::Make<session::Goodbye>();
        m.pending = feed_.Below(2);
        m.returns = feed_.Below(2);
        return Spoiled(&feed_, m);
      }
      case 1:
      case 2:
        return Spoiled(&feed_,
                       MakeSetRequest(&feed_, ++requests_[client], kLocal));
      case 3: {
        auto m = session::Make<session::JoinRequest>();
        m.settled = feed_.Below(2);
        if (m.settled == 0) ++joins_[client];
        m.number = joins_[client];
        return Spoiled(&feed_, m);
      }
      case 4:
        return std::string(feed_.Take(feed_.Byte()));
      default:
        return Spoiled(&feed_, MakeSlotRequest(&feed_, feed_.Below(3)));
    }
  }

  void Answer() {
    for (const proto::ExecutorMessage& m : std::exchange(rig_.outbox, {})) {
      if (m.has_ranks_ready()) Start(m.ranks_ready());
      if (m.has_set_request()) ReplySet(m.epoch(), m.set_request());
      if (m.has_join_state() && m.join_state().settled()) {
        proto::CoordinatorMessage reply;
        reply.set_epoch(m.epoch());
        reply.mutable_join_reply()->set_number(m.join_state().number());
        Tell(reply);
      }
    }
  }
  void Tell(const proto::CoordinatorMessage& m) {
    rig_.core().OnCoordinator(m);
    rig_.Do();
  }
  void Start(const proto::RanksReady& ready) {
    const int n = ready.elastic() ? ready.members_size() : ready.ranks_size();
    if (n == 0 || rig_.epoch_there) return;
    proto::CoordinatorMessage m;
    m.mutable_epoch_start()->set_epoch(++epoch_);
    m.mutable_epoch_start()->set_size(static_cast<uint32_t>(n));
    m.mutable_epoch_start()->set_chunk_bytes(ready.chunk_bytes());
    proto::NodeInfo* node = m.mutable_epoch_start()->add_nodes();
    node->set_protocol_version(kProtocolVersion);
    node->set_node("n0");
    for (int i = 0; i < n; ++i) {
      node->add_ranks(ready.elastic() ? static_cast<uint32_t>(i)
                                      : ready.ranks(i));
    }
    for (const auto& member : ready.members()) {
      m.mutable_epoch_start()->add_clients(member.client());
    }
    requests_.clear();
    joins_.clear();
    sets_ = 0;
    answered_ = 0;
    Tell(m);
  }
  // As soon as one rank asks: what the others say about it is not compared.
  void ReplySet(uint64_t epoch, const proto::SetRequest& request) {
    if (request.number() <= answered_) return;
    answered_ = request.number();
    proto::CoordinatorMessage m;
    proto::SetReply* reply = m.mutable_set_reply();
    m.set_epoch(epoch);
    reply->set_number(request.number());
    reply->set_remove(request.remove());
    reply->set_process_set(request.remove() ? request.process_set() : ++sets_);
    for (const uint32_t rank : request.ranks()) {
      if (rank < rig_.config.size) reply->add_ranks(rank);
    }
    if (!request.remove() && reply->ranks().empty()) {
      --sets_;
      reply->set_code(3);
    }
    Tell(m);
  }

  Feed& feed_;
  Rig rig_;
  bool elastic_ = false;
  int64_t now_ms_ = 0;
  uint64_t epoch_ = 0;
  uint32_t sets_ = 0, answered_ = 0;
  std::map<worker::ClientId, uint32_t> requests_, joins_;
};

}  // namespace
}  // namespace maypole::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maypole::fuzz;
  Feed feed(data, size);
  switch (feed.Below(4)) {
    case 0:
      ParseAll({reinterpret_cast<const char*>(data), size});
      ParseAll(HelloWithVariables(&feed));
      break;
    case 1:
      FuzzMembership(&feed);
      break;
    default:
      Frames(&feed).Run();
  }
  return 0;
}
