#include "tests/gpu/fake/stream.h"

#include <algorithm>
#include <utility>

namespace maypole::cuda::fake {

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
  stream->removed = true;
  stream->capture = nullptr;
  if (!stream->has_thread) std::erase(streams_, stream);
  changed_.notify_all();
}

void Engine::Push(Stream& stream, Operation operation) {
  AddLegacyOrder(stream, operation);
  stream.last = std::make_shared<Operation>(std::move(operation));
  stream.queue.push_back(stream.last);
  if (!stream.has_thread) StartThread(stream);
  changed_.notify_all();
}

void Engine::StartThread(Stream& stream) {
  const auto it =
      std::find_if(streams_.begin(), streams_.end(),
                   [&](const auto& s) { return s.get() == &stream; });
  stream.has_thread = true;
  ++threads_;
  std::thread([this, own = *it] { Run(own); }).detach();
}

// The legacy stream's work runs after that of all blocking streams, and they
// continue after it.
void Engine::AddLegacyOrder(const Stream& stream, Operation& operation) const {
  if (stream.kind == Stream::Kind::kNonBlocking) return;
  const Stream::Kind other = stream.kind == Stream::Kind::kLegacy
                                 ? Stream::Kind::kBlocking
                                 : Stream::Kind::kLegacy;
  for (const auto& s : streams_) {
    if (s->kind == other && !s->idle()) operation.after.push_back(s->last);
  }
}

std::vector<std::shared_ptr<Operation>> Engine::Pending() const {
  std::vector<std::shared_ptr<Operation>> pending;
  for (const auto& s : streams_) {
    if (!s->idle()) pending.push_back(s->last);
  }
  return pending;
}

bool Engine::Uses(const Range& range) const {
  for (const auto& s : streams_) {
    for (const auto& operation : s->queue) {
      for (const Range& used : operation->uses) {
        if (used.Overlaps(range)) return true;
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

void Engine::Run(const std::shared_ptr<Stream>& stream) {
  Held held(mutex_);
  while (!stopping_ && !(stream->removed && stream->idle())) {
    if (stream->idle()) {
      changed_.wait(held);
    } else {
      WaitUntilReady(*stream->queue.front(), held);
      if (!stopping_) Execute(*stream, held);
    }
  }
  std::erase(streams_, stream);
  --threads_;
  changed_.notify_all();
}

void Engine::WaitUntilReady(Operation& operation, Held& held) {
  changed_.wait(held, [&] { return stopping_ || operation.CanRun(); });
  if (seed_ == 0) return;
  const auto until = Operation::Clock::now() +
                     std::chrono::microseconds(random_() % (late_.count() + 1));
  changed_.wait_until(held, until, [&] { return stopping_; });
}

void Engine::Execute(Stream& stream, Held& held) {
  const std::shared_ptr<Operation> operation = stream.queue.front();
  held.unlock();
  if (operation->work) operation->work();
  held.lock();
  operation->work = nullptr;
  operation->after.clear();
  operation->done_at = Operation::Clock::now();
  operation->done = true;
  stream.queue.pop_front();
  changed_.notify_all();
}

}  // namespace maypole::cuda::fake
