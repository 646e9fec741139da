#include "tests/simulation/parts/process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/board/gpu_place.h"
#include "common/checksum/checksum_mode.h"
#include "common/gather_room.h"
#include "tests/simulation/parts/gpu.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kSleep = 100 * kMillisecond;
constexpr int64_t kIdleSleep = 1000 * kMillisecond;

void GiveMemory(const Planned& planned, Record* record) {
  Operation& op = *record->operation;
  record->input = InputOf(planned, record->rank);
  op.input = record->input.data();
  switch (planned.kind()) {
    case Kind::kAllgather:
      return;
    case Kind::kAlltoall:
      op.splits = planned.splits[static_cast<size_t>(record->rank)];
      return;
    case Kind::kReducescatter:
      record->output.assign(
          static_cast<size_t>(ScatteredRows(op.signature, op.set->size(),
                                            op.set->PositionOf(record->rank))) *
              op.signature.RowBytes(),
          std::byte{0xab});
      op.output = record->output.data();
      return;
    default:
      if (planned.in_place) {
        op.output = record->input.data();
        return;
      }
      record->output.assign(record->input.size(), std::byte{0xab});
      op.output = record->output.data();
  }
}

}  // namespace

Process::Process(Stage* stage, Ledger* ledger, Surroundings* surroundings,
                 const Place& place, int pid, bool elastic)
    : stage_(stage),
      ledger_(ledger),
      surroundings_(surroundings),
      place_(place),
      pid_(pid),
      elastic_(elastic),
      main_(&stage->scheduler,
            [this] { Interruptible(&Process::MainTurn, &main_); }),
      driver_(&stage->scheduler,
              [this] { Interruptible(&Process::DriveTurn, &driver_); }),
      inputs_(&stage->scheduler,
              [this] { Interruptible(&Process::InputTurn, &inputs_); }) {}

void Process::Start() { main_.Ask(surroundings_->InitDelay(), life_); }

void Process::Kill(int64_t closes_after) {
  stage_->Trace("rank ", place_.rank, " (pid ", pid_, ") is killed");
  Vanish();
  if (connection_ == nullptr) return;
  stage_->scheduler.After(closes_after, stage_->Forever(), [c = connection_] {
    c->to_executor.Close();
    c->process->End();
  });
}

void Process::Vanish() {
  life_.reset();
  rank_gpu_.reset();
  client_.reset();
  if (epoch_ != nullptr) {
    ledger_->OnOver(std::exchange(epoch_, nullptr), place_.rank, true, false);
  }
  if (connection_ != nullptr) connection_->to_client.on_readable = nullptr;
}

void Process::Freeze(int64_t time) {
  frozen_until_ = stage_->scheduler.now() + time;
  stage_->Trace("rank ", place_.rank, " is stopped for ", time / kMillisecond,
                " ms");
}

void Process::Interruptible(void (Process::*turn)(), Turn* again) {
  if (frozen()) {
    return again->Ask(frozen_until_ - stage_->scheduler.now(), life_);
  }
  // Its other thread is interrupted at a kill point and holds the core's lock.
  if (in_turn_) return again->Ask(stage_->SoonDelay(), life_);
  in_turn_ = true;
  const std::shared_ptr<Process> keep = shared_from_this();
  const bool died = surroundings_->interruption()->Run(
      &points_left_, [this, turn] { (this->*turn)(); });
  in_turn_ = false;
  if (died) surroundings_->OnDeath(this);
}

void Process::MainTurn() {
  if (!MayGoOn()) return;
  switch (state_) {
    case State::kOutside:
      return Join();
    case State::kJoining:
      return ReadWelcome();
    case State::kRunning:
      break;
  }
  if (saw_error_ && gives_up_on_errors_) return OnProgramEnd(false);
  Perform(
      epoch_->program.actions[static_cast<size_t>(place_.rank)][next_action_]);
}

// --- Joining -----------------------------------------------------------------

