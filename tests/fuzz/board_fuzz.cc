// Fuzzes the board: a real board, created and kept as the executor does it,
// with the executor's core and network runner, and a coordinator. Ranks act
// honestly, and in between random bytes are written anywhere. Another node of
// the job is honest. Whatever is on the board, the executor may only do what
// tests/fuzz/rig.h allows, and must keep the protocol with the coordinator.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "common/board/gpu_place.h"
#include "common/board/urgent.h"
#include "common/wire/link.h"
#include "coordinator/core/coordinator_core.h"
#include "tests/fuzz/clients.h"
#include "tests/fuzz/rig.h"
#include "worker/core/operations/requests.h"

namespace maypole::fuzz {
namespace {

constexpr int kMaxEvents = 300;
constexpr coordinator::StreamId kOurs = 1, kTheirs = 2;

coordinator::Config MakeConfig() {
  coordinator::Config config;
  config.frozen_nodes = 0;  // there is nobody to follow a schedule with
  config.stall_check = std::chrono::seconds(1);
  return config;
}

class World {
 public:
  explicit World(Feed* feed)
      : feed_(*feed),
        local_(1 + static_cast<int>(feed->Below(3))),
        nodes_(1 + static_cast<int>(feed->Below(4) != 0)),
        rig_(FewSlots()),
        coordinator_(MakeConfig(), "incarnation") {
    rig_.core().OnTime(now_ms_);
    Hello(kOurs, "n0");
    if (nodes_ > 1) {
      Hello(kTheirs, "n1");
      Theirs(TheirReady());
    }
    for (int i = 0; i < local_; ++i) {
      auto hello = session::Make<session::Hello>();
      hello.rank = hello.local_rank = i;
      hello.size = local_ * nodes_;
      hello.local_size = local_;
      session::SetText(hello.job, "job");
      clients_.push_back(rig_.Connect(hello, 0));
    }
    Pump();
    Expect(rig_.keeper() != nullptr, "the epoch starts");
    for (int i = 0; i < 4; ++i) AskForSlot(static_cast<Kind>(feed_.Below(6)));
  }

  void Run() {
    for (int i = 0; i < kMaxEvents && !feed_.done(); ++i) {
      if (rig_.keeper() == nullptr) return;
      Event();
      Pump();
    }
  }

 private:
  const Board& board() { return rig_.keeper()->board(); }

  void Event() {
    switch (feed_.Below(16)) {
      case 0:
        return AskForSlot(static_cast<Kind>(feed_.Below(6)));
      case 1:
      case 2:
      case 3:
        return SubmitAll();
      case 4:
        return Submit(Slot(), static_cast<uint32_t>(Local()));
      case 5:
      case 6:
        return TheirReport();
      case 7:
        return Progress();
      case 8:
        return Seldom();
      case 9:
      case 10:
        return Turn();
      case 11: {
        const std::string_view bytes = feed_.Take(1 + feed_.Below(16));
        Write((feed_.Word() % board().bytes()), bytes);
        return;
      }
      default:
        return Scribble();
    }
  }

  void Seldom() {
    switch (feed_.Below(8)) {
      case 6:
      case 7:
        return Await();
      case 0:
        return MakeSet();
      case 1:
        return Join();
      case 2:
        return Leave();
      case 3:
        rig_.core().OnNetworkFailed(absl::UnavailableError("reset"));
        return rig_.Do();
      case 4: {
        std::string raw(feed_.Take(feed_.Byte()));
        const size_t i = static_cast<size_t>(Local());
        if (rig_.clients.contains(clients_[i]) &&
            !rig_.Message(clients_[i], raw)) {
          rig_.Gone(clients_[i]);
        }
        return;
      }
      default:
        for (int i = 0; i < 8; ++i) Turn();
        return OpenGpuMemory();
    }
  }

