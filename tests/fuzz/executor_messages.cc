// Coordinated: the messages of its executors.
#include <algorithm>
#include <iterator>

#include "common/limits.h"
#include "common/types.h"
#include "tests/fuzz/executors.h"

namespace maypole::fuzz {
namespace {

constexpr uint32_t kRanksOfNode = 2;

}  // namespace

uint64_t Coordinated::Epoch(const Player& p) {
  return feed_.OnceIn(32) ? feed_.Number() : p.epoch;
}

uint32_t Coordinated::Rank(const Player& p) {
  const std::vector<uint32_t> own = p.OwnRanks();
  if (own.empty() || feed_.OnceIn(32)) {
    return static_cast<uint32_t>(feed_.Number());
  }
  return own[feed_.Byte() % own.size()];
}

std::string Coordinated::Name() {
  const uint32_t choice = feed_.Below(32);
  if (choice == 31) return std::string(kMaxNameBytes + feed_.Below(2), 'n');
  if (choice == 30) return std::string(feed_.Take(feed_.Below(8)));
  return {static_cast<char>('a' + choice % 4)};
}

void Coordinated::Identity(proto::Identity* out) {
  out->set_process_set(feed_.OnceIn(4) ? feed_.Below(4) : 0);
  out->set_kind(feed_.OnceIn(32) ? static_cast<uint32_t>(feed_.Number())
                                 : feed_.Below(kKinds - 1));
  out->set_name(Name());
}

proto::ExecutorMessage Coordinated::Make(Player* p) {
  proto::ExecutorMessage m;
  if (p->schedule != 0 && feed_.OnceIn(2)) return ScheduleEnded(p);
  switch (feed_.Below(24)) {
    case 0:
      return p->elastic != feed_.OnceIn(16) ? ElasticReady(p) : Ready(p);
    case 1:
      m.mutable_ranks_waiting()->set_size(
          feed_.OnceIn(8) ? static_cast<uint32_t>(feed_.Number()) : 4);
      m.mutable_ranks_waiting()->set_local_size(feed_.Below(4));
      for (uint32_t i = feed_.Below(3); i > 0; --i) {
        m.mutable_ranks_waiting()->add_ranks(feed_.Below(5));
      }
      return m;
    case 2:
      return Endpoint(p);
    case 3:
    case 4:
      return SetRequest(p, Rank(*p));
    case 5:
    case 6:
      return Join(p, Rank(*p), feed_.OnceIn(2));
    case 7:
      if (!feed_.OnceIn(8)) return Presence(p);
      m.set_epoch(Epoch(*p));
      m.mutable_relays_ready();
      p->lied = true;  // perhaps: only the first node may say it
      return m;
    case 8: {
      proto::RankGone* gone = m.mutable_rank_gone();
      m.set_epoch(feed_.OnceIn(8) ? 0 : Epoch(*p));
      gone->set_rank(Rank(*p));
      gone->set_clean(!feed_.OnceIn(4));
      gone->set_returns(feed_.OnceIn(2));
      gone->set_how(feed_.OnceIn(8) ? std::string(600, '\n') : "ended");
      return m;
    }
    case 9:
      m.set_epoch(Epoch(*p));
      m.mutable_failed()->set_code(static_cast<int>(feed_.Byte()));
      m.mutable_failed()->set_message(std::string(feed_.Take(20)));
      return m;
    case 10:
    case 11:
      return Late(p);
    case 12:
    case 13:
      return Blocked(p);
    case 14:
      p->lied = true;
      return Raw();
    case 15:
      return Retire(p);
    case 16:
      return Other(p);
    default:
      return Presence(p);
  }
}

// What needs a schedule, GPUs, checksums, a timeline or an operator.
proto::ExecutorMessage Coordinated::Other(Player* p) {
  proto::ExecutorMessage m;
  const uint32_t what = feed_.Below(12);
  switch (what) {
    case 0:
      return RankGpu(p);
    case 1:
      return CommunicatorId(p);
    case 2:
    case 3:
      return Results(p);
    case 4:
    case 5:
    case 6:
    case 7:
      return Timeline(p, what - 4);
    case 8:
      m.set_epoch(Epoch(*p));
      m.mutable_clock_query()->set_sent_ns(static_cast<int64_t>(feed_.Number()));
      return m;
    case 9:
      return NodeStats(p);
    case 10:
      return ScheduleEnded(p);
    default: {
      p->lied = true;
      const uint64_t epoch = p->epoch;
      const proto::EpochStart start = p->start;
      m = NodeState(p, MakeAccount());
      p->epoch = epoch;
      p->start = start;
      if (feed_.OnceIn(2)) return m;
      const std::string state = m.node_state().SerializeAsString();
      m.mutable_node_state_part()->set_piece(
          state.substr(0, state.size() - feed_.Below(2)));
      m.mutable_node_state_part()->set_last(!feed_.OnceIn(8));
      return m;
    }
  }
}

proto::ExecutorMessage Coordinated::ScheduleEnded(Player* p) {
  proto::ExecutorMessage m;
  proto::ScheduleEnded* ended = m.mutable_schedule_ended();
  m.set_epoch(Epoch(*p));
  ended->set_number(feed_.OnceIn(32) ? feed_.Number() : p->schedule);
  ended->set_runs(feed_.Number());
  ended->set_operations(feed_.Number());
  ended->set_why(static_cast<proto::ScheduleEnd>(
      feed_.OnceIn(32) ? static_cast<int>(feed_.Byte())
                       : static_cast<int>(feed_.Below(6))));
  ended->set_text(std::string(feed_.Take(4)));
  p->schedule = 0;
  return m;
}

proto::ExecutorMessage Coordinated::RankGpu(Player* p) {
  proto::ExecutorMessage m;
  proto::RankGpu* gpu = m.mutable_rank_gpu();
  m.set_epoch(Epoch(*p));
  gpu->set_rank(Rank(*p));
  gpu->set_gpu(feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number())
                                : feed_.Below(2));
  gpu->set_own(feed_.OnceIn(4));
  // Mostly a GPU of the node alone, and the same one each time.
  std::string uuid(kGpuUuidBytes, static_cast<char>(p->index));
  uuid[0] = static_cast<char>(gpu->gpu());
  if (feed_.OnceIn(16)) uuid.resize(feed_.Below(20));
  gpu->set_uuid(uuid);
  gpu->set_bytes(feed_.Number());
  return m;
}