void Process::Join() {
  state_ = State::kJoining;
  connection_ = std::make_shared<Connection>();
  connection_->process = handle_;
  connection_->to_client.on_readable = [this] {
    if (state_ == State::kJoining) main_.Ask(stage_->SoonDelay(), life_);
  };
  auto hello = session::Make<session::Hello>();
  Introduce(&hello);
  // Likewise every second process (see Executor::OpenTransport).
  hello.header.version = kProtocolVersions.oldest;
  hello.newest_version = kProtocolVersions.newest + place_.rank % 2;
  hello.pid = pid_;
  if (stage_->checksums) {
    hello.checksums = static_cast<uint32_t>(ChecksumMode::kFail);
  }
  session::SetText(hello.job, "job");
  session::SetText(hello.token, "token");
  session::SetText(hello.host, absl::StrCat("h", place_.node));
  surroundings_->Connect(place_.node, connection_, hello);
}

void Process::Introduce(session::Hello* hello) const {
  hello->rank = place_.rank;
  hello->size = place_.size;
  hello->local_rank = place_.local_rank;
  hello->local_size = place_.local_size;
  hello->cross_rank = place_.node;
  hello->cross_size = place_.nodes;
}

void Process::ReadWelcome() {
  Pipe& pipe = connection_->to_client;
  if (pipe.messages.empty()) {
    if (pipe.closed) OnClosed();
    return;
  }
  Message message = std::move(pipe.messages.front());
  pipe.messages.pop_front();
  if (session::TypeOf(message.data.data()) == session::Type::kWelcome) {
    return Welcomed(std::move(message));
  }
  session::Refused refused;
  const Status s =
      session::Parse(message.data.data(), message.data.size(), &refused);
  if (s.ok()) {
    OnRefused(static_cast<Code>(refused.code), refused.text);
  } else {
    OnRefused(s.code(), s.message());
  }
}

void Process::Welcomed(Message message) {
  std::unique_ptr<Board> board;
  if (Status s = Board::Attach(std::move(message.board), &board); !s.ok()) {
    stage_->Found("a board that cannot be used: ", s.message());
    return;
  }
  session::Welcome welcome;
  if (Status s =
          session::Parse(message.data.data(), message.data.size(), &welcome);
      !s.ok()) {
    stage_->Found("a welcome that cannot be read: ", s.message());
    return;
  }
  OnWelcome(board->config(), welcome.local_rank);
  EpochRecord* epoch = surroundings_->CurrentEpoch(
      place_.node, message.wake->epoch_key, board->config());
  epoch->node_of_rank[static_cast<size_t>(place_.rank)] = place_.node;
  stage_->Trace("rank ", place_.rank, ": in epoch ", epoch->key);
  epoch_ = epoch;
  state_ = State::kRunning;
  next_action_ = 0;
  saw_error_ = false;
  gives_up_on_errors_ = stage_->random.OneIn(2);
  pending_.clear();
  set_ids_.assign(epoch->program.sets.size(), -1);
  control_ = waits_for_ = nullptr;
  blocked_ = false;
  Client::Callbacks callbacks;
  callbacks.ended = [this] { ended_ = true; };
  callbacks.wake_executor = [wake = message.wake] { wake->Write(); };
  callbacks.wake_threads = [this] { Attend(); };
  callbacks.gpu_memory = [this](const session::GpuMemoryReply& reply) {
    if (reply.code == 0) gpu_ = reply.gpu;
  };
  callbacks.connect_gpu = [this](const session::ConnectGpu& connect) {
    if (rank_gpu_ != nullptr) rank_gpu_->Connect(connect);
  };
  callbacks.awaits_connect = [this] {
    return rank_gpu_ != nullptr && rank_gpu_->awaits_connect();
  };
  callbacks.epoch_over = [this] {
    if (rank_gpu_ != nullptr) rank_gpu_->Abort();
  };
  callbacks.gpu_runs = [this] {
    return rank_gpu_ == nullptr ? 0 : rank_gpu_->under_way();
  };
  callbacks.breaks = [this](const Status& status) {
    for (const char* text :
         {SimulatedRankGpu::kFailure, SimulatedRankGpu::kPeerIsLost}) {
      if (!absl::StrContains(status.message(), text)) continue;
      // Other nodes hear that the rank has left; and it may be killed while it
      // says why.
      ledger_->Blame(
          {text, absl::StrCat("rank ", place_.rank), "died before it could"});
      return true;
    }
    return false;
  };
  callbacks.tell = [this](const std::string& line) {
    stage_->Trace("rank ", place_.rank, " is told: ", line);
  };
  client_ = std::make_unique<Client>(stage_, std::move(board), connection_,
                                     static_cast<uint32_t>(place_.local_rank),
                                     elastic_, std::move(callbacks));
  if (welcome.checksums != 0) client_->core().EnableChecksums();
  ShareGpuMemory();
  main_.Ask(stage_->SoonDelay(), life_);
  Attend();
}