  // --- Honest ranks ----------------------------------------------------------
  int Local() { return static_cast<int>(feed_.Below(256)) % local_; }
  uint32_t Slot() {
    return rig_.allotted == 0 ? 0 : feed_.Byte() % rig_.allotted;
  }
  void AskForSlot(Kind kind) {
    const int i = Local();
    const auto client = clients_[static_cast<size_t>(i)];
    if (!rig_.clients.contains(client)) return;
    auto r = session::Make<session::SlotRequest>();
    r.kind = static_cast<uint32_t>(kind);
    r.process_set = feed_.OnceIn(4) ? feed_.Below(3) : 0;
    session::SetText(r.name, MakeName(&feed_));
    rig_.Message(client, BytesOf(r));
  }
  Signature Submitted(const worker::AllotSlot& a) {
    Signature s = HonestSignature(a.kind, a.set->id, a.set->size(), a.slot);
    if (a.kind == Kind::kBroadcast) s.root = a.set->ranks.front();
    return s;
  }
  void Submit(uint32_t slot, uint32_t local) {
    if (slot >= rig_.allotted) return;
    const worker::AllotSlot& a = rig_.slots[slot];
    if (a.set->PlaceOf(local) < 0) return;
    uint32_t& generation = generations_[{slot, local}];
    if (generation > 0 &&
        board().OutcomeOf(slot, generation) == Outcome::kRunning &&
        !a.set->negotiated()) {
      return;
    }
    ++generation;
    Signature s = Submitted(a);
    if (a.splits != 0) {
      std::atomic<int64_t>* row =
          board().splits(a.splits - 1, local, generation);
      for (int j = 0; j < a.set->size(); ++j) {
        row[j] = s.shape[0] / a.set->size();
      }
      if (feed_.OnceIn(16)) row[0] = static_cast<int64_t>(feed_.Number());
    }
    if (feed_.OnceIn(16)) Spoil(&feed_, &s);
    if (feed_.OnceIn(4)) {
      RaiseUrgency(board(), slot, generation,
                   static_cast<Urgency>(feed_.Below(3)));
    }
    const uint64_t place = GpuPlaceFor(a, local);
    const uint64_t room = place == kNoGpuPlace ? 0 : GpuRoomFor(s);
    board().Arrive(slot, local, generation, s, kNoBuffer, /*arena=*/0, place,
                   room);
    if (!board().AllArrived(slot, generation)) return;
    if (a.set->negotiated() || board().IsOnGpu(slot, generation)) {
      board().ready_bits(slot / 64).fetch_or(uint64_t{1} << slot % 64);
    } else {
      board().PlaceTicket(slot, generation, 0);
    }
  }
  // All ranks share one more memory with the executor.
  void OpenGpuMemory() {
    auto request = session::Make<session::GpuMemoryRequest>();
    request.number = ++gpu_memories_;
    request.sharing = static_cast<uint32_t>(session::GpuSharing::kDescriptor);
    request.bytes = 1 << 16;
    for (const auto client : clients_) {
      if (rig_.clients.contains(client)) rig_.Message(client, BytesOf(request));
    }
  }
  uint64_t GpuPlaceFor(const worker::AllotSlot& a, uint32_t local) {
    if (gpu_memories_ == 0 || a.set->negotiated() || a.kind == Kind::kBarrier) {
      return kNoGpuPlace;
    }
    if (feed_.OnceIn(16)) return feed_.Number();  // forged
    return PackGpuPlace(
        {gpu_memories_, gpu_memories_ % 2, local * kGpuPlaceAlignment});
  }
  uint64_t GpuRoomFor(const Signature& s) {
    if (feed_.OnceIn(16)) return feed_.Number();  // forged
    return s.Bytes() * feed_.Below(8);            // it may be too small
  }
  // A rank waits for a reported operation.
  void Await() {
    const uint32_t slot = Slot();
    if (slot >= rig_.allotted) return;
    RaiseUrgency(board(), slot, generations_[{slot, 0}], Urgency::kAwaited);
    board().ready_bits(slot / 64).fetch_or(uint64_t{1} << slot % 64);
    Turn();
  }
  void SubmitAll() {
    const uint32_t slot = Slot();
    for (int i = 0; i < local_; ++i) Submit(slot, static_cast<uint32_t>(i));
    if (feed_.OnceIn(2)) Report(slot);
    Turn();
  }
  // The members of a run execute all their parts of it.
  void Progress() {
    if (rig_.runs.empty()) return;
    auto it = rig_.runs.begin();
    std::advance(it, feed_.Byte() % rig_.runs.size());
    const worker::RunSpec& run = it->second;
    const RunRef ref = board().NegotiatedRef(run.record);
    const bool all = !feed_.OnceIn(4);
    for (uint32_t i = 0; i < static_cast<uint32_t>(local_); ++i) {
      if ((run.members >> i & 1) == 0) continue;
      maypole::Progress& p = board().progress(ref, i);
      const uint32_t some = all ? UINT32_MAX : feed_.Below(4);
      p.staged = Tagged(run.generation, some);
      p.reduced = Tagged(run.generation, some);
      p.consumed = Tagged(run.generation, some);
    }
    Turn();
    if (rig_.keeper() == nullptr || !all) return;
    // Left: the word of a later generation.
    for (const auto& [record, r] : rig_.runs) {
      for (uint32_t i = 0; i < static_cast<uint32_t>(local_); ++i) {
        board().progress(board().NegotiatedRef(record), i).consumed =
            Tagged(r.generation + 1, 0);
      }
    }
    Turn();
  }
  void MakeSet() {
    ++set_requests_;
    session::SetRequest r =
        MakeSetRequest(&feed_, set_requests_, local_ * nodes_);
    for (const auto client : clients_) {
      if (rig_.clients.contains(client)) rig_.Message(client, BytesOf(r));
    }
    for (int i = local_; i < local_ * nodes_; ++i) {
      proto::ExecutorMessage m;
      proto::SetRequest* out = m.mutable_set_request();
      m.set_epoch(epoch_);
      out->set_rank(static_cast<uint32_t>(i));
      out->set_number(set_requests_);
      out->set_remove(r.remove != 0);
      out->set_process_set(r.process_set);
      worker::AddMembers(r, out);
      Theirs(std::move(m));
    }
  }
  void Join() {
    const bool settled = feed_.OnceIn(2);
    if (!settled) ++joins_;
    auto join = session::Make<session::JoinRequest>();
    join.number = joins_;
    join.settled = settled ? 1 : 0;
    const bool all = feed_.OnceIn(2);
    for (size_t i = 0; i < clients_.size() - (all ? 0 : 1); ++i) {
      if (!rig_.clients.contains(clients_[i])) continue;
      board().rank(static_cast<uint32_t>(i)).aside = joins_;
      rig_.Message(clients_[i], BytesOf(join));
      if (rig_.keeper() == nullptr) return;
    }
    for (int i = local_; all && i < local_ * nodes_; ++i) {
      proto::ExecutorMessage m;
      m.set_epoch(epoch_);
      m.mutable_join_state()->set_rank(static_cast<uint32_t>(i));
      m.mutable_join_state()->set_number(joins_);
      m.mutable_join_state()->set_settled(settled);
      Theirs(std::move(m));
    }
  }
  void Leave() {
    const auto client = clients_[static_cast<size_t>(Local())];
    if (!rig_.clients.contains(client)) return;
    if (feed_.OnceIn(4)) return rig_.Gone(client);
    rig_.Goodbye(client, feed_.OnceIn(8) ? 1 : 0, false);
  }

