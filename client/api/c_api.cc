// The C ABI: translates calls to maypole::Client, and handles fork() and
// handles that outlive their job.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/api/client.h"
#include "client/bootstrap/exchange.h"
#include "client/bootstrap/node_bootstrap.h"
#include "client/maypole.h"
#include "client/memory/copy_digest.h"
#include "client/session/rank_session.h"
#include "common/finished_file.h"
#include "common/system/fd.h"
#include "common/version.h"

namespace {

using maypole::Client;
using maypole::Code;
using maypole::Status;

static_assert(MAYPOLE_MAX_DIMS == maypole::kMaxDims);

// One job per process. Each call shares ownership of the client, so that a
// shutdown by one thread does not destroy it while another thread waits.
struct Process {
  std::mutex mutex;  // not held while a join waits, because fork() takes it
  std::condition_variable joined;
  bool joining = false;
  std::shared_ptr<Client> client;
  // Clients that have left the job and still have handles (which own, for
  // example, an allgather's result).
  std::vector<std::shared_ptr<Client>> retired;
  // In an elastic job, the options by which the coordinator knows this process:
  // those of the last client, and of the one before it in case the last one is
  // abandoned. None after the process has left for good.
  std::optional<maypole::RankOptions> last, before_last;
  bool forked = false;
  std::unique_ptr<maypole::Exchange> exchange;
};

Process& process() {
  static auto& p = *new Process;  // never destroyed: threads may outlive main
  return p;
}

thread_local std::string last_error;

maypole_status Return(const Status& s) {
  if (!s.ok()) last_error = s.message();
  return static_cast<maypole_status>(s.code());
}

std::shared_ptr<Client> Current() {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  return p.client;
}

// The client that issued the handle; the current client if none knows it.
std::shared_ptr<Client> OwnerOf(int64_t handle) {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  if (p.client != nullptr && p.client->Knows(handle)) return p.client;
  for (const auto& c : p.retired) {
    if (c->Knows(handle)) return c;
  }
  return p.client;
}

void ForgetRetired() {
  // Destroyed without the lock: a client waits for its callbacks, which may
  // need it.
  std::vector<std::shared_ptr<Client>> forgotten;
  Process& p = process();
  std::lock_guard lock(p.mutex);
  for (const auto& c : p.retired) {
    if (c->handles() == 0) forgotten.push_back(c);
  }
  std::erase_if(p.retired, [](const auto& c) { return c->handles() == 0; });
}

std::unique_lock<std::mutex> AwaitJoin() {
  Process& p = process();
  std::unique_lock lock(p.mutex);
  p.joined.wait(lock, [&p] { return !p.joining; });
  return lock;
}

// Waits for a join in progress. Returns the client, which is no longer the
// current one; null if there is none.
std::shared_ptr<Client> Retire() {
  const auto lock = AwaitJoin();
  Process& p = process();
  auto client = std::exchange(p.client, nullptr);
  if (client != nullptr) p.retired.push_back(client);
  return client;
}

Status NotInitialized() {
  return Status(Code::kFailedPrecondition,
                process().forked
                    ? "this process was forked from a rank and is not part of "
                      "the job; use Maypole in the rank itself"
                    : "Maypole has not been initialized; call init() first");
}

// MAYPOLE_TIMELINE is set for all ranks; rank 0 writes the file.
maypole_status StartTimelineOfEnvironment(
    const std::shared_ptr<Client>& client) {
  const maypole::RankOptions& o = client->options();
  if (o.timeline.empty() || o.rank != 0) return MAYPOLE_OK;
  const Status s = client->StartTimeline(o.timeline, o.timeline_mark_cycles);
  if (!s.ok()) maypole_shutdown();
  return Return(s);
}

// fork() copies descriptors and mappings, but not the threads. The child closes
// its copies, so that its exit is not mistaken for a rank's death, and so that
// the rank's own death is noticed.
//
// BeforeFork() does not wait for a join in progress: the join may be calling
// into the program (ProgramExchange) and need what the forking thread holds
// (Python's GIL).
void BeforeFork() { process().mutex.lock(); }
void AfterForkInParent() { process().mutex.unlock(); }
void AfterForkInChild() {
  Process& p = process();
  maypole::LeaveBootstrapInChild();
  if (p.client != nullptr) {
    p.client->AbandonInChild();
    // The client's threads do not exist here, so its destructor must not run.
    new std::shared_ptr<Client>(std::move(p.client));
    p.client = nullptr;
    p.forked = true;
  }
  // The same for those that have left the job: their memory is the parent's.
  new std::vector<std::shared_ptr<Client>>(std::move(p.retired));
  p.retired.clear();
  if (p.joining) {
    maypole::RankSession::AbandonJoinInChild();
    p.joining = false;
    p.forked = true;
  }
  p.mutex.unlock();
}

void HandleForks() {
  static const int once =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  (void)once;
}

// The exchange that the program has set with maypole_set_exchange().
class ProgramExchange : public maypole::Exchange {
 public:
  explicit ProgramExchange(const maypole_exchange& e) : exchange_(e) {}

