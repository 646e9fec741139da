// BlockingQueue: a FIFO queue between threads.
//
// Thread contract: any thread. Pop() waits for an element; after Close() it
// returns the remaining elements, then null.
#ifndef MAYPOLE_WORKER_BACKEND_BLOCKING_QUEUE_H_
#define MAYPOLE_WORKER_BACKEND_BLOCKING_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace maypole::worker {

template <typename T>
class BlockingQueue {
 public:
  void Push(std::unique_ptr<T> element) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(element));
    changed_.notify_one();
  }

  // Returns null if the queue is closed and empty.
  std::unique_ptr<T> Pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return nullptr;
    std::unique_ptr<T> element = std::move(queue_.front());
    queue_.pop_front();
    return element;
  }

  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<T>> queue_;
  bool closed_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_BLOCKING_QUEUE_H_