  // --- Scribbling ------------------------------------------------------------
  void Write(size_t offset, std::string_view bytes) {
    auto* base = reinterpret_cast<std::byte*>(&board().header());
    const size_t n = std::min(bytes.size(), board().bytes() - offset);
    std::memcpy(base + offset, bytes.data(), n);
  }
  uint64_t Value() {
    switch (feed_.Below(4)) {
      case 0:
        return feed_.Number();
      case 1:
        return Tagged(feed_.Below(6), feed_.Below(8));
      case 2:
        return Tagged(feed_.Below(6), static_cast<uint32_t>(feed_.Number()));
      default:
        return Tagged(static_cast<uint32_t>(feed_.Number()), feed_.Below(6));
    }
  }
  template <typename T>
  void Over(T& part) {
    // Some word of it.
    auto* bytes = reinterpret_cast<std::byte*>(&part);
    const size_t words = sizeof(T) / 4;
    const size_t at = (feed_.Byte() * 256u + feed_.Byte()) % words * 4;
    const uint64_t value = Value();
    std::memcpy(bytes + at, &value, std::min<size_t>(8, sizeof(T) - at));
  }
  void Scribble() {
    const uint32_t slot = Slot();
    const auto local = static_cast<uint32_t>(Local());
    const uint32_t record = feed_.Below(4);
    switch (feed_.Below(14)) {
      case 0:
        return Over(board().header());
      case 1:
        return Over(board().rank(local));
      case 2:
        board().ready_bits(0) = feed_.OnceIn(2) ? UINT64_MAX : feed_.Word();
        return;
      case 3:
        return Over(board().slot(slot));
      case 4:
        board().arrival(slot, local).generation =
            static_cast<uint32_t>(feed_.Number());
        return;
      case 5: {
        Arrival& a = board().arrival(slot, local);
        return Over(a.submissions[feed_.Below(2)]);
      }
      case 6:
        board().run(slot).outcome = Value();
        return;
      case 7:
        return Over(board().run(board().NegotiatedRef(record)));
      case 8:
        return Over(board().progress(board().NegotiatedRef(record), local));
      case 9:
        return Over(board().plan(record));
      case 10: {
        // A cell of the ticket ring, which follows the ranks' blocks.
        const auto* base = reinterpret_cast<std::byte*>(&board().header());
        const auto* end = reinterpret_cast<std::byte*>(&board().ready_bits(0));
        const size_t cells =
            static_cast<size_t>(end - base) - size_t{kTicketCells} * 8;
        uint64_t value = Value();
        if (feed_.OnceIn(2)) value = feed_.Word();
        const size_t cell =
            feed_.OnceIn(8) ? kTicketCells - 1 : feed_.Below(64);
        return Write(cells + cell * 8,
                     {reinterpret_cast<const char*>(&value), 8});
      }
      case 11: {
        RankBlock& rank = board().rank(local);
        rank.blocked_on = feed_.OnceIn(4) ? kBlockedInJoin - feed_.Below(2)
                                          : Tagged(feed_.Below(4), slot);
        rank.blocked_count = 1 + 2 * feed_.Below(4);
        return;
      }
      case 12: {
        // All ranks say that they are blocked for this slot.
        for (uint32_t i = 0; i < static_cast<uint32_t>(local_); ++i) {
          board().rank(i).blocked_on = Tagged(generations_[{slot, i}], slot);
          board().rank(i).blocked_count = 1;
        }
        return;
      }
      default:
        return Over(board().rank(local).counters);
    }
  }