  Status Put(const std::string& key, const std::string& value) override {
    char error[kErrorBytes] = {};
    const int status = exchange_.put(exchange_.context, key.c_str(),
                                     value.c_str(), error, sizeof(error));
    return StatusOf(status, error);
  }

  Status Get(const std::string& key, int timeout_ms,
             std::string* value) override {
    char error[kErrorBytes] = {};
    std::vector<char> buffer(MAYPOLE_EXCHANGE_BYTES);
    const int status =
        exchange_.get(exchange_.context, key.c_str(), timeout_ms, buffer.data(),
                      static_cast<int>(buffer.size()), error, sizeof(error));
    buffer.back() = 0;
    if (status == MAYPOLE_OK) *value = buffer.data();
    return StatusOf(status, error);
  }

 private:
  static constexpr size_t kErrorBytes = 1024;

  static Status StatusOf(int status, char (&error)[kErrorBytes]) {
    error[kErrorBytes - 1] = 0;
    if (status == MAYPOLE_OK) return Status();
    return Status(status > MAYPOLE_OK && status <= MAYPOLE_UNAUTHENTICATED
                      ? static_cast<Code>(status)
                      : Code::kUnknown,
                  error);
  }

  const maypole_exchange exchange_;
};

Status RequestOf(const maypole_operation& o, maypole::Request* request) {
  maypole::Signature* const s = &request->signature;
  auto bad = [](const std::string& what) {
    return Status(Code::kInvalidArgument, "maypole_submit: " + what);
  };
  if (o.struct_size != sizeof(maypole_operation)) {
    return bad("struct_size is " + std::to_string(o.struct_size) +
               ", this library's maypole_operation has " +
               std::to_string(sizeof(maypole_operation)) +
               " bytes; header and library have different versions");
  }
  if (o.kind < 0 || o.kind >= maypole::kKinds) return bad("unknown kind");
  if (o.dtype < 0 || o.dtype >= maypole::kDTypes) return bad("unknown dtype");
  if (o.op < 0 || o.op >= maypole::kOps) return bad("unknown op");
  if (o.dims < 0 || o.dims > MAYPOLE_MAX_DIMS) {
    return bad(std::to_string(o.dims) +
               " dimensions; must be from 0 to MAYPOLE_MAX_DIMS");
  }
  if (o.device != MAYPOLE_CPU && o.device != MAYPOLE_CUDA) {
    return bad("unknown device");
  }
  if (o.process_set < 0) {
    return bad("process_set must not be negative, but is " +
               std::to_string(o.process_set));
  }
  if (o.splits_count < 0 || (o.splits != nullptr) != (o.splits_count > 0)) {
    return bad(std::to_string(o.splits_count) + " in splits_count, but splits" +
               (o.splits == nullptr ? " is null" : " is not null") +
               "; set both or neither");
  }
  s->kind = static_cast<maypole::Kind>(o.kind);
  s->dtype = static_cast<maypole::DType>(o.dtype);
  s->op = static_cast<maypole::Op>(o.op);
  s->dims = static_cast<uint8_t>(o.dims);
  s->device =
      o.device == MAYPOLE_CUDA ? maypole::Device::kGpu : maypole::Device::kCpu;
  s->root = o.root;
  s->prescale = o.prescale;
  s->postscale = o.postscale;
  s->process_set = static_cast<uint32_t>(o.process_set);
  for (int i = 0; i < o.dims; ++i) s->shape[i] = o.shape[i];
  request->name = o.name != nullptr ? o.name : "";
  request->input = o.input;
  request->output = o.output;
  request->awaited = o.awaited != 0;
  request->stream = static_cast<maypole::cuda::CUstream>(o.stream);
  if (o.splits != nullptr) {
    request->splits.assign(o.splits, o.splits + o.splits_count);
  }
  return Status();
}

maypole_status AddProcessSet(const char* function, const int32_t* ranks,
                             int32_t count, bool by_members, int64_t* handle) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (ranks == nullptr || count < 0 || handle == nullptr) {
    return Return(Status(Code::kInvalidArgument,
                         std::string(function) +
                             ": ranks and handle must not be null, count must "
                             "not be negative"));
  }
  return Return(c->AddProcessSet(std::vector<int>(ranks, ranks + count), handle,
                                 by_members));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

maypole_status maypole_init(void) {
  HandleForks();
  Process& p = process();
  auto lock = AwaitJoin();
  if (p.client != nullptr) return MAYPOLE_OK;
  if (p.forked) return Return(NotInitialized());
  maypole::RankOptions options;
  if (Status s = maypole::ReadRankOptions(
          [](const char* name) -> const char* { return getenv(name); },
          &options);
      !s.ok()) {
    return Return(s);
  }
  if (options.elastic && p.last && p.last->job == options.job) {
    options.rank = p.last->rank;
    options.last_epoch = p.last->last_epoch;
  }
  std::unique_ptr<Client> client;
  p.joining = true;
  lock.unlock();
  const Status s = Client::Join(options, &client);
  lock.lock();
  p.joining = false;
  p.joined.notify_all();
  if (!s.ok()) return Return(s);
  p.client = std::move(client);
  if (p.client->options().elastic) {
    p.before_last = std::exchange(p.last, p.client->options());
  }
  const std::shared_ptr<Client> joined = p.client;
  lock.unlock();
  return StartTimelineOfEnvironment(joined);
}

maypole_status maypole_set_exchange(const maypole_exchange* exchange) {
  Process& p = process();
  const auto lock = AwaitJoin();
  if (exchange != nullptr &&
      (exchange->struct_size != sizeof(maypole_exchange) ||
       exchange->put == nullptr || exchange->get == nullptr)) {
    return Return(
        Status(Code::kInvalidArgument,
               "maypole_set_exchange: put and get must not be null, and "
               "struct_size must be sizeof(maypole_exchange) of this library's "
               "version"));
  }
  p.exchange = exchange != nullptr
                   ? std::make_unique<ProgramExchange>(*exchange)
                   : nullptr;
  maypole::SetExchange(p.exchange.get());
  return MAYPOLE_OK;
}

maypole_status maypole_shutdown(void) {
  if (const auto client = Retire(); client != nullptr) client->Leave();
  Process& p = process();
  {
    std::lock_guard lock(p.mutex);
    p.last.reset();
    p.before_last.reset();
  }
  ForgetRetired();
  return MAYPOLE_OK;
}

maypole_status maypole_leave_epoch(void) {
  if (const auto client = Retire(); client != nullptr) client->LeaveToReturn();
  ForgetRetired();
  return MAYPOLE_OK;
}

maypole_status maypole_abandon_epoch(void) {
  Process& p = process();
  bool is_new;
  {
    // First, so that no other thread joins with the abandoned epoch's options.
    const auto lock = AwaitJoin();
    if (p.client == nullptr) return MAYPOLE_OK;
    p.last = std::exchange(p.before_last, std::nullopt);
    is_new = !p.last;
  }
  const auto client = Retire();
  if (client != nullptr && is_new) {
    client->Leave();
  } else if (client != nullptr) {
    client->LeaveToReturn();
  }
  ForgetRetired();
  return MAYPOLE_OK;
}

void maypole_set_finished(int finished) {
  const auto client = Current();
  if (client == nullptr || !client->options().elastic) return;
  client->SetFinished(finished != 0);
  // The launcher that has set the variable looks for the file when this process
  // has ended. If the file cannot be made, the launcher judges by the exit
  // status alone.
  const char* const file = getenv(maypole::kFinishedFileVariable);
  if (file == nullptr || file[0] == '\0') return;
  if (finished == 0) {
    (void)unlink(file);
  } else {
    (void)maypole::Fd(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
}

int maypole_change_wanted(void) {
  const auto c = Current();
  return c ? static_cast<int>(c->change_wanted()) : -1;
}

int maypole_is_initialized(void) { return Current() != nullptr ? 1 : 0; }

int maypole_rank(void) {
  const auto c = Current();
  return c ? c->options().rank : -1;
}
int maypole_size(void) {
  const auto c = Current();
  return c ? c->options().size : -1;
}
int maypole_local_rank(void) {
  const auto c = Current();
  return c ? c->options().local_rank : -1;
}
int maypole_local_size(void) {
  const auto c = Current();
  return c ? c->options().local_size : -1;
}
int maypole_cross_rank(void) {
  const auto c = Current();
  return c ? c->options().cross_rank : -1;
}
int maypole_cross_size(void) {
  const auto c = Current();
  return c ? c->options().cross_size : -1;
}
int maypole_is_homogeneous(void) {
  const auto c = Current();
  return c ? (c->homogeneous() ? 1 : 0) : -1;
}

maypole_status maypole_submit(const maypole_operation* operation,
                              int64_t* handle) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (operation == nullptr || handle == nullptr) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_submit: operation and handle must not be "
                         "null"));
  }
  maypole::Request request;
  if (Status e = RequestOf(*operation, &request); !e.ok()) return Return(e);
  return Return(c->Submit(std::move(request), handle));
}