void Process::OnRefused(Code, const std::string& why) {
  stage_->Trace("rank ", place_.rank, ": cannot join: ", why);
  ++stage_->counts.refused_starts;
  connection_->to_executor.Close();
  ComeAgain();
}

void Process::OnClosed() {
  OnRefused(Code::kUnavailable, "the agent has closed the connection");
}

void Process::ComeAgain() {
  state_ = State::kOutside;
  main_.Ask(surroundings_->InitDelay(), life_);
}

// --- The program -------------------------------------------------------------

void Process::Perform(const Action& action) {
  int64_t delay = stage_->SoonDelay();
  switch (action.what) {
    case Action::What::kSubmit:
      Submit(action);
      break;
    case Action::What::kDuplicate:
      SubmitAgain(action);
      break;
    case Action::What::kWait:
      if (!Wait(action)) return;
      break;
    case Action::What::kPoll:
      Wait(action);
      break;
    case Action::What::kCompute:
      delay = action.time;
      break;
    case Action::What::kSetRequest:
    case Action::What::kJoin:
      if (!PerformControl(action)) return;
      break;
    case Action::What::kSync:
    case Action::What::kCommit:
      if (!PerformElastic(action)) return;
      break;
    case Action::What::kLeave:
      return OnProgramEnd(true);
  }
  if (client_ == nullptr) return;
  waits_for_ = nullptr;
  ++next_action_;
  main_.Ask(delay, life_);
}

void Process::ShareGpuMemory() {
  gpu_memory_.reset();
  rank_gpu_.reset();
  gpu_ = -1;
  gpu_allocated_ = 0;
  if (stage_->random.OneIn(stage_->off_gpu)) return;
  gpu_memory_ = std::make_shared<std::vector<std::byte>>(kGpuMemoryBytes);
  auto request = session::Make<session::GpuMemoryRequest>();
  request.number = 1;
  request.uuid[1] = static_cast<uint8_t>(place_.node);
  if (stage_->random.OneIn(stage_->ranks_share_gpus)) {
    request.sharing = static_cast<uint32_t>(session::GpuSharing::kDescriptor);
    request.bytes = kGpuMemoryBytes;
    request.uuid[0] = stage_->random.OneIn(8) ? 1 : 0;
    request.proof = ++stage_->last_gpu_memory;
    stage_->gpu_memories[request.proof] = gpu_memory_;
  } else {
    const bool may_fail = !epoch_->program.calm;
    rank_gpu_ = std::make_unique<SimulatedRankGpu>(stage_, may_fail, [this] {
      ended_ = true;  // a result may have come
      Attend();
    });
    request.sharing = static_cast<uint32_t>(session::GpuSharing::kOwn);
    request.nccl_version = kSimulatedNccl;
    const bool shares = stage_->random.OneIn(8);
    request.uuid[0] = static_cast<uint8_t>(shares ? 0 : place_.local_rank);
  }
  client_->SendGpuMemory(request);
}

// As a rank that guesses the size of an allgather's or alltoall's result, from
// its own tensor or from the last result, which may have been another one.
uint64_t Process::RoomFor(const Planned& planned, const Operation& op) {
  if (!Gathers(planned.kind())) return 0;
  const bool known = planned.matches && stage_->random.OneIn(2);
  return GatheredRoom(planned.kind(), op.signature.Bytes(), op.set->size(),
                      known ? ResultOf(planned, place_.rank).size() : 0);
}

