#include "tests/gpu/fake_nccl/group.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "tests/gpu/fake_nccl/process.h"
#include "tests/gpu/fake_nccl/threads.h"

namespace maypole::nccl::fake {
namespace {

bool Reclaims(const Task& task) { return task.kind >= Task::kDestroy; }

}  // namespace

Group& Group::Mine() {
  thread_local Group group;
  return group;
}

ncclResult_t Group::Fail(ncclResult_t error, bool later) {
  ncclResult_t& to = later ? batch_.error : error_;
  if (to == ncclSuccess) to = error;
  return later ? ncclSuccess : error;
}

void Group::Add(Task task) {
  const auto other = std::find_if(
      batch_.tasks.begin(), batch_.tasks.end(), [&](const Task& t) {
        return !Reclaims(task) && !Reclaims(t) &&
               t.comm->blocking() != task.comm->blocking();
      });
  if (other != batch_.tasks.end()) {
    Fail(Process::Get().Error(ncclInvalidArgument,
                              "Blocking and nonblocking communicators are not "
                              "allowed in the same group."),
         false);
  }
  batch_.tasks.push_back(std::move(task));
}

void Group::Add(const std::shared_ptr<Communicator>& comm,
                const Operation& operation) {
  for (Task& task : batch_.tasks) {
    if (task.comm != comm || task.kind != Task::kOperate) continue;
    task.operations.push_back(operation);
    return;
  }
  Add(Task{.kind = Task::kOperate, .comm = comm, .operations = {operation}});
}

ncclResult_t Group::End() {
  if (depth_ == 0) {
    return Process::Get().Error(ncclInvalidUsage,
                                "ncclGroupEnd: not in a group call.");
  }
  if (--depth_ > 0) return ncclSuccess;
  auto batch = std::make_shared<Batch>(std::exchange(batch_, {}));
  const ncclResult_t error = std::exchange(error_, ncclSuccess);
  if (error == ncclSuccess) return Submit(std::move(batch));
  for (const Task& task : batch->tasks) {
    task.comm->Begin();
    task.comm->End(task.comm->blocking() && task.kind != Task::kInitialise
                       ? ncclSuccess
                       : error);
  }
  return error;
}

ncclResult_t Group::Submit(std::shared_ptr<Batch> batch) {
  if (batch->tasks.empty()) return ncclSuccess;
  bool blocking = false;
  for (const Task& task : batch->tasks) {
    blocking = blocking || Reclaims(task) || task.comm->blocking();
    if (!Reclaims(task)) task.comm->Begin();
  }
  for (Task& task : batch->tasks) {
    task.waits =
        task.kind != Task::kOperate || task.comm->MustConnect(task.operations);
  }
  if (blocking) return Execute(*batch);
  StartDetached([batch] { Execute(*batch); });
  return ncclInProgress;
}

ncclResult_t Group::Execute(Batch& batch) {
  if (!batch.tasks[0].comm->blocking()) batch.tasks[0].comm->Dawdle();
  ncclResult_t result = batch.error;
  if (result == ncclSuccess) result = PrepareAll(batch);
  for (const Task& task : batch.tasks) {
    if (result != ncclSuccess || task.operations.empty()) continue;
    result = task.comm->Launch(task.operations);
  }
  for (const Task& task : batch.tasks) {
    if (task.user != nullptr && result == ncclSuccess) {
      __atomic_store_n(task.user, task.handle, __ATOMIC_RELEASE);
    }
    if (!Reclaims(task)) task.comm->End(result);
  }
  return result;
}

// The first error cancels what the others still wait for.
ncclResult_t Group::PrepareAll(Batch& batch) {
  std::atomic<ncclResult_t> result = ncclSuccess;
  const auto prepare = [&](Task& task) {
    const ncclResult_t error = Prepare(task);
    ncclResult_t none = ncclSuccess;
    if (error == ncclSuccess || !result.compare_exchange_strong(none, error)) {
      return;
    }
    for (const Task& t : batch.tasks) {
      if (t.waits && t.comm != task.comm) t.comm->Cancel();
    }
  };
  std::vector<std::thread> threads;
  Task* own = nullptr;
  for (Task& task : batch.tasks) {
    if (!task.waits) continue;
    if (own != nullptr) {
      threads.push_back(StartJoinable([&, own] { prepare(*own); }));
    }
    own = &task;
  }
  if (own != nullptr) prepare(*own);
  for (std::thread& thread : threads) thread.join();
  return result;
}

ncclResult_t Group::Prepare(Task& task) {
  switch (task.kind) {
    case Task::kInitialise:
      return task.comm->Initialise(task.id);
    case Task::kOperate:
      return task.comm->Connect(task.operations);
    case Task::kFinalise:
      return task.comm->Finalise();
    case Task::kDestroy:
    case Task::kAbort:
      break;
  }
  const ncclResult_t result = task.comm->Reclaim(task.kind == Task::kAbort);
  Process::Get().Remove(task.handle);
  return result;
}

}  // namespace maypole::nccl::fake