maypole_status maypole_submit_group(const maypole_operation* operations,
                                    int32_t count, int64_t* handles) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (count < 0 ||
      (count > 0 && (operations == nullptr || handles == nullptr))) {
    return Return(
        Status(Code::kInvalidArgument,
               "maypole_submit_group: count must not be negative, operations "
               "and handles must not be null"));
  }
  std::vector<maypole::Request> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    if (Status e = RequestOf(operations[i], &requests[i]); !e.ok()) {
      return Return(e);
    }
  }
  return Return(c->SubmitGroup(std::move(requests), handles));
}

maypole_status maypole_poll(int64_t handle, int* done) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  if (done == nullptr) {
    return Return(Status(Code::kInvalidArgument, "maypole_poll: done is null"));
  }
  bool d = false;
  const Status s = c->Poll(handle, &d);
  *done = d ? 1 : 0;
  return Return(s);
}

maypole_status maypole_wait(int64_t handle, int timeout_ms) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  return Return(c->Wait(handle, timeout_ms));
}

maypole_status maypole_result(int64_t handle, void** data, int64_t* bytes,
                              int64_t* first_dim) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  maypole::Result r;
  const Status s = c->GetResult(handle, &r);
  if (data != nullptr) *data = r.data;
  if (bytes != nullptr) *bytes = r.bytes;
  if (first_dim != nullptr) *first_dim = r.first_dim;
  return Return(s);
}