proto::ExecutorMessage Coordinated::CommunicatorId(Player* p) {
  if (p->communicator == 0 && !feed_.OnceIn(8)) return RankGpu(p);
  proto::ExecutorMessage m;
  m.set_epoch(Epoch(*p));
  m.mutable_communicator_id()->set_number(
      feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number())
                       : std::exchange(p->communicator, 0));
  m.mutable_communicator_id()->set_id(
      std::string(feed_.OnceIn(16) ? feed_.Below(2) * 2000 : 8, 'i'));
  return m;
}

proto::ExecutorMessage Coordinated::Results(Player* p) {
  if (p->executed.empty() && !feed_.OnceIn(8)) return NodeStats(p);
  proto::ExecutorMessage m;
  m.set_epoch(Epoch(*p));
  m.mutable_results()->set_equal(feed_.Number());
  m.mutable_results()->set_unchecked(feed_.Number());
  proto::Result* result = m.mutable_results()->add_results();
  if (!p->executed.empty()) {
    const auto& [identity, id, generation] = p->executed.back();
    *result->mutable_identity() = identity;
    result->set_id(id);
    result->set_generation(generation);
    p->executed.pop_back();
  }
  const std::vector<uint32_t> own = p->OwnRanks();
  const bool differ = feed_.OnceIn(8);
  if (p->start.nodes_size() == 1) result->set_id(0);
  if (feed_.OnceIn(16)) result->set_id(static_cast<uint32_t>(feed_.Number()));
  for (size_t i = 0; i < own.size(); ++i) {
    proto::ResultCopies* copies =
        i == 0 || differ || result->id() == 0 ? result->add_copies()
                                              : result->mutable_copies(0);
    copies->set_checksum(differ ? static_cast<uint32_t>(i) : 7);
    copies->set_bytes(4);
    copies->add_ranks(own[i]);
  }
  if (feed_.OnceIn(16) && result->copies_size() > 0) {
    result->mutable_copies(0)->add_ranks(Rank(*p));
  }
  return m;
}