// False if the tensor stays in host memory.
bool Process::PutOnGpu(Record* record) {
  Operation& op = *record->operation;
  const Kind kind = op.signature.kind;
  const uint64_t bytes = op.signature.Bytes();
  const uint64_t room = RoomFor(*record->planned, op);
  const uint64_t size = GpuResultAt(bytes) + room;
  const bool connected = client_->board().config().gpu_communicators != 0;
  if (gpu_ < 0 || kind == Kind::kBarrier || size == 0 ||
      (!connected && op.set->negotiated()) ||
      (rank_gpu_ != nullptr && Reduces(kind) &&
       !HasNcclType(op.signature.dtype)) ||
      gpu_allocated_ + size > kGpuMemoryBytes ||
      stage_->random.OneIn(stage_->off_gpu)) {
    return false;
  }
  op.gpu_place =
      PackGpuPlace({.number = 1,
                    .gpu = static_cast<uint32_t>(gpu_),
                    .offset = rank_gpu_ != nullptr ? 0 : gpu_allocated_});
  op.gpu_room = room;
  op.staged = std::make_shared<GpuTensor>(
      stage_, life_, gpu_memory_, gpu_allocated_, record, rank_gpu_.get(),
      [this] { Attend(); });
  op.input = op.output = nullptr;
  gpu_allocated_ += GpuResultAt(size);
  return true;
}

void Process::Submit(const Action& action) {
  const Planned& planned = epoch_->program.operations[action.index];
  auto record = std::make_unique<Record>();
  record->planned = &planned;
  record->rank = place_.rank;
  record->submitted_at = stage_->scheduler.now();
  record->operation = std::make_shared<Operation>();
  Operation& op = *record->operation;
  op.name = planned.name;
  op.signature = planned.signatures[static_cast<size_t>(place_.rank)];
  if (planned.set >= 0) {
    const int64_t id = set_ids_[static_cast<size_t>(planned.set)];
    if (id < 0) return;  // it could not be made
    op.signature.process_set = static_cast<uint32_t>(id);
  }
  op.set = client_->core().FindSet(op.signature.process_set);
  if (op.set == nullptr) {
    stage_->Found("rank ", place_.rank, " does not know process set ",
                  op.signature.process_set);
    return;
  }
  op.awaited = action.awaited;
  GiveMemory(planned, record.get());
  const bool on_gpu = PutOnGpu(record.get());
  if (on_gpu && action.time == 0) {
    static_cast<GpuTensor&>(*op.staged).WriteInput();
  }
  if (action.time > 0) {
    op.input_ready = false;
    record->late_input = record->input;
    std::fill(record->input.begin(), record->input.end(), std::byte{0xcd});
  }
  stage_->Trace("rank ", place_.rank, ": submits ", planned.Text(), " ",
                ShapeText(op.signature));
  ++stage_->counts.submitted;
  auto& place = epoch_->records[static_cast<size_t>(place_.rank)][action.index];
  place = std::move(record);
  const std::shared_ptr<Operation> operation = place->operation;
  const Status s = client_->core().Start({&operation, 1});
  if (!s.ok()) {
    ledger_->OnRefused(*epoch_, planned, s);
    saw_error_ = true;
    place.reset();
    return;
  }
  pending_.push_back(place.get());
  if (action.time > 0) {
    late_.push_back(place.get());
    inputs_.Ask(action.time, life_);
  }
  Attend();
  LookAtEnded();
}

// Writes the input of a random operation, as streams run in any order.
void Process::InputTurn() {
  if (client_ == nullptr || late_.empty()) return;
  const size_t i = stage_->random.Below(late_.size());
  Record* const record = late_[i];
  late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
  if (!record->done()) {
    record->input = std::exchange(record->late_input, {});
    Operation& op = *record->operation;
    if (op.gpu_place != kNoGpuPlace) {
      static_cast<GpuTensor&>(*op.staged).WriteInput();
    } else {
      op.input = record->input.data();
      if (op.output != nullptr && record->planned->in_place) {
        op.output = record->input.data();
      }
    }
  }
  client_->core().InputReady(record->operation);
  LookAtEnded();
  if (!late_.empty()) inputs_.Ask(stage_->SoonDelay(), life_);
}

// A name that is pending still.
void Process::SubmitAgain(const Action& action) {
  const Record* first =
      epoch_->records[static_cast<size_t>(place_.rank)][action.index].get();
  if (first == nullptr || first->operation->done.load()) return;
  auto op = std::make_shared<Operation>();
  op->name = first->operation->name;
  op->signature = first->operation->signature;
  op->input = first->input.data();
  op->set = first->operation->set;
  const Status s = client_->core().Start({&op, 1});
  if (s.code() != Code::kAlreadyExists && !client_->board().aborted()) {
    stage_->Found("rank ", place_.rank, ": submitting a name twice returns '",
                  s.message(), "'");
  }
}