maypole_status maypole_copy_result(int64_t handle, void* to, void* stream) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  return Return(
      c->CopyResult(handle, static_cast<maypole::cuda::CUstream>(stream), to));
}

maypole_status maypole_received_splits(int64_t handle, int64_t* splits,
                                       int32_t count) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  maypole::Result r;
  if (Status s = c->GetResult(handle, &r); !s.ok()) return Return(s);
  if (splits == nullptr ||
      static_cast<size_t>(count) != r.received_splits.size()) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_received_splits: there are " +
                             std::to_string(r.received_splits.size()) +
                             " received splits, not " + std::to_string(count)));
  }
  std::copy(r.received_splits.begin(), r.received_splits.end(), splits);
  return MAYPOLE_OK;
}

maypole_status maypole_process_set_add(const int32_t* ranks, int32_t count,
                                       int64_t* handle) {
  return AddProcessSet("maypole_process_set_add", ranks, count,
                       /*by_members=*/false, handle);
}

maypole_status maypole_process_set_add_by_members(const int32_t* ranks,
                                                  int32_t count,
                                                  int64_t* handle) {
  return AddProcessSet("maypole_process_set_add_by_members", ranks, count,
                       /*by_members=*/true, handle);
}

maypole_status maypole_process_set_remove(int32_t process_set,
                                          int64_t* handle) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (process_set < 0 || handle == nullptr) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_process_set_remove: process_set must not be "
                         "negative, handle must not be null"));
  }
  return Return(
      c->RemoveProcessSet(static_cast<uint32_t>(process_set), handle));
}

int maypole_process_set_ranks(int32_t process_set, int32_t* ranks,
                              int32_t capacity) {
  const auto c = Current();
  if (c == nullptr || process_set < 0 || (ranks == nullptr && capacity > 0)) {
    return -1;
  }
  const std::vector<int> all =
      c->ProcessSetRanks(static_cast<uint32_t>(process_set));
  if (all.empty()) return -1;
  for (size_t i = 0; i < all.size() && static_cast<int32_t>(i) < capacity;
       ++i) {
    ranks[i] = all[i];
  }
  return static_cast<int>(all.size());
}

