// Fuzzes a coordinator's messages to an executor: the worker's core gets
// sequences of CoordinatorMessages (honest ones for its state, faulty ones, and
// parsed bytes), mixed with events of its own ranks, board and network.
// tests/fuzz/rig.h checks its actions.
#include <algorithm>
#include <map>
#include <vector>

#include "tests/fuzz/clients.h"
#include "tests/fuzz/rig.h"
#include "worker/core/limits.h"

namespace maypole::fuzz {
namespace {

constexpr int kLocal = 2;
constexpr int kMaxEvents = 400;

class Script {
 public:
  explicit Script(Feed* feed) : feed_(*feed), rig_(RigOptions{}) {
    nodes_ = 1 + static_cast<int>(feed_.Below(3));
    elastic_ = feed_.OnceIn(4);
    rig_.core().OnTime(0);
    if (feed_.OnceIn(8)) return;
    for (int i = 0; i < kLocal; ++i) Client(i);
    if (feed_.OnceIn(8)) return;
    Coordinator(Start());
    Backend();
  }

  void Run() {
    for (int i = 0; i < kMaxEvents && !feed_.done(); ++i) Event();
    rig_.core().OnStop("stopped");
    rig_.Do();
  }

 private:
  void Event() {
    switch (feed_.Below(16)) {
      case 0:
        return Client(static_cast<int>(feed_.Below(kLocal + 1)));
      case 1:
        return Leave();
      case 2:
        return Request();
      case 3:
      case 4:
      case 5:
        return Ready();
      case 6:
        return Backend();
      case 7:
        return Check();
      case 8:
        return Pass();
      case 9:
        return Free();
      case 10:
        return Raw();
      case 11:
        return nodes_ > 1 && feed_.OnceIn(4) ? Peer() : Link();
      default:
        return Coordinator(Message());
    }
  }