proto::ExecutorMessage Coordinated::Timeline(Player* p, uint32_t what) {
  proto::ExecutorMessage m;
  const uint32_t number = feed_.OnceIn(16)
                              ? static_cast<uint32_t>(feed_.Number())
                              : p->timeline;
  switch (what) {
    case 0: {
      proto::TimelineRequest* request = m.mutable_timeline_request();
      m.set_epoch(Epoch(*p));
      request->set_rank(Rank(*p));
      request->set_stop(feed_.OnceIn(4));
      request->set_number(number);
      request->set_path(feed_.OnceIn(8) ? std::string(600, '\xe2')
                                        : std::string(feed_.Take(4)));
      return m;
    }
    case 1: {
      proto::TimelineRecords* records = m.mutable_timeline_records();
      m.set_epoch(Epoch(*p));
      records->set_number(number);
      records->set_node(feed_.Below(4));
      records->set_records(std::string(feed_.Take(8)));
      records->set_dropped(feed_.Number());
      records->set_clock_offset_ns(static_cast<int64_t>(feed_.Number()));
      records->set_last(feed_.OnceIn(4));
      return m;
    }
    case 2:
      m.set_epoch(Epoch(*p));
      m.mutable_timeline_taken()->set_number(number);
      m.mutable_timeline_taken()->set_node(feed_.Below(p->start.nodes_size() + 1));
      return m;
    default:
      m.set_epoch(Epoch(*p));
      m.mutable_timeline_closed()->set_number(number);
      m.mutable_timeline_closed()->set_code(static_cast<int>(feed_.Byte()));
      m.mutable_timeline_closed()->set_message(std::string(feed_.Take(8)));
      return m;
  }
}

proto::ExecutorMessage Coordinated::NodeStats(Player* p) {
  proto::ExecutorMessage m;
  proto::NodeStats* stats = m.mutable_node_stats();
  m.set_epoch(Epoch(*p));
  p->stats_ms += 1000;
  stats->set_time_ms(feed_.OnceIn(8) ? static_cast<int64_t>(feed_.Number())
                                     : p->stats_ms);
  stats->set_steps(feed_.Number());
  stats->set_operations(feed_.Number());
  stats->set_runs(feed_.Number());
  const size_t ranks = p->OwnRanks().size() + (feed_.OnceIn(32) ? 1 : 0);
  for (size_t i = 0; i < ranks; ++i) stats->add_waited_ns(feed_.Number());
  if (feed_.OnceIn(4)) {
    proto::GpuLoad* load = stats->add_gpus();
    load->set_uuid(std::string(feed_.OnceIn(8) ? 3 : kGpuUuidBytes, 'g'));
    load->set_used_bytes(feed_.Number());
    load->set_busy_percent(static_cast<uint32_t>(feed_.Number()));
  }
  return m;
}

// Asks the coordinator to forget some of the names that have ids.
proto::ExecutorMessage Coordinated::Retire(Player* p) {
  proto::ExecutorMessage m;
  m.set_epoch(Epoch(*p));
  m.mutable_retire_names();
  for (const auto& [key, id] : p->ids) {
    if (id != 0 && feed_.OnceIn(2)) m.mutable_retire_names()->add_ids(id);
  }
  if (feed_.OnceIn(32)) {
    m.mutable_retire_names()->add_ids(static_cast<uint32_t>(feed_.Number()));
    p->lied = true;
  }
  return m;
}

