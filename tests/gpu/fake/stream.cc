#include "tests/gpu/fake/stream.h"

#include <algorithm>
#include <utility>

namespace maypole::cuda::fake {

using Time = Operation::Clock::time_point;

bool Operation::CanRun() const {
  return std::all_of(after.begin(), after.end(),
                     [](const auto& other) { return other->done; });
}

Engine::Engine(std::mutex& mutex, std::condition_variable& changed, int device,
               uint64_t seed, std::chrono::microseconds late)
    : mutex_(mutex),
      changed_(changed),
      device_(device),
      seed_(seed),
      late_(late),
      random_(seed + static_cast<uint64_t>(device)) {}

std::shared_ptr<Stream> Engine::Add(CUstream handle, Stream::Kind kind) {
  streams_.push_back(std::make_shared<Stream>(
      Stream{.handle = handle, .device = device_, .kind = kind}));
  return streams_.back();
}

void Engine::Remove(const std::shared_ptr<Stream>& stream) {
  std::erase(streams_, stream);
  if (!stream->idle()) removed_.push_back(stream);
}

std::shared_ptr<Operation> Engine::Push(Stream& stream, Operation operation) {
  AddLegacyOrder(stream, operation);
  operation.number = ++pushed_;
  stream.last = std::make_shared<Operation>(std::move(operation));
  stream.queue.push_back(stream.last);
  if (!running_) {
    running_ = true;
    std::thread([this] { Run(); }).detach();
  }
  changed_.notify_all();
  return stream.last;
}

// The legacy stream's work runs after that of all blocking streams, and they
// continue after it.
void Engine::AddLegacyOrder(const Stream& stream, Operation& operation) const {
  if (stream.kind == Stream::Kind::kNonBlocking) return;
  const Stream::Kind other = stream.kind == Stream::Kind::kLegacy
                                 ? Stream::Kind::kBlocking
                                 : Stream::Kind::kLegacy;
  for (const auto* streams : {&streams_, &removed_}) {
    for (const auto& s : *streams) {
      if (s->kind == other && !s->idle()) operation.after.push_back(s->last);
    }
  }
}

std::vector<std::shared_ptr<Operation>> Engine::Pending() const {
  std::vector<std::shared_ptr<Operation>> pending;
  for (const auto* streams : {&streams_, &removed_}) {
    for (const auto& s : *streams) {
      if (!s->idle()) pending.push_back(s->last);
    }
  }
  return pending;
}

bool Engine::Uses(const Range& range) const {
  for (const auto* streams : {&streams_, &removed_}) {
    for (const auto& s : *streams) {
      for (const auto& operation : s->queue) {
        for (const Range& used : operation->uses) {
          if (used.Overlaps(range)) return true;
        }
      }
    }
  }
  return false;
}

std::shared_ptr<Capture> Engine::BlockingCapture() const {
  for (const auto& s : streams_) {
    if (s->kind == Stream::Kind::kBlocking && s->capture) return s->capture;
  }
  return nullptr;
}

void Engine::EndCapture(const Capture& capture) {
  for (const auto& s : streams_) {
    if (s->capture.get() == &capture) s->capture = nullptr;
  }
}

void Engine::Run() {
  Held held(mutex_);
  while (!stopping_) {
    Time next = Time::max();
    if (const auto stream = Choose(&next)) {
      Execute(stream, held);
    } else if (next == Time::max()) {
      changed_.wait(held);
    } else {
      changed_.wait_until(held, next);
    }
  }
  running_ = false;
  changed_.notify_all();
}

// Returns a stream that can continue now; or null, and sets `next` to the time
// at which one will, if that is known.
std::shared_ptr<Stream> Engine::Choose(Time* next) {
  const Time now = Operation::Clock::now();
  std::vector<std::shared_ptr<Stream>> ready;
  for (const auto* streams : {&streams_, &removed_}) {
    for (const auto& s : *streams) {
      if (s->idle() || !s->queue.front()->CanRun()) continue;
      Operation& first = *s->queue.front();
      if (seed_ != 0 && first.not_before == Time()) {
        first.not_before =
            now + std::chrono::microseconds(random_() % (late_.count() + 1));
      }
      if (first.not_before <= now) {
        ready.push_back(s);
      } else {
        *next = std::min(*next, first.not_before);
      }
    }
  }
  if (ready.empty()) return nullptr;
  if (seed_ != 0) return ready[random_() % ready.size()];
  return *std::min_element(
      ready.begin(), ready.end(), [](const auto& a, const auto& b) {
        return a->queue.front()->number < b->queue.front()->number;
      });
}

void Engine::Execute(const std::shared_ptr<Stream>& stream, Held& held) {
  const std::shared_ptr<Operation> operation = stream->queue.front();
  held.unlock();
  if (operation->work) operation->work();
  held.lock();
  operation->work = nullptr;
  operation->after.clear();
  operation->done_at = Operation::Clock::now();
  operation->done = true;
  stream->queue.pop_front();
  if (stream->idle()) std::erase(removed_, stream);
  changed_.notify_all();
}

}  // namespace maypole::cuda::fake
