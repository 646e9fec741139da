// Group: a thread's calls between ncclGroupStart and ncclGroupEnd.
//
// Purpose: every call is part of a group; if the thread has begun none, of a
// group of its own. When the outermost group ends, its calls are executed:
//
//   1. in parallel: initialisations, first connections, finalisations, aborts
//   2. if none has failed: the launches of each communicator, in order
// The caller executes them if its communicators block; otherwise a thread does,
// later.
//
//   Group& group = Group::Mine();
//   group.Start();
//   group.Add(comm, {.call = ...});
//   return group.End();
//
// Thread contract: each thread has its own.
//
// Invariants: as with NCCL, blocking and nonblocking communicators cannot be in
// one group; a communicator that fails cancels the others of its group; and the
// caller executes a group with an abort or a destruction.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_GROUP_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_GROUP_H_

#include <memory>
#include <vector>

#include "tests/gpu/fake_nccl/communicator.h"
#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

// What a group does with one communicator.
struct Task {
  enum Kind { kInitialise, kOperate, kFinalise, kDestroy, kAbort };

  Kind kind;
  std::shared_ptr<Communicator> comm;
  ncclComm_t handle = nullptr;
  ncclUniqueId id = {};               // kInitialise
  ncclComm_t* user = nullptr;         // kInitialise: written again at the end
  std::vector<Operation> operations;  // kOperate
  bool waits = true;                  // for other ranks, before a launch
};

class Group {
 public:
  static Group& Mine();

  void Start() { ++depth_; }
  // The group fails with this error, now or (`later`) when it is executed.
  ncclResult_t Fail(ncclResult_t error, bool later);
  void Add(Task task);
  void Add(const std::shared_ptr<Communicator>& comm,
           const Operation& operation);
  ncclResult_t End();

 private:
  struct Batch {
    std::vector<Task> tasks;
    ncclResult_t error = ncclSuccess;  // of fail_later=
  };

  static ncclResult_t Execute(Batch& batch);
  static ncclResult_t Prepare(Task& task);
  static ncclResult_t PrepareAll(Batch& batch);
  ncclResult_t Submit(std::shared_ptr<Batch> batch);

  int depth_ = 0;
  ncclResult_t error_ = ncclSuccess;
  Batch batch_;
};

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_GROUP_H_