// True if the operation has ended.
bool Process::Wait(const Action& action) {
  const Record* r =
      epoch_->records[static_cast<size_t>(place_.rank)][action.index].get();
  if (r == nullptr || r->done()) return true;  // or it was refused
  client_->core().Want(*r->operation);
  waits_for_ = r->operation;
  Attend();
  return r->done();
}

// A thread that waits, or has just submitted, drives the progress engine
// itself.
void Process::Attend() {
  driver_state_ = Driver::kAwake;
  driver_.Ask(stage_->SoonDelay(), life_);
}

std::shared_ptr<Operation> Process::MakeControl(const Action& action) const {
  auto op = std::make_shared<Operation>();
  if (action.what == Action::What::kJoin) {
    op->control = Control::kJoin;
    op->name = "join";
    return op;
  }
  const SetPlan& plan = epoch_->program.sets[action.index];
  op->control = Control::kSetRequest;
  op->name = "process set request";
  if (plan.removes) {
    const int64_t id = set_ids_[plan.removed];
    if (id < 0) return nullptr;  // it could not be made
    op->removes = static_cast<uint32_t>(id);
  } else {
    op->ranks = plan.asked[static_cast<size_t>(place_.rank)];
  }
  return op;
}

bool Process::PerformAlone(
    const std::function<std::shared_ptr<Operation>()>& make) {
  if (control_ == nullptr) {
    const std::shared_ptr<Operation> op = make();
    stage_->Trace("rank ", place_.rank, ": asks for ", op->name);
    if (const Status s = client_->core().Start({&op, 1}); !s.ok()) {
      op->status = s;
      op->done.store(true);
    }
    control_ = op;
  }
  if (control_->control == Control::kNone) client_->core().Want(*control_);
  waits_for_ = control_;
  Attend();
  return control_->done.load();
}

bool Process::PerformElastic(const Action&) {
  stage_->Found("a program for elastic jobs in one that is not");
  return true;
}

bool Process::PerformControl(const Action& action) {
  if (control_ == nullptr && MakeControl(action) == nullptr) return true;
  if (!PerformAlone([&] { return MakeControl(action); })) return false;
  const std::shared_ptr<Operation> op = std::exchange(control_, nullptr);
  if (action.what == Action::What::kJoin) {
    ledger_->OnJoinAnswer(epoch_, place_.rank, action.index, *op);
  } else {
    ledger_->OnSetAnswer(epoch_, place_.rank, action.index, *op);
    if (op->status.ok()) set_ids_[action.index] = op->answer;
  }
  // Without an answer the ranks would continue differently.
  if (op->status.code() == Code::kAborted)
    saw_error_ = gives_up_on_errors_ = true;
  return true;
}

void Process::LookAtEnded() {
  if (!std::exchange(ended_, false)) return;
  for (Record* r : std::exchange(pending_, {})) {
    if (r->operation->done.load() && Fetched(r)) {
      OnEnd(r);
    } else {
      pending_.push_back(r);
    }
  }
  if (state_ == State::kRunning) main_.Ask(stage_->SoonDelay(), life_);
}

// True if the user need not wait for the result (any more).
bool Process::Fetched(Record* r) {
  if (!r->operation->status.ok() || r->operation->gpu_place == kNoGpuPlace) {
    return true;
  }
  auto& tensor = static_cast<GpuTensor&>(*r->operation->staged);
  r->by_rank = tensor.runs_here();
  if (tensor.Fetch(client_->board(), &r->fetched)) return true;
  if (state_ == State::kRunning) return false;
  r->fetched = Status(Code::kAborted, "left before its GPU had ended it");
  return true;
}

void Process::OnEnd(Record* r) {
  r->left = state_ != State::kRunning;
  ledger_->OnEnd(epoch_, r);
  if (!r->status.ok() && !r->mismatch()) saw_error_ = true;
}

bool Process::LeaveNow() {
  if (state_ != State::kRunning) return false;
  OnProgramEnd(false);
  return true;
}