  // --- Time ------------------------------------------------------------------
  static RigOptions FewSlots() {
    RigOptions options;
    options.core.slots = 16;
    options.with_board = true;
    return options;
  }
  // Ranks return the recalled slots, or keep some of them.
  void Return() {
    if (rig_.recalls.empty()) return;
    const auto [client, recall] = rig_.recalls.front();
    rig_.recalls.pop_front();
    if (!rig_.clients.contains(client)) return;
    auto m = session::Make<session::SlotReturn>();
    for (uint32_t i = 0; i < recall.count; ++i) {
      if (!feed_.OnceIn(8)) m.slots[m.count++] = recall.slots[i];
    }
    rig_.Message(client, BytesOf(m));
  }
  void Turn() {
    if (rig_.keeper() == nullptr) return;
    Return();
    if (rig_.keeper() == nullptr) return;
    now_ms_ += int64_t{1} << feed_.Below(12);
    rig_.Turn(now_ms_, feed_.Below(8));
    Pump();
    const coordinator::Time now = std::chrono::milliseconds(now_ms_);
    if (coordinator_.Deadline() && *coordinator_.Deadline() <= now) {
      coordinator_.Passed(now, carry_);
      Pump();
    }
  }

  // --- The coordinator -------------------------------------------------------
  void Hello(coordinator::StreamId stream, const std::string& node) {
    proto::ExecutorMessage m;
    m.mutable_hello()->set_protocol_version(kProtocolVersion);
    m.mutable_hello()->set_newest_version(kProtocolVersion);
    m.mutable_hello()->set_job("job");
    m.mutable_hello()->set_node(node);
    Deliver(stream, m);
  }
  void Deliver(coordinator::StreamId stream, const proto::ExecutorMessage& m) {
    coordinator_.Received(std::chrono::milliseconds(now_ms_), stream, m,
                          carry_);
  }
  void Carry(const coordinator::Actions& actions) {
    for (const coordinator::Action& action : actions) {
      if (const auto* send = std::get_if<coordinator::Send>(&action)) {
        const bool ours = send->stream == kOurs;
        Link<proto::ExecutorMessage>& link = ours ? our_link_ : their_link_;
        const Receipt r = link.OnReceived(send->message.sequence(),
                                          send->message.acknowledged());
        if (r != Receipt::kNew) continue;
        (ours ? our_inbox_ : their_inbox_).push_back(send->message.ToMessage());
      } else if (const auto* close = std::get_if<coordinator::Close>(&action)) {
        Expect(close->stream != kOurs,
               "the executor keeps to the protocol, whatever ranks write: " +
                   std::string(close->status.message()));
        they_are_there_ = false;
      }
    }
  }
  // Carries all messages until there are none.
  void Pump() {
    for (int turns = 0;; ++turns) {
      Expect(turns < 10000, "messages come to an end");
      if (!rig_.outbox.empty()) {
        for (auto& m : std::exchange(rig_.outbox, {})) {
          const bool presence = m.has_presence();
          const auto* numbered = our_link_.Push(std::move(m));
          Expect(numbered != nullptr, "what is sent is acknowledged");
          Deliver(kOurs, proto::ExecutorMessage(*numbered));
          if (!presence) continue;
          rig_.core().OnPresenceAcknowledged();
          rig_.Do();
        }
      } else if (!our_inbox_.empty()) {
        const proto::CoordinatorMessage m = std::move(our_inbox_.front());
        our_inbox_.pop_front();
        rig_.core().OnCoordinator(m);
        rig_.Do();
        if (rig_.prepare_nodes > 0) {
          rig_.core().OnBackendPrepared(std::vector<std::string>(
              std::exchange(rig_.prepare_nodes, 0), "a"));
          rig_.Do();
        }
        if (std::exchange(rig_.connecting, false)) {
          rig_.core().OnBackendConnected(absl::OkStatus());
          rig_.Do();
        }
      } else if (!their_inbox_.empty()) {
        const proto::CoordinatorMessage m = std::move(their_inbox_.front());
        their_inbox_.pop_front();
        TheyReceive(m);
      } else {
        return;
      }
    }
  }