proto::ExecutorMessage Coordinated::Ready(Player* p) {
  uint32_t nodes = 0;
  for (const Player& q : players_) nodes += q.job == p->job ? 1 : 0;
  proto::ExecutorMessage m;
  proto::RanksReady* ready = m.mutable_ranks_ready();
  ready->set_size(std::min(nodes, 3u) * kRanksOfNode);
  ready->set_chunk_bytes(4096);
  ready->set_checksums(checksums_);
  ready->set_stall_check_ms(-1);
  ready->set_stall_shutdown_ms(feed_.OnceIn(8) ? 5000 : -1);
  for (uint32_t i = 0; i < kRanksOfNode; ++i) {
    ready->add_ranks(p->index * kRanksOfNode + i);
    ready->add_pids(100 + i);
  }
  if (!feed_.OnceIn(16)) return m;
  switch (feed_.Below(6)) {
    case 0:
      ready->set_size(static_cast<uint32_t>(feed_.Number()));
      break;
    case 1:
      ready->add_ranks(static_cast<uint32_t>(feed_.Number()));
      break;
    case 2:
      ready->set_stall_check_ms(static_cast<int64_t>(feed_.Number()));
      break;
    case 3:
      ready->add_fusion_thresholds(static_cast<int64_t>(feed_.Number()));
      ready->add_fusion_thresholds(static_cast<int64_t>(feed_.Number()));
      break;
    case 4:
      ready->set_stall_shutdown_ms(static_cast<int64_t>(feed_.Number()));
      break;
    default:
      ready->set_chunk_bytes(static_cast<uint32_t>(feed_.Number()));
  }
  return m;
}

proto::ExecutorMessage Coordinated::ElasticReady(Player* p) {
  proto::ExecutorMessage m;
  proto::RanksReady* ready = m.mutable_ranks_ready();
  ready->set_elastic(true);
  ready->set_min_size(feed_.OnceIn(32) ? static_cast<uint32_t>(feed_.Number())
                                       : 2);
  ready->set_max_size(4);
  ready->set_chunk_bytes(4096);
  ready->set_stall_check_ms(-1);
  ready->set_stall_shutdown_ms(-1);
  ready->set_round(feed_.OnceIn(32) ? feed_.Number() : p->round);
  if (!p->waiting.empty() && feed_.OnceIn(4)) p->waiting.pop_back();
  while (p->waiting.size() < kRanksOfNode && !feed_.OnceIn(4)) {
    proto::ElasticMember member;
    member.set_client(++last_client_);
    member.set_pid(static_cast<int64_t>(100 + last_client_));
    if (p->epoch > 0 && feed_.OnceIn(2)) {
      member.set_epoch(Epoch(*p));
      member.set_rank(Rank(*p));
    }
    if (feed_.OnceIn(32)) member.set_client(feed_.Number());
    p->waiting.push_back(member);
  }
  for (const auto& member : p->waiting) *ready->add_members() = member;
  return m;
}

proto::ExecutorMessage Coordinated::Endpoint(Player* p) {
  proto::ExecutorMessage m;
  m.set_epoch(Epoch(*p));
  const int n = p->start.nodes_size() + (feed_.OnceIn(32) ? 1 : 0);
  for (int i = 0; i < n; ++i) m.mutable_endpoint()->add_addresses("a");
  m.mutable_endpoint()->set_nccl_version(gpus_ ? 21800 : 0);
  if (feed_.OnceIn(64)) {
    m.mutable_endpoint()->add_addresses(std::string(2000, 'a'));
  }
  return m;
}

// --- Presence ----------------------------------------------------------------