  // --- Ranks, board, network, time -------------------------------------------
  void Client(int local) {
    const int pid = 100 + local;
    rig_.Connect(elastic_ ? MakeElasticHello(&feed_, pid, epoch_)
                          : MakeHello(&feed_, local, kLocal, nodes_),
                 feed_.OnceIn(4) ? 0 : pid);
  }
  worker::ClientId AnyClient() {
    if (rig_.clients.empty()) return feed_.Below(4);
    auto it = rig_.clients.begin();
    std::advance(it, feed_.Byte() % rig_.clients.size());
    return *it;
  }
  void Leave() {
    const worker::ClientId client = AnyClient();
    switch (feed_.Below(3)) {
      case 0:
        return rig_.Goodbye(client, feed_.Below(2), feed_.OnceIn(2));
      case 1:
        return rig_.Gone(client);
      default:
        rig_.core().OnProcessEnded(feed_.Below(8));
        rig_.Do();
    }
  }
  void Request() {
    if (rig_.clients.empty()) return;
    const worker::ClientId client = AnyClient();
    switch (feed_.Below(4)) {
      case 0: {
        uint32_t& n = set_requests_[client];
        n += feed_.OnceIn(16) ? 2 : 1;
        rig_.core().OnSetRequest(client,
                                 MakeSetRequest(&feed_, n, kLocal * nodes_));
        break;
      }
      case 1: {
        auto join = session::Make<session::JoinRequest>();
        join.settled = feed_.Below(2);
        uint32_t& n = joins_[client];
        if (join.settled == 0) ++n;
        join.number = n;
        rig_.core().OnJoinRequest(client, join);
        break;
      }
      default:
        rig_.core().OnSlotRequest(client,
                                  MakeSlotRequest(&feed_, feed_.Below(3)));
    }
    rig_.Do();
  }
  void Ready() {
    if (rig_.allotted == 0) return Request();
    worker::ReadySlot ready;
    ready.slot = feed_.Byte() % (rig_.allotted + feed_.OnceIn(32));
    if (ready.slot >= rig_.allotted) return;
    const worker::AllotSlot& slot = rig_.slots[ready.slot];
    uint32_t& generation = generations_[ready.slot];
    if (!feed_.OnceIn(4)) ++generation;
    ready.generation = generation;
    ready.urgency = static_cast<Urgency>(feed_.Below(3));
    const uint32_t variant = feed_.Byte();
    for (size_t i = 0; i < slot.set->locals.size(); ++i) {
      Signature s =
          HonestSignature(slot.kind, slot.set->id, slot.set->size(), variant);
      if (slot.kind == Kind::kBroadcast) s.root = slot.set->ranks.front();
      if (feed_.OnceIn(32)) Spoil(&feed_, &s);
      ready.signatures.push_back(s);
      if (slot.kind != Kind::kAlltoall) continue;
      for (int j = 0; j < slot.set->size(); ++j) {
        ready.splits.push_back(s.shape[0] / slot.set->size());
      }
      if (feed_.OnceIn(32)) {
        ready.splits.back() = static_cast<int64_t>(feed_.Number());
      }
    }
    rig_.core().OnReadySlot(ready);
    if (!feed_.OnceIn(4)) rig_.core().OnPresenceAcknowledged();
    rig_.Do();
  }
  void Backend() {
    const bool well = !feed_.OnceIn(8);
    if (rig_.prepare_nodes > 0) {
      const uint32_t n = std::exchange(rig_.prepare_nodes, 0);
      rig_.core().OnBackendPrepared(
          well ? absl::StatusOr<std::vector<std::string>>(
                     std::vector<std::string>(n, "a"))
               : absl::UnavailableError("no port"));
      rig_.Do();
      if (feed_.OnceIn(8)) return;
      proto::CoordinatorMessage m;
      m.set_epoch(epoch_);
      for (uint32_t i = 0; i < n; ++i) m.mutable_endpoints()->add_addresses("");
      Coordinator(m);
    }
    if (rig_.connecting) {
      rig_.connecting = false;
      rig_.fail_board = feed_.OnceIn(16);
      rig_.core().OnBackendConnected(well ? absl::OkStatus()
                                          : absl::UnavailableError("no way"));
      rig_.Do();
    } else if (!well) {
      rig_.core().OnNetworkFailed(absl::UnavailableError("reset"));
      rig_.Do();
    }
  }
  void Check() {
    worker::BoardSnapshot snapshot;
    snapshot.ranks.resize(rig_.epoch_there ? rig_.config.local_size : 0);
    for (auto& rank : snapshot.ranks) {
      const uint8_t b = feed_.Byte();
      rank.here = (b & 1) == 0;
      rank.aside = (b & 2) != 0;
      if ((b & 4) != 0 && rig_.allotted > 0) {
        rank.holds = feed_.Byte() % rig_.allotted;
      }
      rank.beat = b >> 6;
      rank.blocked_count = b >> 3 & 3;
      const uint32_t on = feed_.Below(8);
      rank.blocked_on = on == 0   ? kBlockedInJoin
                        : on == 1 ? kBlockedForSet
                                  : Tagged(feed_.Below(4), feed_.Below(4));
      // As the keeper: only what is allotted can be undecided.
      rank.undecided = on > 1 && ValueOf(rank.blocked_on) < rig_.allotted;
      rank.missing = rank.undecided ? feed_.Below(1u << kLocal) : 0;
    }
    for (uint32_t s = feed_.Below(4); s > 0 && s <= rig_.allotted; --s) {
      snapshot.waiting.push_back(
          {s - 1, feed_.Below(4), 1 + feed_.Below(3), 1 + feed_.Below(3)});
    }
    snapshot.stopped = feed_.Below(4);
    rig_.core().OnSnapshot(snapshot);
    rig_.Do();
  }
  void Pass() {
    now_ms_ += uint64_t{1} << feed_.Below(16);
    rig_.core().OnTime(now_ms_);
    rig_.Do();
  }
  void Free() {
    if (rig_.runs.empty()) return;
    auto it = rig_.runs.begin();
    std::advance(it, feed_.Byte() % rig_.runs.size());
    const uint32_t record = it->first;
    rig_.runs.erase(it);
    rig_.core().OnRunFree(record);
    rig_.Do();
  }
  void Link() {
    if (!rig_.link_open || !feed_.OnceIn(4)) return;
    rig_.link_open = false;
    rig_.core().OnLinkLost(absl::UnavailableError("coordinator lost"));
    rig_.Do();
  }

