#include "tests/fuzz/rig.h"

#include <utility>
#include <variant>

#include "common/wire/session_messages.h"
#include "tests/fuzz/boards.h"

namespace maypole::fuzz {

using worker::ClientId;

Rig::Rig(RigOptions options)
    : options_(std::move(options)),
      core_(options_.core),
      stats_(std::make_unique<worker::StatsPage>()) {}

Rig::~Rig() = default;

ClientId Rig::Connect(const session::Hello& hello, int visible_pid) {
  const ClientId id = next_client_++;
  clients.insert(id);
  core_.OnClient(id, hello, visible_pid);
  Do();
  return id;
}

void Rig::Goodbye(ClientId client, uint32_t pending, bool returns) {
  core_.OnGoodbye(client, pending, returns);
  Do();
}

void Rig::Gone(ClientId client) {
  if (clients.erase(client) == 0) return;
  core_.OnClientGone(client, "its process ended");
  Do();
}

namespace {

template <typename T, typename Take>
bool Handle(const std::string& bytes, Take take) {
  T message;
  if (!session::Parse(bytes.data(), bytes.size(), &message).ok()) return false;
  take(message);
  return true;
}

}  // namespace

bool Rig::Message(ClientId client, const std::string& bytes) {
  if (!session::CheckHeader(bytes.data(), bytes.size(), "client").ok()) {
    return false;
  }
  bool taken = false;
  switch (session::TypeOf(bytes.data())) {
    case session::Type::kGoodbye:
      taken = Handle<session::Goodbye>(bytes, [&](const auto& m) {
        core_.OnGoodbye(client, m.pending, m.returns != 0);
      });
      break;
    case session::Type::kLeaveReason:
      taken = Handle<session::LeaveReason>(bytes, [&](const auto& m) {
        core_.OnLeaveReason(client, m.text);
      });
      break;
    case session::Type::kFinished:
      taken = Handle<session::Finished>(bytes, [&](const auto& m) {
        core_.OnFinished(client, m.finished != 0);
      });
      break;
    case session::Type::kSlotReturn:
      taken = Handle<session::SlotReturn>(
          bytes, [&](const auto& m) { core_.OnSlotReturn(client, m); });
      break;
    case session::Type::kSetRequest:
      taken = Handle<session::SetRequest>(
          bytes, [&](const auto& m) { core_.OnSetRequest(client, m); });
      break;
    case session::Type::kJoinRequest:
      taken = Handle<session::JoinRequest>(
          bytes, [&](const auto& m) { core_.OnJoinRequest(client, m); });
      break;
    case session::Type::kGpuMemoryRequest:
      taken = Handle<session::GpuMemoryRequest>(
          bytes, [&](const auto& m) { core_.OnGpuMemoryRequest(client, m); });
      break;
    default:
      taken = Handle<session::SlotRequest>(
          bytes, [&](const auto& m) { core_.OnSlotRequest(client, m); });
  }
  if (taken) Do();
  return taken;
}

void Rig::Do() {
  for (auto actions = core_.TakeActions(); !actions.empty();
       actions = core_.TakeActions()) {
    for (worker::Action& action : actions) {
      std::visit([this](auto& a) { Perform(a); }, action);
    }
  }
}

void Rig::Turn(int64_t now_ms, uint64_t stopped) {
  core_.OnTime(now_ms);
  Do();
  if (keeper_ == nullptr) return;
  if (runner_ != nullptr) {
    // As Network::Run() does until it would sleep; malicious ranks may keep it
    // busy for ever.
    for (int i = 0; i < 4 && !keeper_->board().aborted(); ++i) {
      const absl::StatusOr<bool> moved = runner_->Step();
      Expect(moved.ok(), "the network does not fail by what ranks write");
      CheckWork();
      if (!*moved) break;
    }
    for (const uint32_t record : std::exchange(freed_, {})) {
      Expect(runs.erase(record) == 1, "a record is freed once");
      core_.OnRunFree(record);
    }
    Do();
    if (keeper_ == nullptr) return;
  }
  keeper_->SetSleeping(true);
  for (const worker::ReadySlot& ready : keeper_->TakeReadySlots())
    core_.OnReadySlot(ready);
  Do();
  if (keeper_ == nullptr) return;
  keeper_->PlaceHeldTickets();
  if (keeper_->somebody_left()) keeper_->FailWaiting();
  keeper_->AllSayBlocked();
  sampler_->Sample(stats_.get());
  worker::BoardSnapshot snapshot = keeper_->TakeSnapshot(0);
  Expect(snapshot.ranks.size() == config.local_size,
         "a snapshot is of all local ranks");
  Expect(snapshot.waiting.size() <= allotted, "a slot waits once");
  snapshot.stopped = stopped & core_.suspects();
  core_.OnSnapshot(snapshot);
  Do();
  if (keeper_ != nullptr) keeper_->SetSleeping(false);
}

// --- Clients -----------------------------------------------------------------

void Rig::Perform(worker::ReplyClient& a) {
  Expect(clients.contains(a.client), "a reply goes to a client that is there");
}

void Rig::Perform(worker::RefuseClient& a) {
  Expect(clients.erase(a.client) == 1, "a client is refused once");
  Expect(a.code != Code::kOk, "a refusal has a code");
  Expect(!a.text.empty(), "a refusal has a reason");
}

void Rig::Perform(worker::CloseClient& a) { clients.erase(a.client); }

void Rig::Perform(worker::KeepWatching& a) {
  Expect(clients.contains(a.client), "who is watched has been there");
  watched.insert(a.client);
}

void Rig::Perform(worker::StopWatching& a) {
  Expect(watched.erase(a.client) == 1, "who is watched no more has been");
}

// --- Coordinator -------------------------------------------------------------

void Rig::Perform(worker::OpenLink&) {
  Expect(!link_open, "one link at a time");
  link_open = true;
}

void Rig::Perform(worker::SendToCoordinator& a) {
  Expect(link_open, "messages go to an open link");
  Expect(a.message.payload_case() != proto::ExecutorMessage::PAYLOAD_NOT_SET,
         "a message has a payload");
  proto::ExecutorMessage arrived;
  Expect(Transmit(a.message, &arrived), "what is sent arrives");
  outbox.push_back(std::move(arrived));
}

void Rig::Perform(worker::ReportIdle&) {
  Expect(clients.empty(), "an executor with clients is not idle");
}

// --- GPUs --------------------------------------------------------------------

void Rig::Perform(worker::OpenGpuMemory& a) {
  Expect(clients.contains(a.client), "a memory is of a client that is there");
  Expect(a.id.local < config.local_size && a.id.number > 0 &&
             a.id.number <= kMaxGpuMemories,
         "a memory has a number within the limits");
  Expect(a.request.bytes > 0 && a.request.bytes <= kMaxGpuMemoryBytes,
         "a memory has a size within the limits");
  Expect(gpu_memories_.emplace(a.id, a.request.bytes).second,
         "a memory is opened once");
  core_.OnGpuMemoryOpened(a.id, OpenedGpuMemory{a.id.number % 2});
}

void Rig::Perform(worker::CloseGpuMemories& a) {
  const auto closed = std::erase_if(gpu_memories_, [&](const auto& memory) {
    return memory.first.local == a.local;
  });
  Expect(closed > 0, "only what was opened is closed");
}

void Rig::Perform(worker::MakeCommunicatorId& a) {
  core_.OnCommunicatorIdMade(a.number, std::string("id"));
}

void Rig::Perform(worker::ConnectGpus& a) {
  const GpuCommunicator& c = a.communicator;
  Expect(
      !c.gpus.empty() && c.first < c.size && c.gpus.size() <= c.size - c.first,
      "a communicator's GPUs are among its ranks");
}

void Rig::Perform(worker::RunOnGpus& a) {
  Expect(
      !a.run.operations.empty() && a.run.operations.size() <= kMaxRunOperations,
      "a run has operations");
  for (const GpuOperation& r : a.run.operations) {
    CheckOnGpus(r, a.run.communicator != 0);
  }
  core_.OnGpuRunEnded(a.run, absl::OkStatus());
}

void Rig::CheckOnGpus(const GpuOperation& r, bool several) {
  Expect(!r.tensors.empty() && r.tensors.size() <= config.local_size,
         "an operation on GPUs is of local ranks");
  Expect((Gathers(r.kind) || r.elements > 0) && r.divisor > 0,
         "an operation on GPUs has something to do");
  Expect(several || GpusOf(r.tensors).size() == 1,
         "an operation without a communicator is on one GPU");
  Expect(!several || !Reduces(r.kind) || HasNcclType(r.dtype),
         "NCCL has the type");
  std::set<uint32_t> locals;
  for (const GpuTensor& tensor : r.tensors) {
    Expect(tensor.memory.number % 2 == tensor.gpu, "its GPU has the memory");
    Expect(locals.insert(tensor.memory.local).second, "a rank has one tensor");
    if (!Gathers(r.kind)) CheckPlace(r, tensor, tensor.offset, r.elements);
  }
  if (Gathers(r.kind)) CheckGathered(r);
}

void Rig::CheckPlace(const GpuOperation& r, const GpuTensor& tensor,
                     uint64_t offset, uint64_t elements) {
  const auto it = gpu_memories_.find(tensor.memory);
  Expect(it != gpu_memories_.end(), "a tensor on a GPU is in open memory");
  Expect(elements <= it->second / SizeOf(r.dtype) &&
             offset <= it->second - elements * SizeOf(r.dtype),
         "a tensor on a GPU stays within its memory");
}

void Rig::CheckGathered(const GpuOperation& r) {
  const size_t n = r.members.size();
  const bool splits = r.kind == Kind::kAlltoall;
  Expect(r.counts.size() == (splits ? n * n : n), "a gather has its counts");
  for (size_t i = 0; i < n; ++i) {
    const uint32_t t = r.members[i].tensor;
    Expect(t < r.tensors.size(), "a member of this node has a tensor");
    uint64_t input = 0, result = 0;
    for (size_t j = 0; j < n; ++j) {
      input += splits ? r.counts[i * n + j] : 0;
      result += splits ? r.counts[j * n + i] : r.counts[j];
    }
    if (!splits) input = r.counts[i];
    const GpuTensor& tensor = r.tensors[t];
    CheckPlace(r, tensor, tensor.offset, input);
    CheckPlace(r, tensor, tensor.result, result);
    Expect(tensor.offset + input * SizeOf(r.dtype) <= tensor.result,
           "a gathered result is behind the tensor");
  }
}

void Rig::Perform(worker::RunOnHost& a) {
  Expect(epoch_there && a.slot < allotted, "a ticket is of an allotted slot");
  if (keeper_ != nullptr && keeper_->IsAllotted(a.slot)) {
    keeper_->Issue(a.slot, a.generation);
  }
}

void Rig::Perform(worker::CommitSlot& a) {
  Expect(epoch_there && a.slot < allotted, "a commit is of an allotted slot");
  if (keeper_ != nullptr && keeper_->IsAllotted(a.slot)) {
    keeper_->Commit(a.slot, a.generation);
  }
}

// --- Epoch -------------------------------------------------------------------

void Rig::Perform(worker::PrepareBackend& a) {
  Expect(a.node_names.size() > 1 && a.node_index < a.node_names.size(),
         "a backend is for several nodes");
  prepare_nodes = static_cast<uint32_t>(a.node_names.size());
}

void Rig::Perform(worker::ConnectBackend& a) {
  prepare_nodes = 0;
  connecting = true;
}

void Rig::Perform(worker::CreateBoard& a) {
  Expect(!epoch_there, "one board at a time");
  Expect(CheckConfig(a.config).ok(), "the board's config is sound");
  Expect(a.clients.size() == a.config.local_size &&
             a.pids.size() == a.clients.size(),
         "a board has a client for each local rank");
  std::set<ClientId> known;
  for (const ClientId client : a.clients) {
    Expect(clients.contains(client) && known.insert(client).second,
           "a board's clients are there, each once");
  }
  connecting = false;
  prepare_nodes = 0;
  config = a.config;
  allotted = 0;
  slots.clear();
  free_slots_.clear();
  recalls.clear();
  aborted_ = false;
  runs.clear();
  gpu_memories_.clear();
  generations_.clear();
  if (std::exchange(fail_board, false)) {
    Expect(!core_.OnBoardCreated(absl::ResourceExhaustedError("no memory")),
           "nobody is welcomed to a board that is not there");
    return;
  }
  epoch_there = true;
  if (options_.with_board) {
    keeper_ = std::make_unique<worker::BoardKeeper>(EmptyBoard(a.config));
    for (uint32_t i = 0; i < a.pids.size(); ++i) keeper_->MarkPresent(i, 0);
    sampler_ = std::make_unique<worker::CounterSampler>(&keeper_->board());
    if (a.config.nodes > 1) {
      backend_ = std::make_unique<worker::FakeBackend>();
      runner_ = std::make_unique<worker::NetworkRunner>(
          &keeper_->board(), backend_.get(),
          worker::NetworkRunner::Callbacks{
              nullptr, [this](uint32_t record) { freed_.push_back(record); }});
    }
  }
  if (core_.OnBoardCreated(absl::OkStatus())) welcomed = a.clients;
}

void Rig::Perform(worker::AllotSlot& a) {
  const bool again = free_slots_.erase(a.slot) > 0;
  Expect(epoch_there && (again || a.slot == allotted) && a.slot < config.slots,
         "slots are allotted one after the other, and when they are free");
  Expect(again || a.base == 0, "a slot's first name begins at generation 1");
  Expect(a.set != nullptr && !a.set->locals.empty(),
         "a slot is for ranks of this node");
  Expect(a.set->mask() >> (config.local_size - 1) >> 1 == 0,
         "a set has local ranks that are there");
  Expect(a.splits <= kMaxSplitNames && a.splits <= config.slots &&
             (a.splits != 0) == (a.kind == Kind::kAlltoall),
         "an alltoall has a place for its splits");
  if (again) {
    slots[a.slot] = a;
  } else {
    ++allotted;
    slots.push_back(a);
  }
  if (keeper_ == nullptr) return;
  Expect(keeper_->Allot(a).ok(), "there is memory for a slot");
}

void Rig::Perform(worker::FindIdleSlots&) {
  std::vector<worker::IdleSlot> idle;
  if (keeper_ != nullptr) idle = keeper_->IdleSlots();
  for (uint32_t slot = 0; keeper_ == nullptr && slot < allotted; ++slot) {
    if (!free_slots_.contains(slot)) idle.push_back({slot, 1});
  }
  core_.OnIdleSlots(idle);
}

void Rig::Perform(worker::RecallFrom& a) {
  Expect(clients.contains(a.client), "slots are recalled from a client");
  Expect(a.message.count > 0 && a.message.count <= kMaxRecall,
         "a recall is for some slots");
  for (uint32_t i = 0; i < a.message.count; ++i) {
    const uint32_t slot = a.message.slots[i];
    Expect(slot < allotted && !free_slots_.contains(slot),
           "a slot that is recalled is some name's");
  }
  recalls.emplace_back(a.client, a.message);
  if (keeper_ != nullptr) keeper_->board().TellOfRecall(a.local_rank);
}

void Rig::Perform(worker::FreeSlot& a) {
  Expect(a.slot < allotted && free_slots_.insert(a.slot).second,
         "a slot that was some name's is free");
  core_.OnSlotFreed(a.slot, keeper_ != nullptr ? keeper_->Free(a.slot) : 100);
}

void Rig::Perform(worker::WantSlot& a) {
  Expect(a.slot < allotted, "a wanted slot is allotted");
  if (keeper_ != nullptr) {
    keeper_->board().Want(a.slot, a.generation, a.signature);
  }
}

void Rig::JudgeBlocks(const worker::RunSpec& run) {
  uint64_t end = 0;
  for (const worker::NodeBlock& b : run.blocks) {
    Expect(b.begin >= end && b.begin < b.end && b.end <= run.bytes,
           "blocks ascend within the run");
    Expect(b.from < config.nodes || run.kind == Kind::kReducescatter,
           "a block is from a node");
    Expect(b.to < config.nodes || b.to == worker::kAllNodes,
           "a block is for a node");
    end = b.end;
  }
}

void Rig::Perform(worker::IssueRun& a) {
  const worker::RunSpec& run = a.run;
  Expect(epoch_there && run.record < config.runs &&
             !runs.contains(run.record) &&
             run.generation == ++generations_[run.record],
         "a run has a record that is free");
  Expect(!run.operations.empty() && run.operations.size() <= kMaxRunOperations,
         "a run has operations");
  uint64_t last = 0;
  for (const PlanOperation& op : run.operations) {
    Expect(op.slot < allotted && op.generation > 0 && op.offset >= last &&
               op.offset <= run.bytes + 63 && op.offset % 64 == 0,
           "a run's operations lie in its space");
    last = op.offset;
  }
  Expect(run.bytes <= kMaxTensorBytes, "a run has a size");
  Expect(run.members != 0 && run.members >> (config.local_size - 1) >> 1 == 0,
         "a run has members here");
  for (const uint32_t node : run.nodes) {
    Expect(node < config.nodes, "a run is of nodes that are there");
  }
  Expect(run.matrix < kMatrices, "there is a place for the splits");
  Expect(run.splits.size() <= uint64_t{config.size} * config.size,
         "splits are of the set's ranks");
  Expect(run.first_dims.size() <= config.size,
         "first dimensions are of the job's ranks");
  JudgeBlocks(run);
  runs[run.record] = run;
  if (keeper_ == nullptr || keeper_->board().aborted()) return;
  keeper_->WritePlan(run);
  if (runner_ != nullptr) runner_->Add(run);
  keeper_->Issue(run);
}

// Chunks for the backend must lie in the node ring, and their segments in them.
void Rig::CheckWork() {
  const Board& board = keeper_->board();
  const std::byte* ring = board.node_ring(0);
  for (const worker::Work& work : backend_->calls) {
    Expect(work.chunk.data() >= ring &&
               work.chunk.data() + work.chunk.size() <=
                   ring + uint64_t{config.ring_depth} * config.chunk_bytes,
           "a chunk lies in the node's ring");
    for (const worker::Segment& s : work.segments) {
      Expect(s.offset + s.bytes <= work.chunk.size(),
             "a segment lies in its chunk");
    }
  }
  Expect(backend_->calls.size() <= 64, "chunks on their way are bounded");
  backend_->calls.clear();
}

void Rig::Perform(worker::FailSlot& a) {
  Expect(a.slot < allotted, "a slot that fails is allotted");
  Expect(a.code != Code::kOk, "a failure has a code");
  if (keeper_ != nullptr) {
    keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
  }
}

void Rig::Perform(worker::MarkLeft& a) {
  Expect(
      a.local_rank < static_cast<int>(config.local_size) && a.local_rank >= -1,
      "who leaves has been there");
  if (keeper_ != nullptr) keeper_->MarkLeft(a);
}

void Rig::Perform(worker::MarkGone& a) {
  if (keeper_ != nullptr) {
    keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
  }
}

void Rig::Perform(worker::AbortBoard& a) {
  Expect(epoch_there && !std::exchange(aborted_, true),
         "an epoch is aborted once");
  Expect(a.code != Code::kOk, "an abort has a code");
  if (keeper_ == nullptr) return;
  // A rank with the claim would make the executor wait briefly for its text;
  // this is skipped here.
  keeper_->board().header().abort_claim = 0;
  keeper_->board().Abort(a.code, a.text);
  Expect(keeper_->board().aborted(), "an abort is an abort");
}

void Rig::Perform(worker::WantChange&) {}

void Rig::Perform(worker::DropEpoch&) {
  DropBoard();
  connecting = false;
  prepare_nodes = 0;
}

void Rig::DropBoard() {
  if (sampler_ != nullptr) sampler_->Sample(stats_.get());
  sampler_.reset();
  runner_.reset();
  backend_.reset();
  keeper_.reset();
  freed_.clear();
  runs.clear();
  epoch_there = false;
}

}  // namespace maypole::fuzz
