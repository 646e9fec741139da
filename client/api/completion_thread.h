// CompletionThread: calls back when operations have ended.
//
// Purpose: the thread that moves a rank's data must not run the program's code,
// which may take long or submit the next operation. So callbacks run on a
// separate thread, one after the other, in the order in which the operations
// have ended.
//
// Thread contract: any thread may call the functions.
//
// Invariant: each callback that was added runs exactly once, and the destructor
// returns after the last one; if a callback calls it, it does not wait.
#ifndef MAYPOLE_CLIENT_API_COMPLETION_THREAD_H_
#define MAYPOLE_CLIENT_API_COMPLETION_THREAD_H_

#include <functional>
#include <memory>
#include <thread>

#include "client/engine/operation.h"
#include "client/session/communicator.h"
#include "common/status.h"

namespace maypole {

class CompletionThread : public CompletionQueue {
 public:
  // Keeps *callbacks up to date.
  static Status Start(std::shared_ptr<Callbacks> callbacks,
                      std::shared_ptr<CompletionThread>* out);
  ~CompletionThread() override;

  void Push(std::unique_ptr<Completion> completion) override;
  // Returns when all completions that were pushed have run, including those
  // that they push; if a completion calls it, it returns at once.
  void Drain();

 private:
  struct Queue;  // outlives this object while the thread runs
  explicit CompletionThread(std::shared_ptr<Callbacks> callbacks);
  static void Run(Queue* queue);
  bool OnThread() const {
    return std::this_thread::get_id() == thread_.get_id();
  }

  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_API_COMPLETION_THREAD_H_