  // --- The coordinator -------------------------------------------------------
  void Coordinator(const proto::CoordinatorMessage& m) {
    if (!rig_.link_open) return;  // nobody could have sent it
    proto::CoordinatorMessage arrived;
    if (!Transmit(m, &arrived)) return;
    NoteReached(arrived, OneofOf<proto::CoordinatorMessage>("payload"));
    rig_.core().OnCoordinator(arrived);
    rig_.Do();
  }
  // Another executor's, of several nodes.
  void Peer() {
    proto::PeerMessage m;
    m.set_schedule(feed_.OnceIn(8) ? feed_.Number() : schedule_);
    switch (feed_.Below(6)) {
      case 0:
        m.set_ready(feed_.Number());
        break;
      case 1:
        m.mutable_refusal()->set_from(feed_.Number());
        m.mutable_refusal()->set_text(std::string(feed_.Take(4)));
        break;
      case 2:
        m.mutable_leaving()->set_text(std::string(feed_.Take(4)));
        break;
      case 3:
        m.set_below_ready(feed_.OnceIn(2));
        break;
      case 4:
        *m.mutable_relayed() = Relayed().relayed();
        break;
      default:
        m.mutable_inputs_of()->set_id(feed_.Below(4));
        m.mutable_inputs_of()->set_generation(feed_.Below(4));
        m.mutable_inputs_of()->set_after(feed_.Number());
        m.set_inputs(std::string(feed_.Take(16)));
    }
    if (rig_.epoch_there) NoteReached(m, OneofOf<proto::PeerMessage>("what"));
    rig_.core().OnPeerMessage(
        1 + feed_.Below(static_cast<uint32_t>(nodes_) - 1), m);
    rig_.Do();
  }