maypole_status maypole_on_done(int64_t handle, maypole_done done,
                               void* context) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  if (done == nullptr) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_on_done: the function is null"));
  }
  return Return(c->OnDone(
      handle, [=](const Status& s) { done(context, handle, Return(s)); }));
}

maypole_status maypole_release(int64_t handle) {
  const auto c = OwnerOf(handle);
  if (c == nullptr) return Return(NotInitialized());
  const Status s = c->Release(handle);
  if (!s.ok()) return Return(s);
  if (c != Current()) ForgetRetired();
  return MAYPOLE_OK;
}

maypole_status maypole_allocate(uint64_t bytes, void** memory) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  return Return(c->Allocate(bytes, memory));
}

maypole_status maypole_free(void* memory) {
  return Return(Client::Free(memory));
}

maypole_status maypole_allocate_on_gpu(uint64_t bytes, int32_t gpu,
                                       void** memory) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (memory == nullptr) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_allocate_on_gpu: memory is null"));
  }
  return Return(c->AllocateOnGpu(bytes, gpu, memory));
}

maypole_status maypole_free_on_gpu(void* memory, void* const* streams,
                                   int32_t count) {
  if (count < 0 || (count > 0 && streams == nullptr)) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_free_on_gpu: count must not be negative, "
                         "streams must not be null"));
  }
  std::vector<maypole::cuda::CUstream> all;
  for (int32_t i = 0; i < count; ++i) {
    all.push_back(static_cast<maypole::cuda::CUstream>(streams[i]));
  }
  return Return(Client::FreeOnGpu(memory, all));
}

maypole_status maypole_keep_state(const char* name, int fd) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (name == nullptr || fd < 0) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_keep_state: name must not be null, fd must "
                         "not be negative"));
  }
  return Return(c->KeepState(name, fd));
}

maypole_status maypole_find_state(const char* name, int* fd) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (name == nullptr || fd == nullptr) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_find_state: name and fd must not be null"));
  }
  maypole::Fd found;
  Status s = c->FindState(name, &found);
  if (s.ok() && !found.valid()) {
    s = Status(Code::kResourceExhausted,
               "the descriptor of the state could not be received; is this "
               "process out of file descriptors (ulimit -n)?");
  }
  *fd = s.ok() ? found.Release() : -1;
  return Return(s);
}

maypole_status maypole_drop_state(const char* name) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (name == nullptr) {
    return Return(
        Status(Code::kInvalidArgument, "maypole_drop_state: name is null"));
  }
  return Return(c->DropState(name));
}

uint64_t maypole_copy_digest(void* to, const void* from, uint64_t bytes) {
  return maypole::CopyDigest(to, from, bytes);
}

maypole_status maypole_start_timeline(const char* path, int32_t mark_cycles) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  if (path == nullptr || *path == 0) {
    return Return(Status(Code::kInvalidArgument,
                         "maypole_start_timeline: path must name a file"));
  }
  return Return(c->StartTimeline(path, mark_cycles != 0));
}

maypole_status maypole_stop_timeline(void) {
  const auto c = Current();
  if (c == nullptr) return Return(NotInitialized());
  return Return(c->StopTimeline());
}

const char* maypole_last_error(void) { return last_error.c_str(); }

const char* maypole_version(void) { return maypole::kVersion; }

int64_t maypole_counter(const char* name) {
  if (name == nullptr) return -1;
  if (std::strcmp(name, "arena_bytes") == 0) {  // outlives the job
    return static_cast<int64_t>(maypole::AllocatedInArenas());
  }
  const auto c = Current();
  if (c == nullptr) return -1;
  const maypole::Counters& n = c->counters();
  if (std::strcmp(name, "operations") == 0) return n.operations.load();
  if (std::strcmp(name, "completed") == 0) return n.completed.load();
  if (std::strcmp(name, "failed") == 0) return n.failed.load();
  if (std::strcmp(name, "bytes") == 0) return n.bytes.load();
  if (std::strcmp(name, "pending") == 0) return c->pending();
  if (std::strcmp(name, "arena_limit") == 0) {
    return static_cast<int64_t>(c->arena_limit());
  }
  if (std::strcmp(name, "gpu_operations") == 0) {
    return n.gpu_operations.load();
  }
  if (std::strcmp(name, "arena_operations") == 0) {
    return n.arena_operations.load();
  }
  return -1;
}

}  // extern "C"
#pragma GCC visibility pop