void Process::OnProgramEnd(bool finished) {
  const bool calm = epoch_->program.calm;
  Leave(finished, /*returns=*/false);
  satisfied_ = finished && calm;
  if (!satisfied_) ComeAgain();
}

void Process::Leave(bool finished, bool returns) {
  stage_->Trace("rank ", place_.rank, ": leaves with ",
                client_->core().outstanding(), " operations pending");
  const Program& program = epoch_->program;
  if (!finished || program.leaver == place_.rank) {
    ++stage_->counts.early_leavers;
  }
  // In a calm epoch nobody needs it any more.
  if (!program.calm) ledger_->Blame({absl::StrCat("rank ", place_.rank)});
  state_ = State::kOutside;
  client_->Leave(returns);
  late_.clear();
  LookAtEnded();
  control_ = waits_for_ = nullptr;
  rank_gpu_.reset();
  client_.reset();
  ledger_->OnOver(std::exchange(epoch_, nullptr), place_.rank, false, finished);
}

// --- Driving the progress engine
// -------------------------------------------------------

void Process::LookAtWakeWord() {
  if (client_ == nullptr || driver_state_ != Driver::kAsleep) return;
  const RankBlock& me =
      client_->board().rank(static_cast<uint32_t>(place_.local_rank));
  if (me.wake.load() == seen_) return;
  driver_state_ = Driver::kAwake;
  driver_.Ask(stage_->SoonDelay(), life_);
}

// A sum that changes with each progress of this rank's operations.
uint64_t Process::OwnProgress() const {
  const Board& board = client_->board();
  const BoardConfig& config = board.config();
  uint64_t sum = client_->core().outstanding();
  for (RunRef ref = 0; ref < config.slots + config.runs; ++ref) {
    const Progress& p =
        board.progress(ref, static_cast<uint32_t>(place_.local_rank));
    sum += p.staged.load() + p.reduced.load() + p.consumed.load();
  }
  return sum;
}

void Process::DriveTurn() {
  if (client_ == nullptr) return;
  RankBlock& me =
      client_->board().rank(static_cast<uint32_t>(place_.local_rank));
  const bool timed_out =
      driver_state_ == Driver::kAsleep && me.wake.load() == seen_;
  bool by_board = false;
  const uint64_t before = timed_out ? OwnProgress() : 0;
  const bool moved = client_->Drive(timed_out, &by_board);
  // A ticket that does not concern the rank may be passed at any time.
  const bool late = timed_out && by_board && !stage_->SomebodyOwesAWake() &&
                    me.wake.load() == seen_ && OwnProgress() != before;
  LookAtEnded();
  const bool woken = !timed_out && driver_state_ == Driver::kAsleep;
  if ((moved || woken) && std::exchange(blocked_, false)) {
    client_->core().ClearBlocked();
  }
  if (moved) {
    if (late) {
      stage_->Found("rank ", place_.rank, ": was not woken");
    }
    driver_state_ = Driver::kAwake;
    return driver_.Ask(stage_->SoonDelay(), life_);
  }
  if (timed_out && !blocked_ && waits_for_ != nullptr &&
      !waits_for_->done.load()) {
    blocked_ = client_->core().SetBlocked(*waits_for_);
  }
  if (driver_state_ == Driver::kAwake) {
    // Arrive the sleep, then look once more.
    seen_ = me.wake.load();
    me.sleeping.store(kRankSleeps);
    driver_state_ = Driver::kLastLook;
    return driver_.Ask(stage_->SoonDelay(), life_);
  }
  driver_state_ = Driver::kAsleep;
  const int64_t sleep = client_->core().outstanding() > 0 ? kSleep : kIdleSleep;
  driver_.Ask(std::min(sleep, client_->timeline_due_ms() * kMillisecond),
              life_);
  LookAtWakeWord();
}

std::string Process::StateText() const {
  return absl::StrCat(
      "rank ", place_.rank,
      state_ == State::kOutside   ? " is outside"
      : state_ == State::kJoining ? " waits for its welcome"
                                  : absl::StrCat(" is in epoch ", epoch_->key,
                                                 " at action ", next_action_),
      satisfied_ ? ", satisfied" : "", frozen() ? ", stopped" : "");
}

}  // namespace maypole::simulation