void Coordinated::AddSignatures(Player* p, uint32_t kind, uint32_t set,
                                proto::PresentOperation* op) {
  std::vector<uint32_t> members;  // of the set, and of them on this node
  for (uint32_t r = 0; r < p->start.size() && r < 16; ++r) members.push_back(r);
  if (set != 0 && p->sets.contains(set)) members = p->sets[set];
  std::vector<uint32_t> ranks = p->OwnRanks();
  std::sort(ranks.begin(), ranks.end());
  std::erase_if(ranks, [&](uint32_t r) {
    return std::find(members.begin(), members.end(), r) == members.end();
  });
  const uint32_t shape = feed_.OnceIn(16) ? feed_.Below(4) : 1;
  const auto n = static_cast<int64_t>(members.size());
  proto::LocalSignature* s = op->add_signatures();
  for (const uint32_t rank : ranks) s->add_ranks(rank);
  s->set_kind(kind);
  s->set_dtype(7);
  s->set_op(1);
  s->set_root(kind == static_cast<uint32_t>(Kind::kBroadcast) ? 0 : -1);
  s->set_prescale(1);
  s->set_postscale(1);
  s->set_aside(feed_.OnceIn(16));
  if (kind == static_cast<uint32_t>(Kind::kBarrier)) {
    s->set_dtype(0);
    for (int i = 0; i < kMaxDims; ++i) s->add_shape(0);
  } else {
    s->add_shape(n * shape);
  }
  const bool alltoall = kind == static_cast<uint32_t>(Kind::kAlltoall);
  if (alltoall || kind == static_cast<uint32_t>(Kind::kAllgather)) {
    for (size_t i = 0; i < ranks.size(); ++i) op->add_first_dims(n * shape);
  }
  for (size_t i = 0; alltoall && i < ranks.size() * members.size(); ++i) {
    op->add_splits(shape);
  }
  for (uint32_t i = 0; gpus_ && i < ranks.size(); ++i) {
    op->add_gpus(i);
    if (op->first_dims_size() > 0) op->add_gpu_rooms(4096);
    op->set_ranks_call_nccl(set != 0);
  }
  if (!feed_.OnceIn(16)) return;
  const uint64_t value = feed_.Number();
  switch (feed_.Below(9)) {
    case 0:
      s->set_dtype(static_cast<uint32_t>(value));
      break;
    case 1:
      s->set_op(static_cast<uint32_t>(value));
      break;
    case 2:
      s->set_root(static_cast<int32_t>(value));
      break;
    case 3:
      s->add_shape(static_cast<int64_t>(value));
      break;
    case 4:
      s->set_prescale(static_cast<double>(value) / 3);
      break;
    case 5:
      if (op->first_dims_size() > 0) {
        op->set_first_dims(0, static_cast<int64_t>(value));
      }
      break;
    case 6:
      if (op->splits_size() > 0) {
        op->set_splits(0, static_cast<int64_t>(value));
      }
      break;
    case 7:  // it may be, or not
      op->clear_signatures();
      op->set_as_before(true);
      break;
    default:  // ranks that do not agree
      if (s->ranks_size() > 1) {
        proto::LocalSignature other = *s;
        other.mutable_ranks()->Clear();
        other.add_ranks(s->ranks(s->ranks_size() - 1));
        s->mutable_ranks()->RemoveLast();
        other.add_shape(2);
        *op->add_signatures() = other;
      }
  }
}

void Coordinated::AddPresent(Player* p, const proto::Identity& identity,
                             proto::Presence* presence) {
  proto::PresentOperation* op = presence->add_operations();
  const std::string key = std::to_string(identity.process_set()) + "/" +
                          std::to_string(identity.kind()) + "/" +
                          identity.name();
  p->identities[key] = identity;
  const auto id = p->ids.find(key);
  if (id != p->ids.end() && !feed_.OnceIn(8)) {
    op->set_id(id->second);
  } else {
    *op->mutable_identity() = identity;
  }
  if (feed_.OnceIn(64)) {  // it may be that of another operation
    op->set_id(static_cast<uint32_t>(feed_.Number()));
    p->lied = true;
  }
  uint32_t& generation = p->generations[key];
  // Not twice before it is answered, normally.
  if (!p->unanswered.contains({key, generation}) || feed_.OnceIn(64)) {
    ++generation;
  }
  op->set_generation(feed_.OnceIn(64) ? static_cast<uint32_t>(feed_.Number())
                                      : generation);
  op->set_urgency(feed_.OnceIn(32) ? feed_.Byte() : feed_.Below(3));
  AddSignatures(p, identity.kind(), identity.process_set(), op);
  // Impossible contents: the coordinator must end the session.
  if (!p->unanswered.insert({key, op->generation()}).second) p->lied = true;
  for (const auto& [k, known] : p->ids) {
    if (op->id() != 0 && known == op->id()) {
      p->unanswered.insert({k, op->generation()});
    }
  }
}