  // --- The other node --------------------------------------------------------
  proto::ExecutorMessage TheirReady() {
    proto::ExecutorMessage m;
    proto::RanksReady* ready = m.mutable_ranks_ready();
    ready->set_size(static_cast<uint32_t>(local_ * nodes_));
    ready->set_chunk_bytes(4096);
    ready->set_stall_check_ms(-1);
    ready->set_stall_shutdown_ms(-1);
    for (int i = local_; i < local_ * nodes_; ++i) {
      ready->add_ranks(static_cast<uint32_t>(i));
    }
    return m;
  }
  void Theirs(proto::ExecutorMessage m) {
    if (nodes_ < 2 || !they_are_there_) return;
    const auto* numbered = their_link_.Push(std::move(m));
    if (numbered != nullptr) {
      Deliver(kTheirs, proto::ExecutorMessage(*numbered));
    }
  }
  template <typename T>
  std::string TheirKey(const T& op) {
    if (op.has_identity()) {
      const std::string key =
          IdentityKey(op.identity().process_set(), op.identity().kind(),
                      op.identity().name());
      if (op.id() != 0) their_ids_[op.id()] = key;
      return key;
    }
    return their_ids_[op.id()];
  }
  void TheyReceive(const proto::CoordinatorMessage& m) {
    if (m.has_epoch_start()) {
      epoch_ = m.epoch_start().epoch();
      proto::ExecutorMessage endpoint;
      endpoint.set_epoch(epoch_);
      for (int i = 0; i < nodes_; ++i) {
        endpoint.mutable_endpoint()->add_addresses("b");
      }
      Theirs(std::move(endpoint));
    }
    for (const proto::Run& run : m.execute().runs()) {
      for (const auto& op : run.operations()) user_timeout_.erase(TheirKey(op));
    }
    if (m.has_operation_failed()) {
      user_timeout_.erase(TheirKey(m.operation_failed()));
    }
    if (m.has_epoch_end() && m.epoch() == epoch_) {
      they_are_there_ = false;  // they stay away
    }
  }
  void TheirReport() { Report(Slot()); }
  // They submit the operation of this node's slot.
  void Report(uint32_t slot) {
    if (nodes_ < 2 || slot >= rig_.allotted) return;
    const worker::AllotSlot& a = rig_.slots[slot];
    if (!a.set->negotiated()) return;
    const std::string key =
        IdentityKey(a.set->id, static_cast<uint32_t>(a.kind), a.name);
    if (!user_timeout_.insert(key).second) return;
    proto::ExecutorMessage m;
    m.set_epoch(epoch_);
    proto::PresentOperation* op = m.mutable_presence()->add_operations();
    op->mutable_identity()->set_process_set(a.set->id);
    op->mutable_identity()->set_kind(static_cast<uint32_t>(a.kind));
    op->mutable_identity()->set_name(a.name);
    op->set_generation(++their_generations_[key]);
    op->set_urgency(feed_.Below(3));
    const Signature s = Submitted(a);
    proto::LocalSignature* out = op->add_signatures();
    for (const int rank : a.set->ranks) {
      if (rank < local_) continue;
      out->add_ranks(static_cast<uint32_t>(rank));
      if (Gathers(a.kind)) {
        op->add_first_dims(s.shape[0]);
      }
      for (int j = 0; a.kind == Kind::kAlltoall && j < a.set->size(); ++j) {
        op->add_splits(s.shape[0] / a.set->size());
      }
    }
    out->set_kind(static_cast<uint32_t>(s.kind));
    out->set_dtype(static_cast<uint32_t>(s.dtype));
    out->set_op(static_cast<uint32_t>(s.op));
    out->set_root(s.root);
    out->set_prescale(s.prescale);
    out->set_postscale(s.postscale);
    for (int i = 0; i < s.dims; ++i) out->add_shape(s.shape[i]);
    Theirs(std::move(m));
  }

  Feed& feed_;
  const int local_;
  const int nodes_;
  Rig rig_;
  coordinator::CoordinatorCore coordinator_;
  const std::function<void(coordinator::Actions*)> carry_ =
      [this](coordinator::Actions* actions) { Carry(*actions); };
  int64_t now_ms_ = 1000;
  uint64_t epoch_ = 0;
  std::vector<worker::ClientId> clients_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> generations_;
  uint32_t set_requests_ = 0, joins_ = 0, gpu_memories_ = 0;
  Link<proto::ExecutorMessage> our_link_{4096}, their_link_{4096};
  std::deque<proto::CoordinatorMessage> our_inbox_, their_inbox_;
  bool they_are_there_ = true;
  std::map<uint32_t, std::string> their_ids_;
  std::set<std::string> user_timeout_;
  std::map<std::string, uint32_t> their_generations_;
};

}  // namespace
}  // namespace maypole::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  maypole::fuzz::Feed feed(data, size);
  maypole::fuzz::World(&feed).Run();
  return 0;
}