  // The rarer messages.
  proto::CoordinatorMessage Schedule() {
    proto::CoordinatorMessage m;
    proto::Schedule* schedule = m.mutable_schedule();
    m.set_epoch(Epoch());
    if (!feed_.OnceIn(8)) ++schedule_;
    schedule->set_number(schedule_);
    schedule->set_length(feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number())
                                          : 1 + feed_.Below(3));
    schedule->set_refuse(feed_.OnceIn(8));
    schedule->set_fan_out(feed_.OnceIn(8) ? static_cast<uint32_t>(feed_.Number())
                                          : 0);
    for (uint32_t i = 0; i < 3 && !feed_.OnceIn(4); ++i) {
      proto::ScheduledRun* run = schedule->add_runs();
      run->set_index(feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number())
                                      : i);
      proto::ScheduledOperation* op = run->add_operations();
      proto::RunOperation known;
      const uint32_t slot = Identify(&known);
      op->set_id(known.id());
      const Kind kind = slot < rig_.allotted ? rig_.slots[slot].kind
                                             : Kind::kAllreduce;
      SetSignature(kind, op->mutable_signature());
    }
    return m;
  }
  void SetSignature(Kind kind, proto::LocalSignature* out) {
    const Signature honest = HonestSignature(kind, 0, 2, feed_.Byte());
    out->set_kind(static_cast<uint32_t>(kind));
    out->set_dtype(feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number())
                                    : 7);
    out->set_root(honest.root);
    out->set_prescale(1);
    out->set_postscale(1);
    for (int i = 0; i < honest.dims; ++i) out->add_shape(honest.shape[i]);
  }
  proto::CoordinatorMessage Relayed() {
    proto::CoordinatorMessage m;
    m.mutable_relayed()->set_epoch(Epoch());
    m.mutable_relayed()->set_incarnation("i");
    m.mutable_relayed()->set_message(SetReply().SerializeAsString());
    for (uint32_t i = feed_.Below(4); i > 0; --i) {
      m.mutable_relayed()->add_sequences(feed_.Below(4));
      m.mutable_relayed()->add_acknowledged(feed_.Number());
    }
    return m;
  }
  proto::CoordinatorMessage Communicator() {
    proto::CoordinatorMessage m;
    proto::Communicator* c = m.mutable_communicator();
    m.set_epoch(Epoch());
    c->set_number(feed_.OnceIn(8) ? static_cast<uint32_t>(feed_.Number())
                                  : 1 + feed_.Below(2));
    c->set_size(feed_.OnceIn(8) ? static_cast<uint32_t>(feed_.Number()) : 2);
    c->set_first(feed_.Below(2));
    for (uint32_t i = feed_.Below(3); i > 0; --i) c->add_gpus(feed_.Below(3));
    c->set_ranks_call_nccl(feed_.OnceIn(4));
    c->set_process_set(feed_.Below(3));
    return m;
  }
  proto::CoordinatorMessage Rare() {
    proto::CoordinatorMessage m;
    switch (feed_.Below(16)) {
      case 0:
      case 1:
        return Schedule();
      case 2:
        return Relayed();
      case 3:
        return Communicator();
      case 4:
        m.set_epoch(Epoch());
        m.mutable_communicator_id()->set_number(feed_.Below(3));
        m.mutable_communicator_id()->set_id(std::string(feed_.Take(8)));
        return m;
      case 5:
        m.set_epoch(Epoch());
        m.mutable_names_retired();
        for (uint32_t i = feed_.Below(3); i > 0; --i) {
          m.mutable_names_retired()->add_ids(feed_.Below(6));
        }
        return m;
      case 6:
        m.set_epoch(Epoch());
        m.mutable_timeline()->set_number(feed_.Below(4));
        m.mutable_timeline()->set_on(true);
        m.mutable_timeline()->set_path(std::string(feed_.Take(4)));
        return m;
      case 7:
        m.set_epoch(Epoch());
        m.mutable_timeline_records();
        return m;
      case 8:
        m.set_epoch(Epoch());
        m.mutable_timeline_taken();
        return m;
      case 9:
        m.set_epoch(Epoch());
        m.mutable_timeline()->set_number(feed_.Below(4));
        m.mutable_timeline()->set_closing(feed_.OnceIn(2));
        m.mutable_timeline()->set_error(std::string(feed_.Take(4)));
        return m;
      case 10:
        m.set_epoch(Epoch());
        m.mutable_clock_reply();
        return m;
      case 11:
        m.set_epoch(Epoch());
        m.mutable_watch_stats()->set_every_ms(
            static_cast<uint32_t>(feed_.Number()));
        m.mutable_watch_stats()->set_for_ms(
            static_cast<uint32_t>(feed_.Number()));
        return m;
      case 12:
        // It has said so in its Welcome. Recovered follows, of this epoch or
        // not.
        if (rig_.link_open) {
          rig_.core().OnCoordinatorReplaced();
          rig_.Do();
        }
        [[fallthrough]];
      case 13:
        m.set_epoch(Epoch());
        m.mutable_recovered()->set_endpoints(feed_.OnceIn(4));
        return m;
      case 14:  // the transport takes these two
        m.mutable_welcome()->set_session("1");
        return m;
      default:
        m.mutable_refused()->set_code(feed_.Below(20));
        return m;
    }
  }
  void Raw() {
    proto::CoordinatorMessage m;
    const std::string_view bytes = feed_.Take(feed_.Byte());
    if (m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      Coordinator(m);
    }
  }
  uint64_t Epoch() { return feed_.OnceIn(16) ? feed_.Below(4) : epoch_; }

  proto::CoordinatorMessage Start() {
    proto::CoordinatorMessage m;
    proto::EpochStart* start = m.mutable_epoch_start();
    if (rig_.link_open) ++epoch_;
    next_run_ = next_set_ = next_reply_ = next_join_ = 1;
    generations_.clear();
    ids_.clear();
    start->set_epoch(epoch_);
    start->set_stall_check_ms(1000);
    start->set_chunk_bytes(feed_.OnceIn(64) ? 0 : 4096);
    if (elastic_) {
      // The waiting ranks, as the core has last reported them.
      const proto::RanksReady* said = nullptr;
      for (const auto& sent : rig_.outbox) {
        if (sent.has_ranks_ready()) said = &sent.ranks_ready();
      }
      if (said != nullptr) {
        for (const auto& member : said->members()) {
          if (!feed_.OnceIn(8)) start->add_clients(member.client());
          if (feed_.OnceIn(32)) start->add_clients(member.client());
        }
      }
    }
    const int local = elastic_ ? start->clients_size() : kLocal;
    start->set_size(static_cast<uint32_t>(local + (nodes_ - 1) * kLocal));
    uint32_t rank = 0;
    for (int i = 0; i < nodes_; ++i) {
      proto::NodeInfo* node = start->add_nodes();
      node->set_protocol_version(feed_.OnceIn(64) ? 0 : kProtocolVersion);
      node->set_node("n" + std::to_string(i));
      for (int j = 0; j < (i == 0 ? local : kLocal); ++j) {
        node->add_ranks(rank++);
      }
    }
    if (feed_.OnceIn(16)) start->set_node_index(feed_.Below(4));
    if (feed_.OnceIn(16)) {
      start->set_size(static_cast<uint32_t>(feed_.Number()));
    }
    if (feed_.OnceIn(16)) {
      start->mutable_nodes(0)->add_ranks(static_cast<uint32_t>(feed_.Number()));
    }
    return m;
  }

  template <typename Message>
  uint32_t Identify(Message* m) {
    const uint32_t slot = rig_.allotted == 0 ? 0 : feed_.Byte() % rig_.allotted;
    uint32_t& id = ids_[slot];
    if (id == 0) id = static_cast<uint32_t>(ids_.size());
    const uint8_t how = feed_.Byte();
    if (how < 240) m->set_id(id);
    if (how % 4 != 0 && slot < rig_.allotted) {
      const worker::AllotSlot& s = rig_.slots[slot];
      m->mutable_identity()->set_process_set(s.set->id);
      m->mutable_identity()->set_kind(static_cast<uint32_t>(s.kind));
      m->mutable_identity()->set_name(s.name);
    } else if (how % 8 == 0) {
      m->set_id(how % 16);
      m->mutable_identity()->set_process_set(feed_.Below(3));
      m->mutable_identity()->set_kind(feed_.Below(kKinds + 1));
      m->mutable_identity()->set_name(MakeName(&feed_));
    }
    const uint32_t generation = generations_[slot];
    m->set_generation(feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number())
                                       : generation + (how == 1 ? 1 : 0));
    return slot;
  }

  void AddRun(proto::Execute* execute) {
    proto::Run* run = execute->add_runs();
    run->set_run(feed_.OnceIn(32) ? feed_.Number() : next_run_++);
    uint32_t slot = 0;
    const uint32_t count = feed_.OnceIn(4) ? 1 + feed_.Below(4) : 1;
    for (uint32_t i = 0; i < count; ++i) slot = Identify(run->add_operations());
    if (slot >= rig_.allotted) return;
    const worker::AllotSlot& s = rig_.slots[slot];
    const int n = s.set->size();
    if (s.kind == Kind::kAllgather) {
      for (int i = 0; i < kLocal * nodes_; ++i) run->add_first_dims(n);
    } else if (s.kind == Kind::kAlltoall) {
      for (int i = 0; i < n * n; ++i) run->add_splits(1);
    }
    if (run->first_dims_size() > 0 && feed_.OnceIn(8)) {
      run->set_first_dims(0, static_cast<int64_t>(feed_.Number()));
    }
    if (run->splits_size() > 0 && feed_.OnceIn(4)) {
      run->set_splits(feed_.Byte() % run->splits_size(),
                      static_cast<int64_t>(feed_.Number()));
    }
  }

  proto::CoordinatorMessage SetReply() {
    proto::CoordinatorMessage m;
    proto::SetReply* reply = m.mutable_set_reply();
    m.set_epoch(Epoch());
    reply->set_number(feed_.OnceIn(8) ? feed_.Below(8) : next_reply_++);
    if (feed_.OnceIn(8)) reply->set_code(3);
    if (feed_.OnceIn(4)) {
      reply->set_remove(true);
      reply->set_process_set(feed_.Below(4));
      return m;
    }
    reply->set_process_set(
        feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number()) : next_set_++);
    const uint8_t mask = feed_.Byte();
    for (uint32_t r = 0; r < 8; ++r) {
      if ((mask >> r & 1) != 0 && (r < 2u * nodes_ || feed_.OnceIn(8))) {
        reply->add_ranks(r);
      }
    }
    if (feed_.OnceIn(16)) {
      reply->add_ranks(static_cast<uint32_t>(feed_.Number()));
    }
    return m;
  }

  proto::CoordinatorMessage StandIn() {
    proto::CoordinatorMessage m;
    proto::StandIn* s = m.mutable_stand_in();
    m.set_epoch(Epoch());
    const uint32_t slot = Identify(s);
    const Kind kind = slot < rig_.allotted ? rig_.slots[slot].kind
                                           : static_cast<Kind>(feed_.Below(6));
    proto::LocalSignature* out = s->mutable_signature();
    SetSignature(kind, out);
    for (uint32_t i = feed_.OnceIn(16) ? feed_.Below(16) : 0; i > 0; --i) {
      out->add_shape(static_cast<int64_t>(feed_.Number()));
    }
    return m;
  }

  proto::CoordinatorMessage Message() {
    proto::CoordinatorMessage m;
    switch (feed_.Below(16)) {
      case 0:
        return Start();
      case 1:
        m.set_epoch(Epoch());
        m.mutable_endpoints()->add_addresses(std::string(feed_.Take(4)));
        return m;
      case 2:
        m.set_epoch(Epoch());
        Identify(m.mutable_operation_failed());
        m.mutable_operation_failed()->set_code(feed_.Byte());
        m.mutable_operation_failed()->set_message(
            std::string(feed_.OnceIn(8) ? 2000 : 20, 'm'));
        return m;
      case 3:
        m.set_epoch(Epoch());
        m.mutable_rank_left()->set_rank(
            feed_.OnceIn(8) ? static_cast<uint32_t>(feed_.Number())
                            : feed_.Below(6));
        m.mutable_rank_left()->set_message("rank left");
        return m;
      case 4:
        m.set_epoch(feed_.OnceIn(2) ? 0 : Epoch());
        m.mutable_epoch_end()->set_code(static_cast<int>(feed_.Below(20)));
        m.mutable_epoch_end()->set_message("it is over");
        if (feed_.OnceIn(4)) m.mutable_epoch_end()->add_clients(AnyClient());
        return m;
      case 5:
      case 6:
        return SetReply();
      case 7:
        m.set_epoch(Epoch());
        m.mutable_join_reply()->set_number(next_join_++);
        m.mutable_join_reply()->set_code(static_cast<int>(feed_.Byte()));
        return m;
      case 8:
        return StandIn();
      case 9:
        m.set_epoch(Epoch());
        m.mutable_notice()->set_text(std::string(feed_.Below(4) * 700, 't'));
        return m;
      case 10:
        m.set_epoch(Epoch());
        m.mutable_confirm_blocked()->set_round(feed_.Number());
        return m;
      case 12:
        return Rare();
      case 11:
        m.set_epoch(Epoch());
        m.mutable_membership_wanted()->set_new_ranks(
            static_cast<uint32_t>(feed_.Number()));
        return m;
      default:
        m.set_epoch(Epoch());
        for (uint32_t i = 1 + feed_.Below(2); i > 0; --i) {
          AddRun(m.mutable_execute());
        }
        return m;
    }
  }

  Feed& feed_;
  Rig rig_;
  int nodes_ = 1;
  bool elastic_ = false;
  int64_t now_ms_ = 0;
  uint64_t epoch_ = 0;
  uint64_t schedule_ = 0;
  uint64_t next_run_ = 1;
  uint32_t next_set_ = 1, next_reply_ = 1, next_join_ = 1;
  std::map<uint32_t, uint32_t> generations_;  // by slot
  std::map<uint32_t, uint32_t> ids_;          // by slot
  std::map<worker::ClientId, uint32_t> set_requests_, joins_;
};

}  // namespace
}  // namespace maypole::fuzz

extern "C" const char* FuzzerMissing() {
  namespace proto = maypole::proto;
  static const std::string missing = maypole::fuzz::MissingCases(
      {maypole::fuzz::OneofOf<proto::CoordinatorMessage>("payload"),
       maypole::fuzz::OneofOf<proto::PeerMessage>("what")});
  return missing.c_str();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  maypole::fuzz::Feed feed(data, size);
  maypole::fuzz::Script(&feed).Run();
  return 0;
}