proto::ExecutorMessage Coordinated::Presence(Player* p) {
  proto::ExecutorMessage m;
  m.set_epoch(Epoch(*p));
  for (uint32_t i = 1 + feed_.Below(3); i > 0; --i) {
    proto::Identity identity;
    Identity(&identity);
    AddPresent(p, identity, m.mutable_presence());
  }
  if (feed_.OnceIn(8)) AddUrgent(p, m.mutable_presence());
  return m;
}

// Usually an operation that waits for its answer.
void Coordinated::AddUrgent(Player* p, proto::Presence* presence) {
  proto::UrgentOperation* urgent = presence->add_urgent();
  if (p->unanswered.empty() || feed_.OnceIn(8)) {
    Identity(urgent->mutable_identity());
    urgent->set_generation(feed_.Below(4));
    if (feed_.OnceIn(4)) urgent->set_id(static_cast<uint32_t>(feed_.Number()));
    return;
  }
  auto it = p->unanswered.begin();
  std::advance(it, feed_.Byte() % p->unanswered.size());
  const auto id = p->ids.find(it->first);
  if (id != p->ids.end()) {
    urgent->set_id(id->second);
  } else {
    *urgent->mutable_identity() = p->identities[it->first];
  }
  urgent->set_generation(it->second);
}

void Coordinated::Freeze() {
  constexpr int kSteps = 8;  // those before may have been other ones
  proto::Identity identity;
  identity.set_kind(static_cast<uint32_t>(Kind::kAllreduce));
  identity.set_name("step");
  const std::string job = Any().job;
  for (int step = 0; step < kSteps; ++step) {
    for (Player& p : players_) {
      if (p.undisturbed || p.job != job || p.epoch == 0 || p.schedule != 0) {
        continue;
      }
      proto::ExecutorMessage m;
      m.set_epoch(p.epoch);
      AddPresent(&p, identity, m.mutable_presence());
      m.mutable_presence()->mutable_operations(0)->set_urgency(2);
      Say(&p, std::move(m), true);
    }
    for (Player& p : players_) {
      if (p.undisturbed || p.job != job) continue;
      if (p.communicator != 0) Say(&p, CommunicatorId(&p));
      if (checksums_ != 0 && !p.executed.empty()) Say(&p, Results(&p));
    }
  }
}

void Coordinated::Together() {
  const uint8_t choice = feed_.Byte();
  if (choice >= 216) return Freeze();
  const uint32_t what = choice % 5;
  proto::Identity identity;
  Identity(&identity);
  const std::string job = Any().job;
  for (Player& p : players_) {
    if (p.undisturbed || p.job != job || p.epoch == 0) continue;
    if (what < 2) {
      proto::ExecutorMessage m;
      m.set_epoch(p.epoch);
      AddPresent(&p, identity, m.mutable_presence());
      Say(&p, std::move(m));
      continue;
    }
    for (const uint32_t rank : p.OwnRanks()) {
      Say(&p, what == 2 ? SetRequest(&p, rank) : Join(&p, rank, what == 4));
    }
  }
}

// --- The rest ----------------------------------------------------------------

