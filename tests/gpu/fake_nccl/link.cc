#include "tests/gpu/fake_nccl/link.h"

#include <sys/socket.h>

#include "tests/gpu/fake_nccl/config.h"
#include "tests/gpu/fake_nccl/process.h"
#include "tests/gpu/fake_nccl/threads.h"

namespace maypole::nccl::fake {

std::shared_ptr<Link> Link::Open(const std::string& hub, int rank,
                                 std::function<void()> lost) {
  Fd socket = Connect(hub);
  if (!socket.valid() || !SendMessage(socket.get(),
                                      {.type = MessageType::kJoin,
                                       .id = static_cast<uint64_t>(rank)},
                                      nullptr)) {
    return nullptr;
  }
  std::shared_ptr<Link> link(new Link(std::move(socket), std::move(lost)));
  StartDetached([link] { link->Read(); });
  return link;
}

uint64_t Link::Send(const Call& call, const void* input, size_t bytes) {
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    id = ++last_id_;
    results_[id] = {};
  }
  std::lock_guard lock(send_mutex_);
  SendMessage(
      socket_.get(),
      {.type = MessageType::kRequest, .id = id, .bytes = bytes, .call = call},
      input);
  return id;
}

bool Link::Wait(uint64_t id, Bytes* output) {
  return WaitFor(id, cancelled_, output);
}

bool Link::WaitOfHost(uint64_t id, Bytes* output) {
  return WaitFor(id, rank_lost_, output);
}

bool Link::WaitFor(uint64_t id, const bool& failed, Bytes* output) {
  std::unique_lock lock(mutex_);
  std::optional<Bytes>& result = results_[id];
  changed_.wait(lock,
                [&] { return cancelled_ || failed || result.has_value(); });
  const bool done = result.has_value() && !cancelled_;
  if (done) *output = std::move(*result);
  results_.erase(id);
  return done;
}

void Link::SetFlag(bool& flag) {
  std::lock_guard lock(mutex_);
  flag = true;
  changed_.notify_all();
}

void Link::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  shutdown(socket_.get(), SHUT_RDWR);
  changed_.notify_all();
}

void Link::Abort() {
  SetFlag(cancelled_);
  std::lock_guard lock(send_mutex_);
  SendMessage(socket_.get(), {.type = MessageType::kAborted}, nullptr);
}

void Link::WaitUntilAllGone() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return all_gone_; });
}

void Link::Leave() {
  SetFlag(left_);
  {
    std::lock_guard lock(send_mutex_);
    SendMessage(socket_.get(), {.type = MessageType::kLeave}, nullptr);
  }
  Cancel();
}

void Link::Read() {
  const bool fails = Process::Get().config().peer_death_is_error;
  const auto lose_rank = [&] {
    lost_();
    if (fails) SetFlag(rank_lost_);
  };
  MessageHeader header;
  Bytes data;
  while (ReceiveMessage(socket_.get(), &header, &data)) {
    switch (header.type) {
      case MessageType::kMismatch: {
        std::lock_guard lock(Process::Get().mismatch_mutex());
        Illegal({reinterpret_cast<const char*>(data.data()), data.size()});
      }
      case MessageType::kLost:
        lose_rank();
        break;
      case MessageType::kAllGone:
        SetFlag(all_gone_);
        break;
      default:
        TakeReply(header.id, std::move(data));
    }
  }
  bool own = false;
  {
    std::lock_guard lock(mutex_);
    own = cancelled_ || left_;
  }
  if (!own) lose_rank();
  SetFlag(all_gone_);
}

void Link::TakeReply(uint64_t id, Bytes data) {
  std::lock_guard lock(mutex_);
  const auto it = results_.find(id);
  if (it == results_.end()) return;
  it->second = std::move(data);
  changed_.notify_all();
}

}  // namespace maypole::nccl::fake
