#include "client/api/completion_thread.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "common/system/thread.h"

namespace maypole {

struct CompletionThread::Queue {
  std::shared_ptr<Callbacks> callbacks;
  std::mutex mutex;
  std::condition_variable pushed;
  std::condition_variable ran;
  std::vector<std::unique_ptr<Completion>> waiting;
  uint64_t pushes = 0;
  uint64_t runs = 0;
  bool stopped = false;
};

CompletionThread::CompletionThread(std::shared_ptr<Callbacks> callbacks)
    : queue_(std::make_shared<Queue>()) {
  queue_->callbacks = std::move(callbacks);
}

Status CompletionThread::Start(std::shared_ptr<Callbacks> callbacks,
                               std::shared_ptr<CompletionThread>* out) {
  std::shared_ptr<CompletionThread> self(
      new CompletionThread(std::move(callbacks)));
  Status s =
      StartThread([queue = self->queue_] { Run(queue.get()); }, &self->thread_);
  if (s.ok()) *out = std::move(self);
  return s;
}

CompletionThread::~CompletionThread() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(queue_->mutex);
    queue_->stopped = true;
  }
  queue_->pushed.notify_one();
  if (OnThread()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void CompletionThread::Push(std::unique_ptr<Completion> completion) {
  queue_->callbacks->unfinished.fetch_add(1);
  std::lock_guard lock(queue_->mutex);
  queue_->waiting.push_back(std::move(completion));
  ++queue_->pushes;
  if (queue_->waiting.size() == 1) queue_->pushed.notify_one();
}

void CompletionThread::Drain() {
  if (OnThread()) return;
  std::unique_lock lock(queue_->mutex);
  queue_->ran.wait(lock, [&] { return queue_->runs == queue_->pushes; });
}

void CompletionThread::Run(Queue* queue) {
  queue->callbacks->thread = std::this_thread::get_id();
  std::unique_lock lock(queue->mutex);
  while (true) {
    queue->pushed.wait(
        lock, [&] { return queue->stopped || !queue->waiting.empty(); });
    if (queue->waiting.empty()) return;
    auto batch = std::exchange(queue->waiting, {});
    lock.unlock();
    for (std::unique_ptr<Completion>& completion : batch) {
      completion->call(*completion->operation);
      completion.reset();
      queue->callbacks->unfinished.fetch_sub(1);
    }
    lock.lock();
    queue->runs += batch.size();
    queue->ran.notify_all();
  }
}

}  // namespace maypole