proto::ExecutorMessage Coordinated::Join(Player* p, uint32_t rank,
                                         bool settled) {
  proto::ExecutorMessage m;
  proto::JoinState* join = m.mutable_join_state();
  m.set_epoch(Epoch(*p));
  join->set_rank(rank);
  join->set_settled(settled);
  uint32_t& number = p->joins[rank];
  if (!settled) ++number;
  join->set_number(feed_.OnceIn(32) ? feed_.Below(8) : number);
  return m;
}

proto::ExecutorMessage Coordinated::SetRequest(Player* p, uint32_t rank) {
  proto::ExecutorMessage m;
  proto::SetRequest* request = m.mutable_set_request();
  m.set_epoch(Epoch(*p));
  request->set_rank(rank);
  uint32_t& number = p->set_requests[request->rank()];
  ++number;
  request->set_number(feed_.OnceIn(32) ? static_cast<uint32_t>(feed_.Number())
                                       : number);
  // Usually the same for all ranks that make their n-th request.
  const uint32_t which = feed_.OnceIn(8) ? feed_.Byte() : number;
  request->set_remove(which % 5 == 4);
  request->set_process_set(which % 4);
  for (uint32_t r = 0; r < p->start.size() && r < 8; ++r) {
    if (!request->remove() && ((which * 5 + 3) >> r & 1) != 0) {
      request->add_ranks(r);
    }
  }
  if (feed_.OnceIn(32)) {
    request->add_ranks(static_cast<uint32_t>(feed_.Number()));
  }
  return m;
}

proto::ExecutorMessage Coordinated::Late(Player* p) {
  proto::ExecutorMessage m;
  proto::LateOperations* late = m.mutable_late();
  m.set_epoch(Epoch(*p));
  late->set_more(feed_.OnceIn(16) ? static_cast<uint32_t>(feed_.Number()) : 0);
  for (uint32_t i = feed_.OnceIn(64) ? 70 : feed_.Below(3); i > 0; --i) {
    proto::LateOperation* op = late->add_operations();
    Identity(op->mutable_identity());
    op->set_generation(1 + feed_.Below(2));
    op->set_waiting_ms(feed_.OnceIn(4) ? static_cast<int64_t>(feed_.Number())
                                       : 2000);
    op->add_arrived(Rank(*p));
    op->add_missing(Rank(*p));
    if (feed_.OnceIn(4)) op->add_stopped(Rank(*p));
  }
  return m;
}

proto::ExecutorMessage Coordinated::Blocked(Player* p) {
  proto::ExecutorMessage m;
  proto::Blocked* blocked = m.mutable_blocked();
  m.set_epoch(Epoch(*p));
  blocked->set_handled(feed_.OnceIn(8) ? feed_.Number() : p->handled);
  blocked->set_round(feed_.OnceIn(8) ? feed_.Number() : p->confirm);
  if (feed_.OnceIn(8)) return m;
  const bool same = !feed_.OnceIn(4);  // all wait for one thing
  const uint32_t on = feed_.Byte();
  for (const uint32_t rank : p->OwnRanks()) {
    const uint32_t what = same ? on : feed_.Byte();
    proto::BlockedRank* r = blocked->add_ranks();
    r->set_rank(feed_.OnceIn(32) ? static_cast<uint32_t>(feed_.Number())
                                 : rank);
    r->set_count(1);
    r->set_joining(what % 8 == 0);
    r->set_asks_for_set(what % 8 == 1);
    if (what % 8 < 2) continue;
    r->mutable_identity()->set_kind(what % 16 == 15 ? 99 : what % 6);
    r->mutable_identity()->set_name({static_cast<char>('a' + p->index)});
    r->set_generation(1);
    if (what % 3 == 0) r->add_missing(Rank(*p));
  }
  return m;
}

proto::ExecutorMessage Coordinated::Raw() {
  proto::ExecutorMessage m;
  const std::string_view bytes = feed_.Take(feed_.Byte());
  if (!m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    m.Clear();
  }
  return m;
}

}  // namespace maypole::fuzz
